//! Parses handlers.

use super::{Parsed, Parser};
use crate::ast::{Handler, Ident, Selected};
use crate::diagnostic::Diagnostic;
use crate::foreign;
use crate::hooks::CALL;
use crate::token::TokenKind;

impl Parser<'_> {
    pub(super) fn handler(&mut self) -> Parsed<Handler> {
        self.step();
        let hook = match self.kind() {
            // A keyword may be the name of a hook elsewhere.
            TokenKind::Keyword(keyword) => {
                let hook = Ident { text: keyword.text().into(), span: self.span() };
                self.step();
                hook
            }
            _ => self.name("a hook")?,
        };
        let (mut selected, mut parameters) = (Vec::new(), Vec::new());
        if hook.text == CALL && self.is_at("(") {
            parameters = self.parameters()?;
            self.are_named(&parameters)?;
        } else if self.is_at("(") {
            selected = self.selected()?;
        }
        self.reject_probe_syntax(&hook)?;
        let body = self.block()?;
        Ok(Handler { hook, selected, parameters, body })
    }

    /// Fails at `on tracepoint:sched:sched_switch`, `on enter read` and `on enter /pid() == 1/`.
    fn reject_probe_syntax(&mut self, hook: &Ident) -> Parsed<()> {
        let help = match (self.kind(), self.ahead(1), self.ahead(2), self.ahead(3)) {
            (TokenKind::Punctuator(":"), ..) if foreign::hook(&hook.text).is_some() => {
                let message = format!("there is no hook `{}`", hook.text);
                let problem = Diagnostic::error(hook.span.clone(), message);
                return self.fault(problem.help_if(foreign::hook(&hook.text)));
            }
            (
                TokenKind::Punctuator(":"),
                TokenKind::Name(group),
                TokenKind::Punctuator(":"),
                TokenKind::Name(event),
            ) => format!(
                "write what the handler selects in parentheses: `on {}(\"{group}:{event}\")`",
                hook.text
            ),
            (TokenKind::Punctuator(":"), ..) => {
                format!("write what the handler selects in parentheses: `on {}(…)`", hook.text)
            }
            (TokenKind::Name(name), TokenKind::Punctuator("{"), ..) => {
                format!("write what the handler selects in parentheses: `on {}({name})`", hook.text)
            }
            (TokenKind::Punctuator("/" | "/="), ..) => {
                "test the condition within the handler: `if (…) { … }`".into()
            }
            _ => return Ok(()),
        };
        let problem = self.missing("{", "this");
        self.fault(problem.help(help))
    }

    /// A name, or a pattern such as `open*`, which the checker reports. Stops at its last token.
    fn pattern(&mut self) -> String {
        let mut text = String::new();
        loop {
            match self.kind() {
                TokenKind::Name(name) => text += name,
                _ => text.push('*'),
            }
            let is_adjacent = self.tokens[self.at].span.end
                == self.tokens[(self.at + 1).min(self.tokens.len() - 1)].span.start;
            if !is_adjacent
                || !matches!(self.ahead(1), TokenKind::Name(_) | TokenKind::Punctuator("*"))
            {
                return text;
            }
            self.step();
        }
    }

    fn selected(&mut self) -> Parsed<Vec<Selected>> {
        let opened = self.span();
        self.step();
        let mut selected = Vec::new();
        if self.takes(")") {
            return Ok(selected);
        }
        loop {
            let span = self.span();
            let text = match self.kind() {
                TokenKind::Name(_) | TokenKind::Punctuator("*") => self.pattern(),
                TokenKind::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                TokenKind::Number { value, .. } => value.to_string(),
                _ => return self.unexpected("a name, a string or a number"),
            };
            let span = span.start..self.span().end;
            self.step();
            if let (true, TokenKind::Name(rest)) = (self.is_at(":"), self.ahead(1)) {
                let problem = Diagnostic::error(self.span(), "write a name with `:` as a string");
                let help = format!("write \"{text}:{rest}\"");
                return self.fault(problem.help(help));
            }
            selected.push(Selected { text, span });
            if !self.takes(",") {
                self.close(")", &opened)?;
                return Ok(selected);
            }
        }
    }
}
