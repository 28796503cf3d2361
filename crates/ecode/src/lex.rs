//! Source text into words.

use crate::diagnostic::{Diagnostic, Span};
use crate::token::{ABSENT, FLOATING, Keyword, Kind, MARKS, Token};

/// Each takes up to half a kilobyte while it is compiled.
const MOST_TOKENS: usize = 1_000_000;
/// The kernel takes names of up to 511: KSYM_NAME_LEN, include/linux/kallsyms.h, in btf_name_valid_identifier.
const MOST_LETTERS: usize = 255;

/// With an end after the last one. What is no word is told of and left out.
pub fn lex(text: &str, problems: &mut Vec<Diagnostic>) -> Vec<Token> {
    let at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut lexer =
        Lexer { text, bytes: text.as_bytes(), at, is_open: false, has_told_of_floating: false, problems };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next() {
        if tokens.len() == MOST_TOKENS {
            let problem =
                Diagnostic::error(token.span, format!("a program has {MOST_TOKENS} words and marks at most"));
            lexer.problem(problem.help("make several plugins of it"));
            tokens.clear();
            break;
        }
        tokens.push(token);
    }
    if lexer.is_open {
        tokens.clear();
    }
    // Where something was missing, and not on the empty line behind it.
    let end = text.trim_end().len();
    tokens.push(Token { kind: Kind::End, span: end..end });
    tokens
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Something has no end, and where the rest begins is not known.
    is_open: bool,
    has_told_of_floating: bool,
    problems: &'a mut Vec<Diagnostic>,
}

