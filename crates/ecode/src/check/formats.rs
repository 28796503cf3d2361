//! Checks the formats of `print`.

use super::{Checked, Checker};
use crate::ast::Expression as Written;
use crate::diagnostic::{Diagnostic, ErrorReported, Span};
use crate::lex::span_in_string;
use crate::typed::Argument;
use crate::types::Type;

/// The length of the directive at the beginning of these bytes: `%`, flags, a width, a length and
/// the letter of a conversion, as in C. A blank, which is a flag in C, is usually the text after a
/// `%` that should be `%%`.
fn directive_len(bytes: &[u8]) -> usize {
    let is_letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
    let width = bytes[1..].iter().take_while(|byte| b"-+#0123456789.*".contains(byte)).count();
    let mut at = 1 + width;
    while is_letter(at) && b"hlLqjzt".contains(&bytes[at]) && is_letter(at + 1) {
        at += 1;
    }
    match bytes.get(at) {
        Some(b'%') if width == 0 => at + 1,
        Some(b' ') | None => at,
        Some(first) if first.is_ascii_alphabetic() => at + 1,
        Some(_) if width > 0 => at,
        Some(first) => at + first.leading_ones().max(1) as usize,
    }
}

impl Checker<'_> {
    /// Checks a format of `print`: %d, %u, %x, %c and %s, and %% for a percent sign. Returns the
    /// format with %u for each %d of an unsigned number, which has no negative values.
    pub(super) fn format(
        &mut self,
        format: &[u8],
        written: &[Written],
        arguments: &[Argument],
    ) -> Checked<Vec<u8>> {
        let mut by_type = Vec::with_capacity(format.len());
        let mut rest = arguments.iter().zip(written).skip(1);
        let (mut at, errors) = (0, self.error_count());
        while at < format.len() {
            let length = if format[at] == b'%' { directive_len(&format[at..]) } else { 1 };
            let directive = &format[at..at + length];
            let from = at;
            at += length;
            by_type.extend(directive);
            let wants_text = match directive {
                [b'%', b'd' | b'u' | b'x' | b'c'] => false,
                b"%s" => true,
                [b'%', b'%'] => continue,
                [b'%', ..] => {
                    let span = self.span_in_string(&written[0].span, from..at);
                    let shown = String::from_utf8_lossy(directive);
                    let message = format!("`print` does not support {shown}");
                    self.problems.push(Diagnostic::error(span, message).help(
                        "supported are %d, %u and %x (each for 64 bits), %c, %s, and %% for a %; a \
                        width cannot be given",
                    ));
                    continue;
                }
                _ => continue,
            };
            // After an unsupported directive, it is not known which value belongs to which one.
            if self.error_count() > errors {
                continue;
            }
            let Some((argument, written_argument)) = rest.next() else {
                let span = self.span_in_string(&written[0].span, from..at);
                let message = "the format needs more values than are given";
                self.problems.push(Diagnostic::error(span, message));
                continue;
            };
            let is_text = match argument {
                Argument::Value(value) => value.ty == Type::String,
                _ => true,
            };
            let is_unsigned = matches!(argument, Argument::Value(value) if value
                .ty
                .integer()
                .is_some_and(|of| !of.is_signed));
            if directive == b"%d" && is_unsigned {
                by_type.pop();
                by_type.push(b'u');
            }
            if is_text != wants_text {
                let (is, wants) = if is_text { ("text", "number") } else { ("number", "text") };
                let message = format!("the format needs a {wants}, but this is a {is}");
                let mut problem = Diagnostic::error(written_argument.span.clone(), message);
                if wants_text {
                    problem = problem
                        .help("use `read_user_text` to read the text that an argument points to");
                }
                return self.error(problem);
            }
        }
        if self.error_count() > errors {
            return Err(ErrorReported);
        }
        match rest.next() {
            Some((_, excess)) => {
                let span = excess.span.clone();
                self.error(Diagnostic::error(span, "the format does not use this value"))
            }
            None => Ok(by_type),
        }
    }

    /// The span of some bytes of a string in the source.
    fn span_in_string(&self, whole: &Span, wanted: Span) -> Span {
        let found = span_in_string(&self.text[whole.clone()], &wanted);
        found.map_or(whole.clone(), |part| whole.start + part.start..whole.start + part.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_end_as_in_c() {
        for (format, length) in [
            ("%d", 2),
            ("%%", 2),
            ("%08x", 4),
            ("%-5.3lld,", 8),
            ("%l", 2),
            ("%l %d", 2),
            ("%q %d", 2),
            ("%5", 2),
            ("%5 ", 2),
            ("%5%", 2),
            ("% of", 1),
            ("%", 1),
            ("%\u{e9}x", 3),
            ("%\"", 2),
        ] {
            assert_eq!(directive_len(format.as_bytes()), length, "{format}");
        }
    }
}
