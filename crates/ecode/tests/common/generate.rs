//! Generates programs from bytes: the same bytes give the same program.

use std::fmt::Write as _;

use ecode::Diagnostic;

const TYPES: [&str; 11] =
    ["i8", "u8", "i16", "u16", "int", "unsigned", "long", "u64", "bool", "short", "unsigned char"];
const OPERATORS: [&str; 18] = [
    "+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "&&",
    "||",
];
const UPDATES: [&str; 11] = ["=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="];
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "31",
    "63",
    "127",
    "128",
    "255",
    "65535",
    "2147483647",
    "0xffffffff",
    "0x8000000000000000",
];

pub struct ProgramGenerator<'a> {
    bytes: std::slice::Iter<'a, u8>,
    text: String,
    /// Expressions that may be read; those in `written` may also be written.
    read: Vec<String>,
    written: Vec<String>,
    /// Lvalues of type `struct s`.
    structs: Vec<String>,
    functions: Vec<GeneratedFunction>,
    names: usize,
    depth: usize,
    loops: usize,
    /// The current function has loops, or calls a function that has.
    is_long: bool,
}

#[derive(Clone)]
struct GeneratedFunction {
    name: String,
    parameters: usize,
    /// The function has loops, or calls a function that has. It is not called in loops, because
    /// nested loops take too long.
    is_long: bool,
}

impl<'a> ProgramGenerator<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes: bytes.iter(),
            text: String::new(),
            read: Vec::new(),
            written: Vec::new(),
            structs: Vec::new(),
            functions: Vec::new(),
            names: 0,
            depth: 0,
            loops: 0,
            is_long: false,
        }
    }
}

/// A program with a handler `on call` with two parameters.
pub fn program(bytes: &[u8]) -> String {
    let mut generator = ProgramGenerator::new(bytes);
    generator.declarations();
    generator.function("on call", 2);
    generator.text
}

/// A program with a handler at another hook, which uses the fields of that hook.
pub fn handler(bytes: &[u8], head: &str, fields: impl IntoIterator<Item = String>) -> String {
    let mut generator = ProgramGenerator::new(bytes);
    generator.declarations();
    generator.read.extend(fields);
    generator.body(head);
    generator.text
}

/// Whether a program was rejected for its stack or its length, the only valid reasons against a
/// generated program. The length of a function on memory doubles with each element among its
/// arguments.
pub fn needs_more_memory(problem: &Diagnostic) -> bool {
    let reasons = [
        "bytes of stack",
        "more than 32000 instructions",
        "too many elements with variable indices",
    ];
    reasons.iter().any(|reason| problem.message.contains(reason))
}

