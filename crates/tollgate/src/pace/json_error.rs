//! Errors in JSON, in words that do not need any knowledge of this program.

use serde_json::Error;
use serde_json::error::Category;

/// What serde_json says of a number that no type can have. It is JSON nevertheless.
const OUT_OF_RANGE: &str = "number out of range";

/// What is wrong, without its position.
pub fn message(error: &Error) -> String {
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = error.to_string().replace(&position, "");
    match error.classify() {
        Category::Eof => "the text ends too early".into(),
        Category::Syntax if message != OUT_OF_RANGE => "not JSON".into(),
        _ => [
            ("expected u64", "expected a whole number from 0"),
            ("expected usize", "expected a whole number from 0"),
            ("expected f64", "expected a number"),
            ("expected a sequence", "expected a list"),
            ("invalid type: sequence", "invalid type: list"),
        ]
        .iter()
        .fold(message, |message, (from, to)| message.replace(from, to)),
    }
}

/// ":7", or nothing if the problem is not at one place.
pub fn column(error: &Error) -> String {
    match error.column() {
        0 => String::new(),
        column => format!(":{column}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T: serde::de::DeserializeOwned>(text: &str) -> (String, String) {
        let error = serde_json::from_str::<T>(text).err().expect("it is wrong");
        (message(&error), column(&error))
    }

    #[test]
    fn errors_do_not_name_types_and_tokens() {
        for text in ["x", "nulx", "[1 2]", "[1]]", "{1}", "\"\u{1}\""] {
            assert_eq!(of::<serde_json::Value>(text).0, "not JSON", "{text}");
        }
        for text in ["", "[1", "\"a", "{\"a\":"] {
            assert_eq!(of::<serde_json::Value>(text).0, "the text ends too early", "{text}");
        }
        assert_eq!(of::<f64>("1e999").0, OUT_OF_RANGE);
        for (found, number) in [
            (of::<u64>("\"a\""), "a whole number from 0"),
            (of::<usize>("-1"), "a whole number from 0"),
            (of::<u64>("1.5"), "a whole number from 0"),
            (of::<f64>("[]"), "a number"),
        ] {
            assert!(found.0.ends_with(&format!(", expected {number}")), "{found:?}");
        }
        assert_eq!(of::<[u64; 1]>("[\"a\"]").1, ":4");
        assert!(of::<f64>("[]").0.starts_with("invalid type: list, "));
        assert!(of::<Vec<u64>>("{}").0.ends_with(", expected a list"));
    }
}