fn is_of_names(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl Lexer<'_> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn next(&mut self) -> Option<Token> {
        loop {
            self.skip_space();
            let from = self.at;
            let first = *self.rest().first()?;
            let kind = match first {
                b'0'..=b'9' => Some(self.number()),
                b'"' => self.text(),
                b'\'' => self.character(),
                _ if is_of_names(first) => Some(self.name()),
                _ => self.mark(),
            };
            if let Some(kind) = kind {
                return Some(Token { kind, span: from..self.at });
            }
        }
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            if rest.first().is_some_and(u8::is_ascii_whitespace) {
                self.at += 1;
            } else if rest.starts_with(b"\\\n") || rest.starts_with(b"\\\r\n") {
                self.at += 2;
            } else if rest.starts_with(b"//") {
                self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            } else if rest.starts_with(b"/*") {
                let from = self.at;
                match self.text[from + 2..].find("*/") {
                    Some(length) => self.at += length + 4,
                    None => {
                        let problem = Diagnostic::error(from..from + 2, "this comment has no end");
                        self.open(problem.help("close it with `*/`"));
                    }
                }
            } else {
                return;
            }
        }
    }

    fn problem(&mut self, problem: Diagnostic) {
        self.problems.push(problem);
    }

    fn open(&mut self, problem: Diagnostic) {
        self.problem(problem);
        self.at = self.bytes.len();
        self.is_open = true;
    }

    fn take_name(&mut self) -> Span {
        let from = self.at;
        self.at += self.rest().iter().take_while(|byte| is_of_names(**byte)).count();
        from..self.at
    }

    fn name(&mut self) -> Kind {
        let span = self.take_name();
        let name = &self.text[span.clone()];
        if let Some((_, keyword)) = Keyword::ALL.iter().find(|(text, _)| *text == name) {
            return Kind::Keyword(*keyword);
        }
        if name.len() > MOST_LETTERS {
            let message = format!("a name has {MOST_LETTERS} letters at most, and this {}", name.len());
            self.problems.push(Diagnostic::error(span.clone(), message));
        }
        if let Some((word, help)) = ABSENT.iter().find(|(word, _)| *word == name) {
            self.has_told_of_floating |= FLOATING.contains(word);
            self.problems.push(Diagnostic::error(span, format!("E-code has no `{word}`")).help(*help));
        }
        Kind::Name(name.into())
    }

    /// A faulty one is told of, and is one all the same: it is the expression that is expected.
    fn number(&mut self) -> Kind {
        const FAULTY: Kind = Kind::Number { value: 1, is_unsigned: false, is_long: false, is_decimal: true };
        let span = self.take_name();
        if self.rest().first() == Some(&b'.') && self.rest().get(1).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
            let whole = span.start..self.take_name().end;
            self.floating(whole, "use integers, such as thousandths");
            return FAULTY;
        }
        let word = self.text[span.clone()].to_ascii_lowercase();
        if let Some((digits, exponent)) = word.split_once('e')
            && [digits, exponent].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
        {
            self.floating(span, "write the number out");
            return FAULTY;
        }
        let (radix, digits) = match word.as_bytes() {
            [b'0', b'x', ..] => (16, &word[2..]),
            [b'0', b'b', ..] => (2, &word[2..]),
            [b'0', _, ..] => (8, &word[1..]),
            _ => (10, word.as_str()),
        };
        let number = digits.trim_end_matches(['u', 'l']);
        let suffix = &digits[number.len()..];
        let is_suffix = matches!(suffix, "" | "u" | "l" | "ul" | "lu" | "ll" | "ull" | "llu");
        // A plain `0u` has no digits after its octal mark.
        let number = if radix == 8 && number.is_empty() { "0" } else { number };
        if let Some(wrong) = number.chars().find(|digit| !digit.is_digit(radix)) {
            let what = match radix {
                16 => "a hexadecimal number",
                2 => "a binary number",
                8 => "an octal number, as it begins with 0",
                _ => "a number",
            };
            let problem = Diagnostic::error(span.clone(), format!("`{wrong}` is no digit of {what}"));
            let decimal = word.trim_start_matches('0');
            let is_decimal =
                radix == 8 && !decimal.is_empty() && decimal.bytes().all(|byte| byte.is_ascii_digit());
            self.problem(if is_decimal { problem.help(format!("write {decimal}")) } else { problem });
            return FAULTY;
        }
        if number.is_empty() || !is_suffix {
            let problem = Diagnostic::error(span, "this is no number");
            self.problem(
                problem.help("numbers are 10, 0x1f, 0b101 or 017, with `u` or `l` after them at most"),
            );
            return FAULTY;
        }
        let Ok(value) = u64::from_str_radix(number, radix) else {
            let problem = Diagnostic::error(span, "this number does not fit into 64 bits");
            self.problem(problem.help("the largest is 18446744073709551615"));
            return FAULTY;
        };
        let is_unsigned = suffix.contains('u');
        Kind::Number { value, is_unsigned, is_long: suffix.contains('l'), is_decimal: radix == 10 }
    }

    /// Once where a variable was to be one.
    fn floating(&mut self, span: Span, help: &str) {
        if !self.has_told_of_floating {
            self.problem(Diagnostic::error(span, "a kernel has no floating point").help(help));
        }
    }

    /// What is between two quotes of one line; the second one is left.
    fn quoted(&mut self, quote: u8, what: &str) -> Option<Vec<u8>> {
        let from = self.at;
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            match self.rest().first() {
                Some(byte) if *byte == quote => {
                    self.at += 1;
                    return Some(bytes);
                }
                None | Some(b'\n') => {
                    let problem = Diagnostic::error(from..self.at, format!("this {what} has no end"));
                    self.open(problem.help(format!("close it with {} on the same line", quote as char)));
                    return None;
                }
                Some(b'\\') => {
                    let escape = self.at;
                    self.at += 1;
                    match self.escaped() {
                        Some(byte) => bytes.push(byte),
                        // Told of as what has no end.
                        None if matches!(self.rest().first(), None | Some(b'\n')) => {}
                        None => {
                            let character = self.text[self.at..].chars().next();
                            self.at += character.filter(|c| *c != '\n').map_or(0, char::len_utf8);
                            let problem = Diagnostic::error(escape..self.at, "there is no such escape");
                            self.problem(
                                problem.help(r#"there are \a \b \f \n \r \t \v \\ \' \" \101 and \x41"#),
                            );
                        }
                    }
                }
                Some(byte) => {
                    bytes.push(*byte);
                    self.at += 1;
                }
            }
        }
    }

    fn escaped(&mut self) -> Option<u8> {
        let byte = match self.rest() {
            [b'a', ..] => 7,
            [b'b', ..] => 8,
            [b't', ..] => b'\t',
            [b'n', ..] => b'\n',
            [b'v', ..] => 11,
            [b'f', ..] => 12,
            [b'r', ..] => b'\r',
            [byte @ (b'\\' | b'\'' | b'"'), ..] => *byte,
            [b'x', high, low, ..] => {
                let digit = |byte: &u8| (*byte as char).to_digit(16);
                let value = digit(high)? * 16 + digit(low)?;
                self.at += 3;
                return Some(value as u8);
            }
            rest => {
                let digits = rest.iter().take(3).take_while(|byte| matches!(byte, b'0'..=b'7'));
                let digits = std::str::from_utf8(&rest[..digits.count()]).ok()?;
                let value = u8::from_str_radix(digits, 8).ok()?;
                self.at += digits.len();
                return Some(value);
            }
        };
        self.at += 1;
        Some(byte)
    }

    fn text(&mut self) -> Option<Kind> {
        let from = self.at;
        let mut bytes = self.quoted(b'"', "string")?;
        // As in C, strings beside each other are one.
        loop {
            let after = self.at;
            self.skip_space();
            if self.rest().first() != Some(&b'"') {
                self.at = after;
                break;
            }
            bytes.extend(self.quoted(b'"', "string")?);
        }
        if let Some(nul) = bytes.iter().position(|byte| *byte == 0) {
            let problem = Diagnostic::error(from..self.at, "a string ends at its first NUL");
            self.problem(problem.help("use an array: `char text[] = { 'a', 0, 'b' };`"));
            bytes.truncate(nul);
        }
        Some(Kind::Text(bytes))
    }

    fn character(&mut self) -> Option<Kind> {
        let (from, problems) = (self.at, self.problems.len());
        let bytes = self.quoted(b'\'', "character")?;
        if bytes.len() != 1 && self.problems.len() == problems {
            let problem = Diagnostic::error(from..self.at, "between two ' is one character of one byte");
            self.problem(problem.help("a text is between two \""));
        }
        // As with numbers.
        Some(Kind::Character(bytes.first().copied().unwrap_or_default()))
    }

    fn mark(&mut self) -> Option<Kind> {
        let rest = self.rest();
        if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(mark.as_bytes())) {
            self.at += mark.len();
            return Some(Kind::Mark(mark));
        }
        let wrong = self.text[self.at..].chars().next()?;
        let span = self.at..self.at + wrong.len_utf8();
        self.at = span.end;
        let problem = match wrong {
            '#' => {
                let line = self.rest().iter().position(|byte| *byte == b'\n').unwrap_or(self.rest().len());
                self.at += line;
                Diagnostic::error(span, "E-code has no preprocessor")
                    .help("`const` and `enum` name numbers; what a hook offers is declared already")
            }
            _ => Diagnostic::error(span, format!("{wrong:?} has no meaning here")),
        };
        self.problem(problem);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        let mut problems = Vec::new();
        let tokens = lex(text, &mut problems);
        assert_eq!(problems, [], "{text}");
        tokens.into_iter().map(|token| token.kind).collect()
    }

    fn number(text: &str) -> u64 {
        match kinds(text)[..] {
            [Kind::Number { value, .. }, Kind::End] => value,
            ref other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn escapes_are_cs() {
        let text = r#""\a\b\f\n\r\t\v\\\'\"\7\1018\x41" '\0' '\377' \
            1"#;
        let bytes = b"\x07\x08\x0c\n\r\t\x0b\\'\"\x07A8A".to_vec();
        let number = Kind::Number { value: 1, is_unsigned: false, is_long: false, is_decimal: true };
        let wanted = [Kind::Text(bytes), Kind::Character(0), Kind::Character(255), number, Kind::End];
        assert_eq!(kinds(text), wanted);
    }

    #[test]
    fn numbers_have_cs_values() {
        for (text, value) in [
            ("0", 0),
            ("10", 10),
            ("0x1F", 31),
            ("0b101", 5),
            ("017", 15),
            ("0u", 0),
            ("7ULL", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(number(text), value, "{text}");
        }
    }

    #[test]
    fn the_longest_mark_is_taken() {
        let marks = ["<<=", "<<", "<", "=", "++", "+"].map(Kind::Mark);
        assert_eq!(kinds("<<= << < = ++ +")[..6], marks);
        assert_eq!(kinds("a+++b")[1..3], [Kind::Mark("++"), Kind::Mark("+")]);
    }

    #[test]
    fn strings_beside_each_other_are_one() {
        let text = Kind::Text(b"a\nb\x01'".to_vec());
        assert_eq!(kinds("\"a\\n\" /* then */ \"b\\x01'\""), [text, Kind::End]);
    }

    #[test]
    fn what_is_no_word_is_told_of() {
        for (text, message) in [
            ("1.5", "no floating point"),
            ("08", "no digit of an octal"),
            ("0x", "no number"),
            ("1q", "no digit"),
            ("99999999999999999999", "64 bits"),
            ("\"a", "has no end"),
            ("'ab'", "one character"),
            ("\"\\q\"", "no such escape"),
            ("\"\\0\"", "first NUL"),
            ("/* a", "comment has no end"),
            ("#include <a>", "no preprocessor"),
            ("goto", "no `goto`"),
            ("€", "no meaning"),
        ] {
            let mut problems = Vec::new();
            lex(text, &mut problems);
            assert_eq!(problems.len(), 1, "{text}: {problems:?}");
            assert!(problems[0].message.contains(message), "{text}: {problems:?}");
        }
    }
}