impl ProgramGenerator<'_> {
    fn byte(&mut self) -> usize {
        self.bytes.next().copied().unwrap_or(0).into()
    }

    fn one_of<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.byte() % all.len()]
    }

    fn name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    fn declarations(&mut self) {
        for _ in 0..1 + self.byte() % 4 {
            let (of, name, number) = (self.one_of(&TYPES), self.name("g"), self.one_of(&NUMBERS));
            let _ = writeln!(self.text, "{of} {name} = ({of}) {number};");
            self.read.push(name.clone());
            self.written.push(name);
        }
        for _ in 0..self.byte() % 3 {
            let (of, name, length) = (self.one_of(&TYPES), self.name("a"), 1 + self.byte() % 8);
            let _ = writeln!(self.text, "{of} {name}[{length}] = {{ 1, 2 }};");
            // The @ is replaced by an index.
            self.read.push(format!("{name}[@]"));
            self.written.push(format!("{name}[@]"));
        }
        let _ = writeln!(
            self.text,
            "char w[7] = \"ab\"; char z[2][3] = {{ \"x\" }}; char k[2][8] = {{ \"words\" }};"
        );
        let (key, value) = (self.one_of(&TYPES), self.one_of(&TYPES));
        let _ = writeln!(self.text, "map<{key}, {value}> m[4];");
        self.read.push("m[@]".into());
        self.written.push("m[@]".into());
        let (x, y) = (self.one_of(&TYPES), self.one_of(&TYPES));
        let _ = writeln!(
            self.text,
            "struct s {{ u8 c; {x} x; {y} y[3]; }};\nstruct s t; struct s u[2];"
        );
        let _ = writeln!(self.text, "map<struct s, struct s> q[3];");
        for whole in ["t", "u[@]", "q[t]", "q[u[@]]"] {
            self.whole_struct(whole);
        }
        for _ in 0..self.byte() % 3 {
            let parameters = self.byte() % 6;
            let (name, of) = (self.name("f"), self.one_of(&TYPES));
            self.function(&format!("{of} {name}"), parameters);
            self.functions.push(GeneratedFunction { name, parameters, is_long: self.is_long });
        }
    }

    fn whole_struct(&mut self, lvalue: &str) {
        self.structs.push(lvalue.into());
        for member in ["c", "x", "y[@]"] {
            self.read.push(format!("{lvalue}.{member}"));
            self.written.push(format!("{lvalue}.{member}"));
        }
    }

    fn function(&mut self, head: &str, parameters: usize) {
        let (read, written) = (self.read.len(), self.written.len());
        let mut declared = Vec::new();
        for _ in 0..parameters {
            let (of, name) = (self.one_of(&TYPES), self.name("p"));
            declared.push(format!("{of} {name}"));
            self.read.push(name.clone());
            self.written.push(name);
        }
        self.body(&format!("{head}({})", declared.join(", ")));
        self.read.truncate(read);
        self.written.truncate(written);
    }

    fn body(&mut self, head: &str) {
        self.is_long = false;
        let _ = writeln!(self.text, "{head} {{\nchar l[2][8] = {{ \"l\", \"ocal\" }};");
        let count = 2 + self.byte() % 6;
        self.statements(count);
        let value = self.expression(3);
        let _ = writeln!(self.text, "return {value};\n}}");
    }

    fn statements(&mut self, count: usize) {
        let (read, written, structs) = (self.read.len(), self.written.len(), self.structs.len());
        self.depth += 1;
        for _ in 0..count {
            self.statement();
        }
        self.depth -= 1;
        self.read.truncate(read);
        self.written.truncate(written);
        self.structs.truncate(structs);
    }

    fn statement(&mut self) {
        let kind = self.byte() % if self.depth > 3 { 6 } else { 18 };
        match kind {
            0 | 1 => {
                let (of, name, value) = (self.one_of(&TYPES), self.name("v"), self.expression(3));
                let _ = writeln!(self.text, "{of} {name} = {value};");
                self.read.push(name.clone());
                self.written.push(name);
            }
            2 => {
                let (of, name, length) = (self.one_of(&TYPES), self.name("b"), 1 + self.byte() % 6);
                let _ = writeln!(self.text, "{of} {name}[{length}] = {{ 3 }};");
                self.read.push(format!("{name}[@]"));
                self.written.push(format!("{name}[@]"));
            }
            3 => {
                let lvalue = self.lvalue(true);
                let step = self.one_of(&["++", "--"]);
                let _ = writeln!(self.text, "{lvalue}{step};");
            }
            4 | 5 => {
                let (lvalue, update, value) =
                    (self.lvalue(true), self.one_of(&UPDATES), self.expression(3));
                let _ = writeln!(self.text, "{lvalue} {update} {value};");
            }
            6 | 7 => {
                let condition = self.expression(3);
                let _ = writeln!(self.text, "if ({condition}) {{");
                self.some_statements();
                let _ = writeln!(self.text, "}} else {{");
                self.some_statements();
                let _ = writeln!(self.text, "}}");
            }
            8 | 9 if self.loops < 2 => self.looped(),
            10 => {
                let value = self.expression(2);
                let _ = writeln!(self.text, "switch ({value}) {{");
                for case in 0..1 + self.byte() % 3 {
                    let _ = writeln!(self.text, "case {case}: {{");
                    self.some_statements();
                    let end = self.one_of(&["break;", ""]);
                    let _ = writeln!(self.text, "}} {end}");
                }
                let _ = writeln!(self.text, "default: {{");
                self.some_statements();
                let _ = writeln!(self.text, "}} }}");
            }
            11 => {
                let is_number = self.byte().is_multiple_of(3);
                let to = if is_number { self.lvalue(true) } else { self.bytes() };
                let limit = self.expression(1);
                let (call, from) = match self.byte() % 3 {
                    1 => {
                        let (text, number) = (self.text(), self.expression(1));
                        let _ =
                            writeln!(self.text, "print(\"%d|%s|%u\", {limit}, {text}, {number});");
                        return;
                    }
                    0 => ("memset", self.expression(1)),
                    _ => ("memcpy", self.bytes()),
                };
                let _ = writeln!(self.text, "{call}({to}, {from}, {limit});");
            }
            12 => {
                let name = self.name("l");
                let _ = writeln!(self.text, "struct s {name} = {{ 1, .y = {{ [1] = 2 }} }};");
                self.whole_struct(&name);
            }
            13 => {
                let (to, from) = (self.a_struct(), self.struct_value(2));
                let _ = writeln!(self.text, "{to} = {from};");
            }
            14 => {
                let (of, name, number) =
                    (self.one_of(&TYPES), self.name("k"), self.one_of(&["0", "1", "100"]));
                let _ = writeln!(self.text, "static {of} {name} = {number};");
                self.read.push(name.clone());
                self.written.push(name);
            }
            16 => {
                let left_away = self.left_away();
                let _ = writeln!(self.text, "{left_away};");
            }
            15 => {
                let entry = self.entry();
                let _ = writeln!(self.text, "erase({entry});");
            }
            _ => {
                let leave = if self.loops > 0 {
                    self.one_of(&["break", "continue", "return 5"])
                } else {
                    "return 6"
                };
                let condition = self.expression(2);
                let _ = writeln!(self.text, "if ({condition}) {leave};");
            }
        }
    }

    fn some_statements(&mut self) {
        let count = self.byte() % 4;
        self.statements(count);
    }

    fn looped(&mut self) {
        let (name, rounds) = (self.name("i"), 1 + self.byte() % 6);
        let of = self.one_of(&["int", "u8", "long", "u64", "i16"]);
        let kind = self.byte() % 3;
        self.read.push(name.clone());
        self.loops += 1;
        self.is_long = true;
        let _ = match kind {
            0 => writeln!(self.text, "{of} {name} = {rounds}; while ({name}-- > 0) {{"),
            1 => writeln!(self.text, "{of} {name} = {rounds}; do {{"),
            _ => writeln!(self.text, "for ({of} {name} = 0; {name} < {rounds}; {name}++) {{"),
        };
        self.some_statements();
        let _ = match kind {
            1 => writeln!(self.text, "}} while ({name}-- > 0);"),
            _ => writeln!(self.text, "}}"),
        };
        self.loops -= 1;
        if kind > 1 {
            self.read.retain(|known| *known != name);
        }
    }

    fn lvalue(&mut self, is_written: bool) -> String {
        let names = if is_written { &self.written } else { &self.read };
        let count = names.len();
        let at = self.byte() % count;
        let name = if is_written { self.written[at].clone() } else { self.read[at].clone() };
        self.indexed(&name)
    }

    fn a_struct(&mut self) -> String {
        let at = self.byte() % self.structs.len();
        let lvalue = self.structs[at].clone();
        self.indexed(&lvalue)
    }

    fn struct_value(&mut self, depth: usize) -> String {
        match self.byte() % if depth == 0 { 1 } else { 6 } {
            3 => {
                let (condition, [yes, no]) =
                    (self.expression(1), std::array::from_fn(|_| self.struct_value(depth - 1)));
                format!("(({condition}) ? {yes} : {no})")
            }
            4 => format!("({} = {})", self.a_struct(), self.struct_value(depth - 1)),
            5 => format!("({}, {})", self.expression(1), self.struct_value(depth - 1)),
            _ => self.a_struct(),
        }
    }

    /// A map and one of its keys.
    fn entry(&mut self) -> String {
        match self.byte() % 2 {
            0 => format!("m, {}", self.expression(1)),
            _ => format!("q, {}", self.struct_value(1)),
        }
    }

    fn indexed(&mut self, name: &str) -> String {
        if !name.contains('@') {
            return name.into();
        }
        // Two copies of an index that contains two copies of another, and so on, would be too long.
        let depth = usize::from(name.matches('@').count() == 1);
        let index = if self.byte().is_multiple_of(4) {
            self.expression(depth)
        } else {
            format!("{} & 3", self.expression(depth))
        };
        // The index is not a constant: the checker would reject one beyond the end.
        name.replace('@', &format!("{} + {index}", self.written[0].clone().replace('@', "0")))
    }

    fn bytes(&mut self) -> String {
        match self.byte() % 6 {
            rows @ 0..3 => {
                let (name, first) = (["z", "k", "l"][rows], self.one_of(&["w", "z[0]"]));
                format!("{name}[{first}[0] + ({})]", self.expression(1))
            }
            _ => "w".into(),
        }
    }

    /// Arrays, structs and texts whose values are not used.
    fn left_away(&mut self) -> String {
        match self.byte() % 6 {
            0 => format!("(void) {}", self.struct_value(1)),
            1 => format!("(void) {}", self.bytes()),
            2 => self.struct_value(1),
            3 => format!("({}, {})", self.bytes(), self.expression(1)),
            4 => self.one_of(&["z", "k", "l", "(void) z"]).into(),
            _ => self.bytes(),
        }
    }

    fn text(&mut self) -> String {
        match self.byte() % 5 {
            4 => format!("({}, \"ab\")", self.left_away()),
            0 => self.one_of(&["\"\"", "\"a\"", "\"ab\"", "\"abcdefghij\""]).into(),
            1 => format!("(({}) ? \"ab\" : \"x\")", self.expression(1)),
            _ => self.bytes(),
        }
    }

    fn may_call(&self, function: &GeneratedFunction) -> bool {
        self.loops == 0 || !function.is_long
    }

    fn expression(&mut self, depth: usize) -> String {
        match self.byte() % if depth == 0 { 4 } else { 15 } {
            0 => self.one_of(&NUMBERS).into(),
            1..=3 if depth == 0 => {
                let plain: Vec<_> =
                    self.read.iter().filter(|name| !name.contains('@')).cloned().collect();
                plain[self.byte() % plain.len()].clone()
            }
            1..=3 => self.lvalue(false),
            4 => format!("{}({})", self.one_of(&["-", "~", "!", "+"]), self.expression(depth - 1)),
            5 => format!("({}) ({})", self.one_of(&TYPES), self.expression(depth - 1)),
            6 => {
                let [condition, yes, no] = std::array::from_fn(|_| self.expression(depth - 1));
                format!("(({condition}) ? ({yes}) : ({no}))")
            }
            7 if self.functions.iter().any(|function| self.may_call(function)) => {
                let callable: Vec<_> = self
                    .functions
                    .iter()
                    .filter(|function| self.may_call(function))
                    .cloned()
                    .collect();
                let GeneratedFunction { name, parameters, is_long } =
                    callable[self.byte() % callable.len()].clone();
                self.is_long |= is_long;
                let arguments: Vec<_> = (0..parameters).map(|_| self.expression(1)).collect();
                format!("{name}({})", arguments.join(", "))
            }
            8 => {
                let (lvalue, step) = (self.lvalue(true), self.one_of(&["++", "--"]));
                if self.byte().is_multiple_of(2) {
                    format!("({lvalue}{step})")
                } else {
                    format!("({step}{lvalue})")
                }
            }
            9 => match self.byte() % 6 {
                5 => format!("read_user_text({}, 0)", self.bytes()),
                4 => "emit(t)".into(),
                0 => format!("strlen({})", self.text()),
                1 => format!("strcmp({}, {})", self.text(), self.text()),
                2 => format!("strncmp({}, {}, {})", self.text(), self.text(), self.expression(1)),
                _ => format!("memcmp({}, {}, {})", self.bytes(), self.bytes(), self.expression(1)),
            },
            10 => format!("has({})", self.entry()),
            11 => {
                let (lvalue, update) = (self.lvalue(true), self.one_of(&UPDATES));
                format!("({lvalue} {update} {})", self.expression(depth - 1))
            }
            12 => format!("({}, {})", self.expression(depth - 1), self.expression(depth - 1)),
            _ => {
                let (left, right) = (self.expression(depth - 1), self.expression(depth - 1));
                format!("({left} {} {right})", self.one_of(&OPERATORS))
            }
        }
    }
}
