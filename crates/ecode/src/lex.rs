//! Splits the source text into tokens.

use std::collections::HashSet;

use crate::diagnostic::{Diagnostic, Span};
use crate::foreign;
use crate::token::{FLOATING, Keyword, PUNCTUATORS, Token, TokenKind, UNSUPPORTED_C_KEYWORDS};

/// The units of intervals, as in `1s` (see the hook `timer`).
const INTERVAL_UNITS: [&str; 3] = ["s", "ms", "us"];
/// Each token takes up to half a kilobyte during compilation.
const MAX_TOKENS: usize = 1_000_000;
/// The kernel accepts names of up to 511 bytes (KSYM_NAME_LEN, include/linux/kallsyms.h, in
/// btf_name_valid_identifier).
const MAX_IDENT_LEN: usize = 255;

/// Returns the tokens of a text, with an end token after the last one. Invalid text is reported and
/// left out.
pub fn lex(text: &str, problems: &mut Vec<Diagnostic>) -> Vec<Token> {
    let mut lexer = Lexer::new(text, problems);
    lexer.at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next() {
        if tokens.len() == MAX_TOKENS {
            let problem =
                Diagnostic::error(token.span, format!("a program has at most {MAX_TOKENS} tokens"));
            lexer.problem(problem.help("make several plugins of it"));
            tokens.clear();
            break;
        }
        tokens.push(token);
    }
    if lexer.is_open {
        tokens.clear();
    }
    // If something is missing at the end, report it after the last token and not on an empty line.
    let end = text.trim_end().len();
    tokens.push(Token { kind: TokenKind::End, span: end..end });
    tokens
}

/// The span of some bytes of a string within the source of this string, which may have
/// parentheses around it.
pub fn span_in_string(source: &str, wanted: &Span) -> Option<Span> {
    let mut problems = Vec::new();
    let mut lexer = Lexer::new(source, &mut problems);
    lexer.at = source.find('"')?;
    let (mut number, mut found) = (0, None::<Span>);
    lexer.adjacent(|_, span| {
        if wanted.contains(&number) {
            found = Some(found.as_ref().map_or(span.start, |found| found.start)..span.end);
        }
        number += 1;
    })?;
    found
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// A comment, string or character is not closed, so it is not known where it ends.
    is_open: bool,
    reported_floating: bool,
    /// The names with letters that names cannot have, each of which is reported once.
    reported: HashSet<&'a str>,
    problems: &'a mut Vec<Diagnostic>,
}

/// Characters that look like one of the language, with their names and that one.
const LOOKALIKES: &[(char, &str, &str)] = &[
    ('\u{a0}', "a no-break space", SPACE),
    ('\u{2007}', "a figure space", SPACE),
    ('\u{2009}', "a thin space", SPACE),
    ('\u{200b}', "a zero-width space", NOTHING),
    ('\u{202f}', "a narrow no-break space", SPACE),
    ('\u{3000}', "an ideographic space", SPACE),
    ('\u{feff}', "a byte-order mark, which only the beginning of a file can have", NOTHING),
    ('\u{2013}', "an en dash", "`-`"),
    ('\u{2014}', "an em dash", "`-`"),
    ('\u{2212}', "a minus sign of typography", "`-`"),
    ('\u{d7}', "a multiplication sign", "`*`"),
    ('\u{37e}', "a Greek question mark", "`;`"),
];
const SPACE: &str = "an ordinary space";
/// In place of a character that has no width.
const NOTHING: &str = "";

/// The straight quote for a typographic one, and what it encloses.
fn typographic_quote(character: char) -> Option<(char, &'static str)> {
    match character {
        '\u{201c}'..='\u{201f}' | '\u{ab}' | '\u{bb}' => Some(('"', "string")),
        '\u{2018}'..='\u{201b}' | '\u{b4}' => Some(('\'', "character")),
        _ => None,
    }
}

