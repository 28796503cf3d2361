//! Parses types, declarations and the items of a program.

use super::{MAX_DEPTH, Parsed, Parser};
use crate::ast::{
    BaseType, Declaration, Declarator, Designator, Function, Ident, Initializer, Item, Parameter,
    TypeName,
};
use crate::diagnostic::{Diagnostic, Span};
use crate::foreign;
use crate::token::{Keyword, TokenKind, type_of_c_header};
use crate::types::{Integer, U64};

impl Parser<'_> {
    /// Whether a declaration or a type begins this number of tokens ahead.
    pub(super) fn is_type(&self, ahead: usize) -> bool {
        use Keyword::*;
        matches!(
            self.ahead(ahead),
            TokenKind::Keyword(
                Bool | Char
                    | Const
                    | Enum
                    | I8
                    | I16
                    | I32
                    | I64
                    | Int
                    | Long
                    | Short
                    | Signed
                    | Static
                    | String
                    | Struct
                    | U8
                    | U16
                    | U32
                    | U64
                    | Unsigned
                    | Void
            )
        ) || self.is_type_of_c(ahead)
    }

    /// Whether a type of C begins this number of tokens ahead. C's type names are ordinary names in
    /// E-code, so they are types only if another name follows.
    fn is_type_of_c(&self, ahead: usize) -> bool {
        self.is_of_c(self.ahead(ahead)) && matches!(self.ahead(ahead + 1), TokenKind::Name(_))
    }

    pub(super) fn type_name(&mut self) -> Parsed<TypeName> {
        let from = self.span();
        let base = self.base_type()?;
        if self.is_at("*") {
            let problem = Diagnostic::error(self.span(), "E-code has no pointers");
            return self.fault(problem.help(
                "use an array or a struct; `read_user` and `read_user_text` read what an argument \
                points to",
            ));
        }
        Ok(TypeName { base, span: self.since(&from) })
    }

    fn base_type(&mut self) -> Parsed<BaseType> {
        let from = self.span();
        let integer = |bits, is_signed| BaseType::Integer(Integer::short(bits, is_signed));
        if self.is_of_c(self.kind()) {
            return Ok(self.of_c());
        }
        let TokenKind::Keyword(keyword) = *self.kind() else { return self.unexpected("a type") };
        let simple = match keyword {
            Keyword::Void => BaseType::Void,
            Keyword::Bool => BaseType::Bool,
            Keyword::String => BaseType::String,
            Keyword::I8 => integer(8, true),
            Keyword::I16 => integer(16, true),
            Keyword::I32 => integer(32, true),
            Keyword::I64 => integer(64, true),
            Keyword::U8 => integer(8, false),
            Keyword::U16 => integer(16, false),
            Keyword::U32 => integer(32, false),
            Keyword::U64 => integer(64, false),
            Keyword::Struct => {
                self.step();
                if self.is_at("{") {
                    let problem = Diagnostic::error(from, "a struct needs a name");
                    return self.fault(
                        problem
                            .help("declare it in a declaration of its own: `struct NAME { … };`"),
                    );
                }
                return Ok(BaseType::Struct(self.name("a struct")?));
            }
            Keyword::Enum => {
                self.step();
                return Ok(BaseType::Enum(self.name("an enum")?));
            }
            _ => return self.integer_words(&from),
        };
        self.step();
        Ok(simple)
    }

    /// Reports a type of C's headers, and continues with some type in its place.
    fn of_c(&mut self) -> BaseType {
        if let TokenKind::Name(name) = self.kind()
            && let Some(own) = type_of_c_header(name)
        {
            let problem = Diagnostic::error(self.span(), format!("there is no type `{name}`"));
            self.problems.push(problem.help(format!("write `{own}`")));
        }
        self.step();
        BaseType::Integer(U64)
    }

    /// `unsigned long int`, in any order.
    fn integer_words(&mut self, from: &Span) -> Parsed<BaseType> {
        let mut words = Vec::new();
        while let TokenKind::Keyword(
            word @ (Keyword::Char
            | Keyword::Short
            | Keyword::Int
            | Keyword::Long
            | Keyword::Signed
            | Keyword::Unsigned),
        ) = *self.kind()
        {
            words.push(word);
            self.step();
        }
        if words.is_empty() {
            return self.unexpected("a type");
        }
        let count = |word| words.iter().filter(|at| **at == word).count();
        let [char, short, int, long] =
            [Keyword::Char, Keyword::Short, Keyword::Int, Keyword::Long].map(count);
        let [signed, unsigned] = [Keyword::Signed, Keyword::Unsigned].map(count);
        let bits = match (char, short, int, long) {
            (1, 0, 0, 0) => 8,
            (0, 1, 0 | 1, 0) => 16,
            (0, 0, 0 | 1, 0) => 32,
            (0, 0, 0 | 1, 1 | 2) => 64,
            _ => 0,
        };
        if bits == 0 || signed + unsigned > 1 {
            let problem = Diagnostic::error(self.since(from), "these words do not form a type");
            return self.fault(
                problem.help("integers are char, short, int and long, and each can be unsigned"),
            );
        }
        Ok(BaseType::Integer(Integer::c(bits, unsigned == 0)))
    }

    pub(super) fn declaration(&mut self) -> Parsed<Declaration> {
        let (mut is_static, mut is_const) = (false, false);
        loop {
            if self.takes_keyword(Keyword::Static) {
                is_static = true;
            } else if self.takes_keyword(Keyword::Const) {
                is_const = true;
            } else {
                break;
            }
        }
        let type_name = self.type_name()?;
        is_const |= self.takes_keyword(Keyword::Const);
        let mut declarators = Vec::new();
        loop {
            let name = self.name("a variable")?;
            declarators.push(self.declarator(name)?);
            if !self.takes(",") {
                break;
            }
        }
        let is_of_bits = self.is_at(":")
            && [",", ";"].iter().any(|mark| *self.ahead(2) == TokenKind::Punctuator(mark));
        if is_of_bits {
            let problem = Diagnostic::error(self.span(), "E-code has no bit fields");
            return self.fault(
                problem.help("use the bits of a number: `flags >> 3 & 7` is three of them"),
            );
        }
        self.expect(";", "this declaration")?;
        Ok(Declaration { is_static, is_const, type_name, declarators })
    }

    fn declarator(&mut self, name: Ident) -> Parsed<Declarator> {
        let mut lengths = Vec::new();
        loop {
            let opened = self.span();
            if !self.takes("[") {
                break;
            }
            lengths.push(if self.is_at("]") { None } else { Some(self.conditional()?) });
            self.close("]", &opened)?;
        }
        let initializer = if self.takes("=") { Some(self.initializer()?) } else { None };
        Ok(Declarator { name, lengths, initializer })
    }

    fn initializer(&mut self) -> Parsed<Initializer> {
        if !self.is_at("{") {
            return self.assignment().map(Initializer::One);
        }
        let list = self.within(Self::initializer_list);
        if list.is_err() {
            self.skip_braces();
        }
        list
    }

    fn initializer_list(&mut self) -> Parsed<Initializer> {
        let opened = self.span();
        self.step();
        let (mut list, mut is_inner) = (Vec::new(), false);
        while !self.is_at("}") {
            let from = self.span();
            let mut designators = self.designators()?.into_iter();
            let first = designators.next();
            if is_inner && first.is_none() {
                let problem = Diagnostic::error(
                    from,
                    "this value needs a designator of its own, because the designator of the \
                    previous value names a part of a member or element",
                );
                return self.fault(problem.help(
                    "in C, this value would go to the next part of the same member or element",
                ));
            }
            is_inner = designators.len() > 0;
            let value = self.initializer()?;
            let within = |value, designator| {
                Initializer::Within(Box::new((Some(designator), value)), from.clone())
            };
            list.push((first, designators.rfold(value, within)));
            if !self.takes(",") {
                break;
            }
        }
        self.close("}", &opened)?;
        Ok(Initializer::List(list, self.since(&opened)))
    }

    /// Skips a faulty initializer up to and including its closing brace, or up to the `;` if the
    /// brace is missing. A brace that is not skipped would be taken for the end of a block.
    fn skip_braces(&mut self) {
        let mut open = 0_usize;
        loop {
            match self.kind() {
                TokenKind::End | TokenKind::Punctuator(";") => return,
                TokenKind::Punctuator("{") => open += 1,
                TokenKind::Punctuator("}") if open == 0 => return self.step(),
                TokenKind::Punctuator("}") => open -= 1,
                _ => {}
            }
            self.step();
        }
    }

    /// `.from.x[2] =`
    fn designators(&mut self) -> Parsed<Vec<Designator>> {
        let mut designators = Vec::new();
        loop {
            let opened = self.span();
            if designators.len() == usize::from(MAX_DEPTH) {
                return self.too_deep(opened);
            }
            if self.takes(".") {
                designators.push(Designator::Member(self.name("a member")?));
            } else if self.takes("[") {
                designators.push(Designator::Index(self.conditional()?));
                self.close("]", &opened)?;
            } else {
                break;
            }
        }
        if !designators.is_empty() {
            self.expect("=", "this")?;
        }
        Ok(designators)
    }

    pub(super) fn item(&mut self) -> Parsed<Option<Item>> {
        if self.takes(";") {
            return Ok(None);
        }
        match *self.kind() {
            TokenKind::Keyword(Keyword::On) => {
                self.handler().map(|handler| Some(Item::Handler(handler)))
            }
            TokenKind::Keyword(Keyword::Map) => self.map().map(Some),
            TokenKind::Keyword(Keyword::Struct)
                if matches!(self.ahead(2), TokenKind::Punctuator("{" | ";")) =>
            {
                self.structure().map(Some)
            }
            TokenKind::Keyword(Keyword::Enum)
                if *self.ahead(1) == TokenKind::Punctuator("{")
                    || *self.ahead(2) == TokenKind::Punctuator("{") =>
            {
                self.enumeration().map(Some)
            }
            _ if self.is_type(0) => self.variables_or_function().map(Some),
            _ => self.unexpected_item(),
        }
    }

    /// Reports something that does not begin an item. It may begin one in another language, or be a
    /// handler without `on`.
    fn unexpected_item<T>(&mut self) -> Parsed<T> {
        const WANTED: &str = "a declaration, a function or `on`";
        let TokenKind::Name(name) = self.kind() else { return self.unexpected(WANTED) };
        let known = foreign::hook(name).or_else(|| foreign::declaration(name));
        let help = match (self.ahead(1), self.ahead(2), self.ahead(3), self.ahead(4)) {
            _ if known.is_some() => known.map(String::from),
            (
                TokenKind::Punctuator(":"),
                TokenKind::Name(group),
                TokenKind::Punctuator(":"),
                TokenKind::Name(event),
            ) => {
                Some(format!("begin a handler with `on`: `on {name}(\"{group}:{event}\") {{ … }}`"))
            }
            (TokenKind::Punctuator("{" | ":" | "/"), ..) => {
                Some(format!("begin a handler with `on`: `on {name} {{ … }}`"))
            }
            (TokenKind::Punctuator("("), ..) => {
                Some("begin a handler with `on`, and a function with the type of its result".into())
            }
            _ => None,
        };
        let Some(help) = help.filter(|_| self.reject_c_keyword().is_ok()) else {
            return self.unexpected(WANTED);
        };
        let problem = Diagnostic::error(self.span(), format!("expected {WANTED}, found `{name}`"));
        self.fault(problem.help(help))
    }

    fn variables_or_function(&mut self) -> Parsed<Item> {
        // A parenthesis after the declared name makes it a function. The declared name is the first
        // name that does not belong to a struct or an enum.
        let mut ahead = 0;
        while let TokenKind::Keyword(keyword) = self.ahead(ahead) {
            ahead += 1 + usize::from(matches!(keyword, Keyword::Struct | Keyword::Enum));
        }
        ahead += usize::from(self.is_type_of_c(ahead));
        if *self.ahead(ahead + 1) != TokenKind::Punctuator("(") {
            return self.declaration().map(Item::Variables);
        }
        self.takes_keyword(Keyword::Static);
        self.takes_keyword(Keyword::Const);
        let result = self.type_name()?;
        let name = self.name("a function")?;
        let parameters = self.parameters()?;
        if self.takes(";") {
            return Ok(Item::Function(Function { result, name, parameters, body: None }));
        }
        self.are_named(&parameters)?;
        let body = self.block()?;
        Ok(Item::Function(Function { result, name, parameters, body: Some(body) }))
    }

    pub(super) fn parameters(&mut self) -> Parsed<Vec<Parameter>> {
        let opened = self.span();
        self.expect("(", "this name")?;
        let mut parameters = Vec::new();
        if self.takes(")") {
            return Ok(parameters);
        }
        if *self.kind() == TokenKind::Keyword(Keyword::Void)
            && *self.ahead(1) == TokenKind::Punctuator(")")
        {
            self.step();
            self.step();
            return Ok(parameters);
        }
        loop {
            let mut is_const = self.takes_keyword(Keyword::Const);
            let type_name = self.type_name()?;
            is_const |= self.takes_keyword(Keyword::Const);
            let name = if [",", ")", "["].iter().any(|mark| self.is_at(mark)) {
                Ident { text: String::new(), span: type_name.span.clone() }
            } else {
                self.name("a parameter")?
            };
            if self.is_at("[") {
                let problem = Diagnostic::error(self.span(), "a parameter cannot be an array");
                return self.fault(problem.help("make the array a global variable"));
            }
            parameters.push(Parameter { is_const, type_name, name });
            if !self.takes(",") {
                self.close(")", &opened)?;
                return Ok(parameters);
            }
        }
    }

    /// Checks that all parameters of a function with a body have names.
    pub(super) fn are_named(&mut self, parameters: &[Parameter]) -> Parsed<()> {
        let Some(unnamed) = parameters.iter().find(|parameter| parameter.name.text.is_empty())
        else {
            return Ok(());
        };
        let problem = Diagnostic::error(unnamed.name.span.clone(), "this parameter has no name");
        self.fault(
            problem.help("only a prototype, without a body, may leave out names of parameters"),
        )
    }

    fn structure(&mut self) -> Parsed<Item> {
        self.step();
        let name = self.name("a struct")?;
        if self.is_at(";") {
            let problem =
                Diagnostic::error(name.span, "a struct must be declared with its members");
            return self
                .fault(problem.help("remove this, and declare the struct before its first use"));
        }
        let opened = self.span();
        self.step();
        let mut members = Vec::new();
        while self.is_type(0) {
            members.push(self.declaration()?);
        }
        if matches!(self.kind(), TokenKind::Name(_)) {
            return self.unexpected("the type of a member");
        }
        self.close("}", &opened)?;
        self.structs.push(name.text.clone());
        if matches!(self.kind(), TokenKind::Name(_)) && self.declaration_hint().is_none() {
            let help = format!("declare its variables separately: `struct {} …;`", name.text);
            let problem = self.missing(";", "this struct").help(help);
            return self.fault(problem);
        }
        self.expect(";", "this struct")?;
        Ok(Item::Struct { name, members })
    }

    fn enumeration(&mut self) -> Parsed<Item> {
        self.step();
        let name = if self.is_at("{") { None } else { Some(self.name("an enum")?) };
        let opened = self.span();
        self.step();
        let mut members = Vec::new();
        while !self.is_at("}") {
            let name = self.name("a constant")?;
            let value = if self.takes("=") { Some(self.conditional()?) } else { None };
            members.push((name, value));
            if !self.takes(",") {
                break;
            }
        }
        self.close("}", &opened)?;
        if let (TokenKind::Name(_), Some(name)) = (self.kind(), &name) {
            let help = format!("declare its variables separately: `enum {} …;`", name.text);
            let problem = self.missing(";", "this enum").help(help);
            return self.fault(problem);
        }
        self.expect(";", "this enum")?;
        Ok(Item::Enum { name, members })
    }

    /// `map<u32, u64> hits[1024];`
    fn map(&mut self) -> Parsed<Item> {
        self.step();
        self.expect("<", "`map`")?;
        let key = self.type_of_entries()?;
        self.expect(",", "the type of the keys")?;
        let value = self.type_of_entries()?;
        if self.is_at(",") {
            let problem = self.missing(">", "the type of the values");
            return self.fault(problem.help(foreign::MAP_FORM));
        }
        self.expect(">", "the type of the values")?;
        let name = self.name("a map")?;
        let opened = self.span();
        if !self.takes("[") {
            let problem = self.missing("[", "the name of a map");
            return self.fault(problem.help(foreign::MAP_FORM));
        }
        let length = self.conditional()?;
        self.close("]", &opened)?;
        self.expect(";", "this map")?;
        Ok(Item::Map { name, key, value, length })
    }

    fn type_of_entries(&mut self) -> Parsed<TypeName> {
        let type_name = self.type_name()?;
        if self.is_at("[") {
            let problem =
                Diagnostic::error(self.span(), "a map cannot have arrays as keys or values");
            return self.fault(
                problem.help("put the array into a struct: `struct text { char bytes[16]; };`"),
            );
        }
        Ok(type_name)
    }
}
