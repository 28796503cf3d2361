//! Programs made of a row of bytes: the same row makes the same program.

use std::fmt::Write as _;

use ecode::Diagnostic;

const TYPES: [&str; 11] =
    ["i8", "u8", "i16", "u16", "int", "unsigned", "long", "u64", "bool", "short", "unsigned char"];
const OPERATORS: [&str; 18] =
    ["+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "&&", "||"];
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

pub struct Generator<'a> {
    bytes: std::slice::Iter<'a, u8>,
    text: String,
    /// Names that may be read, and of them those that may be written.
    read: Vec<String>,
    written: Vec<String>,
    functions: Vec<(String, usize)>,
    names: usize,
    depth: usize,
    loops: usize,
}

pub fn program(bytes: &[u8]) -> String {
    let mut generator = Generator {
        bytes: bytes.iter(),
        text: String::new(),
        read: Vec::new(),
        written: Vec::new(),
        functions: Vec::new(),
        names: 0,
        depth: 0,
        loops: 0,
    };
    generator.whole();
    generator.text
}

/// The one reason for which what is generated may not be compiled: the kernel's memory for functions.
pub fn needs_more_memory(problem: &Diagnostic) -> bool {
    problem.message.contains("bytes at a time")
}

impl Generator<'_> {
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

    fn whole(&mut self) {
        for _ in 0..1 + self.byte() % 4 {
            let (of, name, number) = (self.one_of(&TYPES), self.name("g"), self.one_of(&NUMBERS));
            let _ = writeln!(self.text, "{of} {name} = ({of}) {number};");
            self.read.push(name.clone());
            self.written.push(name);
        }
        for _ in 0..self.byte() % 3 {
            let (of, name, length) = (self.one_of(&TYPES), self.name("a"), 1 + self.byte() % 8);
            let _ = writeln!(self.text, "{of} {name}[{length}] = {{ 1, 2 }};");
            // The index of an expression comes where the @ is.
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
        let _ = writeln!(self.text, "struct s {{ u8 c; {x} x; {y} y[3]; }};\nstruct s t;");
        for member in ["t.c", "t.x", "t.y[@]"] {
            self.read.push(member.into());
            self.written.push(member.into());
        }
        for _ in 0..self.byte() % 3 {
            let parameters = self.byte() % 6;
            let (name, of) = (self.name("f"), self.one_of(&TYPES));
            self.function(&format!("{of} {name}"), parameters);
            self.functions.push((name, parameters));
        }
        self.function("on call", 2);
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
        let _ =
            writeln!(self.text, "{head}({}) {{\nchar l[2][8] = {{ \"l\", \"ocal\" }};", declared.join(", "));
        let count = 2 + self.byte() % 6;
        self.statements(count);
        let value = self.expression(3);
        let _ = writeln!(self.text, "return {value};\n}}");
        self.read.truncate(read);
        self.written.truncate(written);
    }

    fn statements(&mut self, count: usize) {
        let (read, written) = (self.read.len(), self.written.len());
        self.depth += 1;
        for _ in 0..count {
            self.statement();
        }
        self.depth -= 1;
        self.read.truncate(read);
        self.written.truncate(written);
    }

    fn statement(&mut self) {
        let kind = self.byte() % if self.depth > 3 { 6 } else { 13 };
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
                let place = self.place(true);
                let step = self.one_of(&["++", "--"]);
                let _ = writeln!(self.text, "{place}{step};");
            }
            4 | 5 => {
                let (place, update, value) = (self.place(true), self.one_of(&UPDATES), self.expression(3));
                let _ = writeln!(self.text, "{place} {update} {value};");
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
                let to = if is_number { self.place(true) } else { self.bytes() };
                let limit = self.expression(1);
                let (call, from) = match self.byte() % 3 {
                    1 => {
                        let (text, number) = (self.text(), self.expression(1));
                        let _ = writeln!(self.text, "print(\"%d|%s|%u\", {limit}, {text}, {number});");
                        return;
                    }
                    0 => ("memset", self.expression(1)),
                    _ => ("memcpy", self.bytes()),
                };
                let _ = writeln!(self.text, "{call}({to}, {from}, {limit});");
            }
            _ => {
                let leave =
                    if self.loops > 0 { self.one_of(&["break", "continue", "return 5"]) } else { "return 6" };
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
        let is_while = self.byte().is_multiple_of(3);
        self.read.push(name.clone());
        self.loops += 1;
        if is_while {
            let _ = writeln!(self.text, "{of} {name} = {rounds}; while ({name}-- > 0) {{");
        } else {
            let _ = writeln!(self.text, "for ({of} {name} = 0; {name} < {rounds}; {name}++) {{");
        }
        self.some_statements();
        let _ = writeln!(self.text, "}}");
        self.loops -= 1;
        if !is_while {
            self.read.retain(|known| *known != name);
        }
    }

    fn place(&mut self, is_written: bool) -> String {
        let names = if is_written { &self.written } else { &self.read };
        let count = names.len();
        let at = self.byte() % count;
        let name = if is_written { self.written[at].clone() } else { self.read[at].clone() };
        if !name.contains('@') {
            return name;
        }
        let index = if self.byte().is_multiple_of(4) {
            self.expression(1)
        } else {
            format!("{} & 3", self.expression(1))
        };
        // A constant beyond the end would be refused, as it should be.
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

    fn text(&mut self) -> String {
        match self.byte() % 4 {
            0 => self.one_of(&["\"\"", "\"a\"", "\"ab\"", "\"abcdefghij\""]).into(),
            1 => format!("(({}) ? \"ab\" : \"x\")", self.expression(1)),
            _ => self.bytes(),
        }
    }

    fn expression(&mut self, depth: usize) -> String {
        match self.byte() % if depth == 0 { 4 } else { 13 } {
            0 => self.one_of(&NUMBERS).into(),
            1..=3 if depth == 0 => {
                let plain: Vec<_> = self.read.iter().filter(|name| !name.contains('@')).cloned().collect();
                plain[self.byte() % plain.len()].clone()
            }
            1..=3 => self.place(false),
            4 => format!("{}({})", self.one_of(&["-", "~", "!", "+"]), self.expression(depth - 1)),
            5 => format!("({}) ({})", self.one_of(&TYPES), self.expression(depth - 1)),
            6 => {
                let [condition, yes, no] = std::array::from_fn(|_| self.expression(depth - 1));
                format!("(({condition}) ? ({yes}) : ({no}))")
            }
            7 if !self.functions.is_empty() && self.loops == 0 => {
                let at = self.byte() % self.functions.len();
                let (name, parameters) = self.functions[at].clone();
                let arguments: Vec<_> = (0..parameters).map(|_| self.expression(1)).collect();
                format!("{name}({})", arguments.join(", "))
            }
            8 => {
                let (place, step) = (self.place(true), self.one_of(&["++", "--"]));
                if self.byte().is_multiple_of(2) {
                    format!("({place}{step})")
                } else {
                    format!("({step}{place})")
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
            _ => {
                let (left, right) = (self.expression(depth - 1), self.expression(depth - 1));
                format!("({left} {} {right})", self.one_of(&OPERATORS))
            }
        }
    }
}