fn is_of_names(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str, problems: &'a mut Vec<Diagnostic>) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
            is_open: false,
            reported_floating: false,
            reported: HashSet::new(),
            problems,
        }
    }
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
                _ if is_of_names(first) || self.foreign_letters() > 0 => Some(self.name()),
                _ => self.punctuator(),
            };
            if let Some(kind) = kind {
                return Some(Token { kind, span: from..self.at });
            }
        }
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            // C's white space has a vertical tab as well (ISO C17, 6.4).
            if rest.first().is_some_and(|byte| byte.is_ascii_whitespace() || *byte == b'\x0b') {
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
                        let problem =
                            Diagnostic::error(from..from + 2, "this comment is not closed");
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

    /// The length of the letters here that names cannot have.
    fn foreign_letters(&self) -> usize {
        let is_accent = |letter: char| ('\u{300}'..='\u{36f}').contains(&letter);
        let is_foreign =
            |letter: &char| !letter.is_ascii() && (letter.is_alphanumeric() || is_accent(*letter));
        self.text[self.at..].chars().take_while(is_foreign).map(char::len_utf8).sum()
    }

    fn name(&mut self) -> TokenKind {
        let mut span = self.take_name();
        let own = span.clone();
        while self.foreign_letters() > 0 {
            self.at += self.foreign_letters();
            span.end = self.take_name().end;
        }
        let name = &self.text[span.clone()];
        if span != own {
            if self.reported.insert(name) {
                let problem = Diagnostic::error(span, format!("`{name}` cannot be a name"));
                self.problem(problem.help("names consist of A to Z, a to z, 0 to 9 and _"));
            }
            return TokenKind::Name(name.into());
        }
        if let Some((_, keyword)) = Keyword::ALL.iter().find(|(text, _)| *text == name) {
            return TokenKind::Keyword(*keyword);
        }
        if name.len() > MAX_IDENT_LEN {
            let message = format!(
                "a name has at most {MAX_IDENT_LEN} letters, but this one has {}",
                name.len()
            );
            self.problems.push(Diagnostic::error(span.clone(), message));
        }
        if let Some((word, help)) = UNSUPPORTED_C_KEYWORDS.iter().find(|(word, _)| *word == name) {
            self.reported_floating |= FLOATING.contains(word);
            self.problems
                .push(Diagnostic::error(span, format!("E-code has no `{word}`")).help(*help));
        }
        TokenKind::Name(name.into())
    }

    /// Reads a number. A faulty one is reported, but still gives a number token, because the parser
    /// expects an expression.
    fn number(&mut self) -> TokenKind {
        const FAULTY: TokenKind =
            TokenKind::Number { value: 1, is_unsigned: false, is_long: false, is_decimal: true };
        let span = self.take_name();
        if self.rest().first() == Some(&b'.') && self.rest().get(1).is_some_and(u8::is_ascii_digit)
        {
            self.at += 1;
            let mut whole = span.start..self.take_name().end;
            if let Some((address, help)) = foreign::address(&self.text[whole.start..]) {
                whole.end = whole.start + address;
                self.at = whole.end;
                self.problem(Diagnostic::error(whole, "an address is a number here").help(help));
                return FAULTY;
            }
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
        // `0u` has no digits after the octal prefix.
        let number = if radix == 8 && number.is_empty() { "0" } else { number };
        if let Some(wrong) = number.chars().find(|digit| !digit.is_digit(radix)) {
            let what = match radix {
                16 => "a hexadecimal number",
                2 => "a binary number",
                8 => "an octal number (it begins with 0)",
                _ => "a number",
            };
            let problem =
                Diagnostic::error(span.clone(), format!("`{wrong}` is not a digit of {what}"));
            let decimal = word.trim_start_matches('0');
            let is_decimal = radix == 8
                && !decimal.is_empty()
                && decimal.bytes().all(|byte| byte.is_ascii_digit());
            self.problem(if is_decimal {
                problem.help(format!("write {decimal}"))
            } else if INTERVAL_UNITS
                .contains(&word.trim_start_matches(|at: char| at.is_ascii_digit()))
            {
                problem.help(format!("write an interval as a string: `timer(\"{word}\")`"))
            } else {
                problem
            });
            return FAULTY;
        }
        if number.is_empty() || !is_suffix {
            let problem = Diagnostic::error(span, "this is not a number");
            self.problem(
                problem.help("write 10, 0x1f, 0b101 or 017, followed at most by `u` and `l`"),
            );
            return FAULTY;
        }
        let Ok(value) = u64::from_str_radix(number, radix) else {
            let problem = Diagnostic::error(span, "this number does not fit into 64 bits");
            self.problem(problem.help("the largest is 18446744073709551615"));
            return FAULTY;
        };
        let is_unsigned = suffix.contains('u');
        TokenKind::Number {
            value,
            is_unsigned,
            is_long: suffix.contains('l'),
            is_decimal: radix == 10,
        }
    }

    /// Reports a floating-point number, unless a type such as `double` was reported before.
    fn floating(&mut self, span: Span, help: &str) {
        if !self.reported_floating {
            self.problem(
                Diagnostic::error(span, "there is no floating point in the kernel").help(help),
            );
        }
    }

    /// Reads the text between two quotes on one line, gives each byte and its span in the source to
    /// `each`, and stops after the second quote. `None` if it is missing.
    fn quoted(&mut self, quote: u8, what: &str, each: &mut impl FnMut(u8, Span)) -> Option<()> {
        let from = self.at;
        self.at += 1;
        loop {
            match self.rest().first() {
                Some(byte) if *byte == quote => {
                    self.at += 1;
                    return Some(());
                }
                None | Some(b'\n') => {
                    let problem =
                        Diagnostic::error(from..self.at, format!("this {what} is not closed"));
                    self.open(
                        problem.help(format!("close it with {} on the same line", quote as char)),
                    );
                    return None;
                }
                Some(b'\\') => {
                    let escape = self.at;
                    self.at += 1;
                    match self.escaped() {
                        Some(byte) => each(byte, escape..self.at),
                        // The next iteration reports the text as unclosed.
                        None if matches!(self.rest().first(), None | Some(b'\n')) => {}
                        None => {
                            let character = self.text[self.at..].chars().next();
                            self.at += character.filter(|c| *c != '\n').map_or(0, char::len_utf8);
                            let problem =
                                Diagnostic::error(escape..self.at, "unknown escape sequence");
                            self.problem(
                                problem.help(
                                    r#"known are \a \b \f \n \r \t \v \\ \' \" \101 and \x41"#,
                                ),
                            );
                        }
                    }
                }
                Some(byte) => {
                    each(*byte, self.at..self.at + 1);
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

    /// Reads a string. As in C, adjacent strings are concatenated.
    fn adjacent(&mut self, mut each: impl FnMut(u8, Span)) -> Option<()> {
        loop {
            self.quoted(b'"', "string", &mut each)?;
            let after = self.at;
            self.skip_space();
            if self.rest().first() != Some(&b'"') {
                self.at = after;
                return Some(());
            }
        }
    }

    fn text(&mut self) -> Option<TokenKind> {
        let (from, mut bytes) = (self.at, Vec::new());
        self.adjacent(|byte, _| bytes.push(byte))?;
        if let Some(nul) = bytes.iter().position(|byte| *byte == 0) {
            let problem = Diagnostic::error(from..self.at, "a string ends at its first NUL");
            self.problem(problem.help("use an array: `char text[] = { 'a', 0, 'b' };`"));
            bytes.truncate(nul);
        }
        Some(TokenKind::Text(bytes))
    }

    fn character(&mut self) -> Option<TokenKind> {
        let (from, problems) = (self.at, self.problems.len());
        let mut bytes = Vec::new();
        self.quoted(b'\'', "character", &mut |byte, _| bytes.push(byte))?;
        if bytes.len() != 1 && self.problems.len() == problems {
            let problem = Diagnostic::error(
                from..self.at,
                "a character constant has exactly one character of one byte",
            );
            self.problem(problem.help("a string is written between two \""));
        }
        // As for numbers, a faulty character still gives a token.
        Some(TokenKind::Character(bytes.first().copied().unwrap_or_default()))
    }

    /// Reports typographic quotes, and skips the text between two of them on one line.
    fn typographic(&mut self, quote: char, what: &str) -> Option<TokenKind> {
        let line = self.text[self.at..].lines().next().unwrap_or_default();
        let is_quote = |other: char| {
            other == quote || typographic_quote(other).is_some_and(|(other, _)| other == quote)
        };
        let mut quotes = line.char_indices().filter(|(_, other)| is_quote(*other));
        let (first, last) = (quotes.next()?, quotes.next());
        let (end, character) = last.unwrap_or(first);
        let span = self.at..self.at + end + character.len_utf8();
        self.at = span.end;
        let problem = Diagnostic::error(span, format!("this {what} has typographic quotes"));
        self.problem(problem.help(format!("write straight quotes: {quote}…{quote}")));
        Some(if quote == '"' { TokenKind::Text(Vec::new()) } else { TokenKind::Character(b' ') })
    }

    fn punctuator(&mut self) -> Option<TokenKind> {
        let rest = self.rest();
        if let Some(mark) = PUNCTUATORS.iter().find(|mark| rest.starts_with(mark.as_bytes())) {
            self.at += mark.len();
            return Some(TokenKind::Punctuator(mark));
        }
        let wrong = self.text[self.at..].chars().next()?;
        if wrong == '\0' {
            let problem = Diagnostic::error(self.at..self.at + 1, "this is not text: it is a NUL");
            self.open(problem.help("a program is text in UTF-8"));
            return None;
        }
        if let Some((quote, what)) = typographic_quote(wrong) {
            return self.typographic(quote, what);
        }
        let from = self.at;
        let span = from..from + wrong.len_utf8();
        let others = self.text[from..].chars().take_while(|other| *other == wrong);
        self.at += others.map(char::len_utf8).sum::<usize>();
        let problem = match wrong {
            '#' => {
                let line =
                    self.rest().iter().position(|byte| *byte == b'\n').unwrap_or(self.rest().len());
                self.at += line;
                Diagnostic::error(span, "E-code has no preprocessor").help(
                    "use `const` and `enum` for constants; the fields of hooks are declared \
                        already",
                )
            }
            '@' => Diagnostic::error(span, "unexpected character '@'").help(
                "declare a map, `map<u32, u64> calls[1024];`, and use it by its name: \
                `calls[pid()]++`",
            ),
            '$' => Diagnostic::error(span, "unexpected character '$'")
                .help("declare a variable, `u64 x = 1;`, and use it by its name"),
            _ => match LOOKALIKES.iter().find(|(character, ..)| *character == wrong) {
                Some((_, name, plain)) => {
                    Diagnostic::error(span, format!("this is {name}")).help(match *plain {
                        NOTHING => "remove it".into(),
                        plain => format!("write {plain}"),
                    })
                }
                None => Diagnostic::error(span, format!("unexpected character {wrong:?}")),
            },
        };
        self.problem(problem);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind> {
        let mut problems = Vec::new();
        let tokens = lex(text, &mut problems);
        assert_eq!(problems, [], "{text}");
        tokens.into_iter().map(|token| token.kind).collect()
    }

    fn number(text: &str) -> u64 {
        match kinds(text)[..] {
            [TokenKind::Number { value, .. }, TokenKind::End] => value,
            ref other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn escapes_as_in_c() {
        let text = r#""\a\b\f\n\r\t\v\\\'\"\7\1018\x41" '\0' '\377' \
            1"#;
        let bytes = b"\x07\x08\x0c\n\r\t\x0b\\'\"\x07A8A".to_vec();
        let number =
            TokenKind::Number { value: 1, is_unsigned: false, is_long: false, is_decimal: true };
        let wanted = [
            TokenKind::Text(bytes),
            TokenKind::Character(0),
            TokenKind::Character(255),
            number,
            TokenKind::End,
        ];
        assert_eq!(kinds(text), wanted);
    }

    #[test]
    fn literal_types_as_in_c() {
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
    fn longest_punctuator_wins() {
        let marks = ["<<=", "<<", "<", "=", "++", "+"].map(TokenKind::Punctuator);
        assert_eq!(kinds("<<= << < = ++ +")[..6], marks);
        assert_eq!(kinds("a+++b")[1..3], [TokenKind::Punctuator("++"), TokenKind::Punctuator("+")]);
    }

    #[test]
    fn adjacent_strings_are_joined() {
        let text = TokenKind::Text(b"a\nb\x01'".to_vec());
        assert_eq!(kinds("\"a\\n\" /* then */ \"b\\x01'\""), [text, TokenKind::End]);
    }

    #[test]
    fn invalid_tokens_are_reported() {
        for (text, message) in [
            ("1.5", "no floating point"),
            ("08", "not a digit of an octal"),
            ("0x", "not a number"),
            ("1q", "not a digit"),
            ("99999999999999999999", "64 bits"),
            ("\"a", "is not closed"),
            ("'ab'", "one character"),
            ("\"\\q\"", "unknown escape"),
            ("\"\\0\"", "first NUL"),
            ("/* a", "comment is not closed"),
            ("#include <a>", "no preprocessor"),
            ("goto", "no `goto`"),
            ("€", "unexpected character"),
        ] {
            let mut problems = Vec::new();
            lex(text, &mut problems);
            assert_eq!(problems.len(), 1, "{text}: {problems:?}");
            assert!(problems[0].message.contains(message), "{text}: {problems:?}");
        }
    }
}
