//! Parses tokens into a syntax tree.

mod expressions;
mod handlers;
mod items;
mod statements;

use crate::ast::{Ident, Item};
use crate::diagnostic::{Diagnostic, ErrorReported, MAX_DIAGNOSTICS, Span};
use crate::foreign;
use crate::token::{Keyword, Token, TokenKind, UNSUPPORTED_C_KEYWORDS, type_of_c_header};

/// The maximum nesting depth of expressions, statements and initializers. Each level takes some
/// hundred bytes of stack in each pass of the compiler.
pub const MAX_DEPTH: u16 = 128;

type Parsed<T> = Result<T, ErrorReported>;

pub fn parse(tokens: &[Token], problems: &mut Vec<Diagnostic>) -> Vec<Item> {
    let (structs, typedefs) = (Vec::new(), Vec::new());
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
        else_ifs: 0,
        is_too_deep: false,
        structs,
        typedefs,
        problems,
    };
    let mut items = Vec::new();
    while *parser.kind() != TokenKind::End
        && parser.problems.len() < MAX_DIAGNOSTICS
        && !parser.is_too_deep
    {
        let from = parser.at;
        match parser.item() {
            Ok(Some(item)) => items.push(item),
            Ok(None) => {}
            Err(ErrorReported) => {
                parser.skip_item(from);
                parser.record_typedef(from);
            }
        }
    }
    items
}

struct Parser<'a> {
    /// The tokens, with an end token.
    tokens: &'a [Token],
    at: usize,
    depth: u16,
    /// How many of the levels are `else if`.
    else_ifs: u16,
    /// The nesting was too deep, so the rest is not parsed.
    is_too_deep: bool,
    /// The names of the structs that are declared so far.
    structs: Vec<String>,
    /// Names that a `typedef` would make types in C. The `typedef` itself has been reported.
    typedefs: Vec<String>,
    problems: &'a mut Vec<Diagnostic>,
}

