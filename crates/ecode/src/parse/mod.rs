//! Words into a program as it is written.

mod expressions;
mod items;
mod statements;

use crate::ast::{Item, Name};
use crate::diagnostic::{Diagnostic, MOST, Span};
use crate::token::{ABSENT, Keyword, Kind, Token, own_type};

/// Expressions, statements and initializers within each other. Each takes some hundred bytes of the compiler's stack in each of its
/// passes.
pub const MOST_DEPTH: u16 = 128;

/// The problem has been told of.
struct Faulty;

type Parsed<T> = Result<T, Faulty>;

pub fn parse(tokens: &[Token], problems: &mut Vec<Diagnostic>) -> Vec<Item> {
    let (structs, typedefs) = (Vec::new(), Vec::new());
    let mut parser = Parser { tokens, at: 0, depth: 0, is_too_deep: false, structs, typedefs, problems };
    let mut items = Vec::new();
    while *parser.kind() != Kind::End && parser.problems.len() < MOST && !parser.is_too_deep {
        let from = parser.at;
        match parser.item() {
            Ok(Some(item)) => items.push(item),
            Ok(None) => {}
            Err(Faulty) => {
                parser.skip_item(from);
                parser.note_typedef(from);
            }
        }
    }
    items
}

struct Parser<'a> {
    /// With an end.
    tokens: &'a [Token],
    at: usize,
    depth: u16,
    /// What comes after that makes no sense.
    is_too_deep: bool,
    /// Their names, up to here.
    structs: Vec<String>,
    /// Names that C would know as types, and of which was told where they were to become such.
    typedefs: Vec<String>,
    problems: &'a mut Vec<Diagnostic>,
}

impl Parser<'_> {
    fn token(&self) -> &Token {
        &self.tokens[self.at]
    }

    fn kind(&self) -> &Kind {
        &self.token().kind
    }

    fn ahead(&self, by: usize) -> &Kind {
        &self.tokens[(self.at + by).min(self.tokens.len() - 1)].kind
    }

    fn span(&self) -> Span {
        self.token().span.clone()
    }

    fn since(&self, from: &Span) -> Span {
        let last = self.at.checked_sub(1).map_or(0, |at| self.tokens[at].span.end);
        from.start..last.max(from.end)
    }

    fn step(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn is_at(&self, mark: &str) -> bool {
        matches!(self.kind(), Kind::Mark(at) if *at == mark)
    }

    fn takes(&mut self, mark: &str) -> bool {
        let is_there = self.is_at(mark);
        if is_there {
            self.step();
        }
        is_there
    }

    fn takes_keyword(&mut self, keyword: Keyword) -> bool {
        let is_there = *self.kind() == Kind::Keyword(keyword);
        if is_there {
            self.step();
        }
        is_there
    }

    fn fault<T>(&mut self, problem: Diagnostic) -> Parsed<T> {
        self.problems.push(problem);
        Err(Faulty)
    }

    fn unexpected<T>(&mut self, wanted: &str) -> Parsed<T> {
        self.refuse_absent()?;
        let found = self.kind().told();
        let problem = Diagnostic::error(self.span(), format!("{wanted} was expected here, and not {found}"));
        self.fault(match self.kind() {
            Kind::Name(name) => self.meant(problem, name),
            _ => problem,
        })
    }

    /// Words that C has, and E-code has not, have been told of when they were read.
    fn refuse_absent(&self) -> Parsed<()> {
        match self.kind() {
            Kind::Name(name) if ABSENT.iter().any(|(word, _)| word == name) => Err(Faulty),
            _ => Ok(()),
        }
    }

    /// `typedef int number;`
    fn note_typedef(&mut self, from: usize) {
        let is_typedef = matches!(&self.tokens[from].kind, Kind::Name(name) if name == "typedef");
        if let Some(Token { kind: Kind::Name(name), .. }) = self.at.checked_sub(2).map(|at| &self.tokens[at])
            && is_typedef
        {
            self.typedefs.push(name.clone());
        }
    }

    /// Whether C's headers, or a `typedef`, would make a type of it.
    fn is_of_c(&self, kind: &Kind) -> bool {
        matches!(kind, Kind::Name(name) if own_type(name).is_some() || self.typedefs.contains(name))
    }

    /// Which word a name is perhaps meant to be, where it cannot be a name.
    fn meant(&self, problem: Diagnostic, name: &str) -> Diagnostic {
        if self.structs.iter().any(|known| known == name) {
            return problem.help(format!("write `struct {name}`"));
        }
        if let Some(own) = own_type(name) {
            return problem.help(format!("write `{own}`"));
        }
        if *self.ahead(1) == Kind::Mark("<") {
            return problem.help("maps are declared so: `map<KEY, VALUE> name[ENTRIES];`");
        }
        problem.near(name, Keyword::ALL.iter().map(|(text, _)| *text))
    }

    /// What is to close something that was opened is told of with where that was.
    fn expect(&mut self, mark: &'static str, after: &str) -> Parsed<()> {
        if self.takes(mark) {
            return Ok(());
        }
        let problem = self.missing(mark, after);
        self.fault(problem)
    }

    fn missing(&self, mark: &str, after: &str) -> Diagnostic {
        // A mark that is left away belongs to the end of the line before.
        let end = self.at.checked_sub(1).map_or(0, |at| self.tokens[at].span.end);
        let problem = Diagnostic::error(end..end, format!("`{mark}` is missing after {after}"));
        let found = self.kind().told();
        problem.label(format!("here, before {found}"))
    }

    fn close(&mut self, mark: &'static str, opened: &Span) -> Parsed<()> {
        if self.takes(mark) {
            return Ok(());
        }
        let found = self.kind().told();
        let problem = Diagnostic::error(self.span(), format!("`{mark}` was expected here, and not {found}"));
        self.fault(problem.other(opened.clone(), "for what is opened here"))
    }

    fn name(&mut self, of: &str) -> Parsed<Name> {
        match self.kind() {
            Kind::Name(text) => {
                let name = Name { text: text.clone(), span: self.span() };
                self.step();
                Ok(name)
            }
            Kind::Keyword(keyword) => {
                let message = format!("`{}` is a word of the language, and no name for {of}", keyword.text());
                let problem = Diagnostic::error(self.span(), message);
                self.fault(problem.help("choose another name"))
            }
            _ => self.unexpected(&format!("the name of {of}")),
        }
    }

    /// One level down, while `parse` works.
    fn within<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MOST_DEPTH {
            return self.too_deep(self.span());
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn too_deep<T>(&mut self, span: Span) -> Parsed<T> {
        if self.is_too_deep {
            return Err(Faulty);
        }
        self.is_too_deep = true;
        let message = format!("more than {MOST_DEPTH} expressions or statements are within each other here");
        self.fault(
            Diagnostic::error(span, message).help("split it: name a part of it by a variable or a function"),
        )
    }

    /// To behind the next `;`, or the next block, that belongs to no inner one.
    fn skip_item(&mut self, from: usize) {
        let mut open = 0_usize;
        self.at = from;
        loop {
            match self.kind() {
                Kind::End => return,
                Kind::Mark("{") => open += 1,
                Kind::Mark("}") => {
                    open = open.saturating_sub(1);
                    if open == 0 && !matches!(self.ahead(1), Kind::Mark(",") | Kind::Name(_)) {
                        self.step();
                        self.takes(";");
                        return;
                    }
                }
                Kind::Mark(";") if open == 0 => {
                    self.step();
                    return;
                }
                _ => {}
            }
            self.step();
        }
    }
}
