//! Reads the TOML files that users write, such as rule files and files of levels. All problems of a
//! file are reported, each with its position and, where possible, with help. Pure, no I/O.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod problem;
mod reader;

pub use problem::{Problem, Problems};
pub use reader::{At, TableReader};

use toml::Spanned;
pub use toml::de::DeTable;

/// What the parser calls a key or a table that is there twice.
const DUPLICATE_KEY: &str = "duplicate key";
const SYNTAX_HELP: &str =
    "write [[table]], or key = value; quote texts, and separate entries by commas";

/// Parses a document.
///
/// # Errors
/// Returns the syntax errors of the document.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Problems> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(document);
    }
    Err(syntax_problems(text, &errors))
}

/// The problems of a document that is not valid TOML. After a mistake, the parser continues within
/// the line, where it finds further ones that are none. So only the first one of a line is kept.
fn syntax_problems(text: &str, errors: &[toml::de::Error]) -> Problems {
    let mut problems: Problems = errors.iter().map(syntax_problem).collect();
    problems.sort_by_key(|problem| problem.span.start);
    let mut next_line = 0;
    problems.retain(|problem| {
        let begin = problem.span.start;
        let is_first = begin >= next_line;
        if is_first {
            let rest = text.bytes().skip(begin).position(|byte| byte == b'\n');
            next_line = rest.map_or(usize::MAX, |rest| begin + rest + 1);
        }
        is_first
    });
    problems
}

fn syntax_problem(error: &toml::de::Error) -> Problem {
    let help = match error.message() {
        DUPLICATE_KEY => "leave out one of the two",
        _ => SYNTAX_HELP,
    };
    Problem::new(error.span().unwrap_or(0..0), error.message()).help(help).sanitize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of a document, each with the text that it is about.
    fn problems(text: &str) -> Vec<(String, &str)> {
        let found = parse(text).unwrap_err();
        assert!(found.iter().all(|problem| problem.help.is_some()), "{found:?}");
        found.into_iter().map(|one| (one.message, &text[one.span])).collect()
    }

    #[test]
    fn each_mistake_in_the_syntax_is_one_problem_with_help() {
        for text in [
            "level = [{mhz=100 watts=5}]",
            "name = \"a",
            "name = a",
            "name",
            "[[rule]",
            "a = [1, 2",
        ] {
            let found = problems(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
        }
        let two = problems("name = a\nother = 5\nport = b\n");
        assert_eq!(two.iter().map(|(_, at)| *at).collect::<Vec<_>>(), ["a", "b"]);
    }

    /// Files may have a megabyte.
    #[test]
    fn many_mistakes_take_no_longer() {
        // A line has one problem of syntax.
        for (line, expected) in [("x\n", 500_000), ("x ", 1)] {
            assert_eq!(problems(&line.repeat(500_000)).len(), expected);
        }
    }

    #[test]
    fn duplicate_keys_are_to_be_left_out() {
        for text in ["a = 1\na = 2", "[a]\n[a]", "a = { b = 1, b = 2 }"] {
            let found = parse(text).err().unwrap();
            assert_eq!(found[0].message, DUPLICATE_KEY);
            assert_eq!(found[0].help.as_deref(), Some("leave out one of the two"));
        }
    }
}