impl Parser<'_> {
    fn token(&self) -> &Token {
        &self.tokens[self.at]
    }

    fn kind(&self) -> &TokenKind {
        &self.token().kind
    }

    fn ahead(&self, by: usize) -> &TokenKind {
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
        matches!(self.kind(), TokenKind::Punctuator(at) if *at == mark)
    }

    /// Whether the previous token is this punctuator, directly before the present one.
    fn follows(&self, mark: &'static str) -> bool {
        self.at.checked_sub(1).is_some_and(|before| {
            let before = &self.tokens[before];
            before.kind == TokenKind::Punctuator(mark) && before.span.end == self.span().start
        })
    }

    fn takes(&mut self, mark: &str) -> bool {
        let is_there = self.is_at(mark);
        if is_there {
            self.step();
        }
        is_there
    }

    fn takes_keyword(&mut self, keyword: Keyword) -> bool {
        let is_there = *self.kind() == TokenKind::Keyword(keyword);
        if is_there {
            self.step();
        }
        is_there
    }

    fn fault<T>(&mut self, problem: Diagnostic) -> Parsed<T> {
        self.problems.push(problem);
        Err(ErrorReported)
    }

    fn unexpected<T>(&mut self, wanted: &str) -> Parsed<T> {
        self.reject_c_keyword()?;
        let found = self.kind().describe();
        let problem = Diagnostic::error(self.span(), format!("expected {wanted}, found {found}"));
        self.fault(match self.kind() {
            TokenKind::Name(name) => self.with_keyword_hint(problem, name),
            _ => problem,
        })
    }

    /// Fails at a keyword of C that E-code does not have. The lexer has reported it.
    fn reject_c_keyword(&self) -> Parsed<()> {
        match self.kind() {
            TokenKind::Name(name)
                if UNSUPPORTED_C_KEYWORDS.iter().any(|(word, _)| word == name) =>
            {
                Err(ErrorReported)
            }
            _ => Ok(()),
        }
    }

    /// `typedef int number;`
    fn record_typedef(&mut self, from: usize) {
        let is_typedef =
            matches!(&self.tokens[from].kind, TokenKind::Name(name) if name == "typedef");
        if let Some(Token { kind: TokenKind::Name(name), .. }) =
            self.at.checked_sub(2).map(|at| &self.tokens[at])
            && is_typedef
        {
            self.typedefs.push(name.clone());
        }
    }

    /// Whether C's headers or a `typedef` make the name a type.
    fn is_of_c(&self, kind: &TokenKind) -> bool {
        let TokenKind::Name(name) = kind else { return false };
        type_of_c_header(name).is_some() || self.typedefs.contains(name)
    }

    /// Adds a hint at what the author may have meant by a name where no name is possible.
    fn with_keyword_hint(&self, problem: Diagnostic, name: &str) -> Diagnostic {
        if self.structs.iter().any(|known| known == name) {
            return problem.help(format!("write `struct {name}`"));
        }
        if let Some(own) = type_of_c_header(name) {
            return problem.help(format!("write `{own}`"));
        }
        if *self.ahead(1) == TokenKind::Punctuator("<") {
            return problem.help(foreign::MAP_FORM);
        }
        problem.with_suggestion(name, Keyword::ALL.iter().map(|(text, _)| *text))
    }

    /// Takes the expected punctuator, or reports that it is missing.
    fn expect(&mut self, mark: &'static str, after: &str) -> Parsed<()> {
        if self.takes(mark) {
            return Ok(());
        }
        self.reject_colon_assignment()?;
        self.reject_word_operator()?;
        let problem = self.missing(mark, after);
        self.fault(problem.help_if(self.declaration_hint()))
    }

    /// What to write instead of a word here that other languages have outside of functions.
    fn declaration_hint(&self) -> Option<&'static str> {
        match self.kind() {
            TokenKind::Name(name) => foreign::declaration(name),
            _ => None,
        }
    }

    /// Fails at `:=`.
    fn reject_colon_assignment(&mut self) -> Parsed<()> {
        if !self.is_at(":") || *self.ahead(1) != TokenKind::Punctuator("=") {
            return Ok(());
        }
        let from = self.span();
        self.step();
        let problem = Diagnostic::error(from.start..self.span().end, "E-code has no `:=`");
        self.fault(problem.help("write `=`; a declaration begins with a type: `u64 x = 3;`"))
    }

    /// Fails at `key in map` and, after `not` as a variable, at `not x`.
    fn reject_word_operator(&mut self) -> Parsed<()> {
        let before = &self.tokens[self.at.saturating_sub(1)];
        let is_not = matches!(&before.kind, TokenKind::Name(word) if word == "not");
        let Token { kind: TokenKind::Name(word), span } =
            (if is_not { before } else { self.token() })
        else {
            return Ok(());
        };
        let Some(hint) = foreign::operator(word) else { return Ok(()) };
        let problem = Diagnostic::error(span.clone(), format!("E-code has no `{word}`"));
        self.fault(problem.help(hint))
    }

    fn missing(&self, mark: &str, after: &str) -> Diagnostic {
        // A missing punctuator belongs after the previous token.
        let end = self.at.checked_sub(1).map_or(0, |at| self.tokens[at].span.end);
        let problem = Diagnostic::error(end..end, format!("`{mark}` is missing after {after}"));
        let found = self.kind().describe();
        problem.label(format!("before {found}"))
    }

    fn close(&mut self, mark: &'static str, opened: &Span) -> Parsed<()> {
        if self.takes(mark) {
            return Ok(());
        }
        self.reject_word_operator()?;
        let found = self.kind().describe();
        let problem = Diagnostic::error(self.span(), format!("expected `{mark}`, found {found}"));
        self.fault(problem.other(opened.clone(), "to close this"))
    }

    fn name(&mut self, of: &str) -> Parsed<Ident> {
        match self.kind() {
            TokenKind::Name(text) => {
                let name = Ident { text: text.clone(), span: self.span() };
                self.step();
                Ok(name)
            }
            TokenKind::Keyword(keyword) => {
                let message =
                    format!("`{}` is a keyword and cannot be the name of {of}", keyword.text());
                let problem = Diagnostic::error(self.span(), message);
                self.fault(problem.help("choose another name"))
            }
            _ => self.unexpected(&format!("the name of {of}")),
        }
    }

    /// Runs `parse` one nesting level deeper.
    fn within<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            return self.too_deep(self.span());
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn too_deep<T>(&mut self, span: Span) -> Parsed<T> {
        if self.is_too_deep {
            return Err(ErrorReported);
        }
        self.is_too_deep = true;
        let message =
            format!("expressions or statements are nested more than {MAX_DEPTH} deep here");
        let help = if self.else_ifs > MAX_DEPTH / 2 {
            "each `else if` is one level: use `switch`, or several `if` without `else` whose \
            blocks end with `return`"
        } else {
            "split it: move a part of it to a variable or a function"
        };
        self.fault(Diagnostic::error(span, message).help(help))
    }

    /// Skips up to and including the next `;` or block at the outer level.
    fn skip_item(&mut self, from: usize) {
        let mut open = 0_usize;
        self.at = from;
        loop {
            match self.kind() {
                TokenKind::End => return,
                TokenKind::Punctuator("{") => open += 1,
                TokenKind::Punctuator("}") => {
                    open = open.saturating_sub(1);
                    if open == 0
                        && !matches!(self.ahead(1), TokenKind::Punctuator(",") | TokenKind::Name(_))
                    {
                        self.step();
                        self.takes(";");
                        return;
                    }
                }
                TokenKind::Punctuator(";") if open == 0 => {
                    self.step();
                    return;
                }
                _ => {}
            }
            self.step();
        }
    }
}
