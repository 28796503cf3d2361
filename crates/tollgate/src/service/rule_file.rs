//! Parses rule files of services.

use anyhow::Result;
use service::RuleFile;

use super::system_host::SystemHost;
use crate::file_problems;
use crate::source_file::SourceFile;

/// The kind of file, in messages.
pub const KIND: &str = "file of services";

/// Parses a rule file. Fails with the problems if there are any.
pub fn parsed(source: &SourceFile) -> Result<RuleFile> {
    service::parse(&source.text, &SystemHost::default())
        .map_err(|problems| file_problems::error(source, &problems))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::file_problems::{FileProblem, excerpt};
    use crate::source_message::sanitized;

    /// Has an instance of everything that a rule file may contain.
    const FILE: &str = r#"
[service.customers]
cpu-max = "150%"
[service."shop.example"]
parent = "customers"
cpu-weight = 200
memory-max = "2G"
sockets-max = 1000
over-limit-errno = "EMFILE"
[service.blog]
network-max = "10M"
connections-max = 5
over-limit-service = "customers"
[limits]
at-end = "keep"
[[rule]]
name = "the shop's"
exe = "/usr/sbin/nginx"
listen = "127.0.0.1:8081"
client = "10.0.0.0/8"
priority = -3
belongs-to = "shop.example"
[[rule]]
cgroup = "/system.slice/php.service"
user = "0"
on = ["exec", "found"]
starts-below = "blog"
each = "user"
[[rule]]
file = "/srv/blog"
unit = "backup"
inherits = true
[[rule]]
peer = "blog"
service = "blog"
listen = "@name"
adopts-peer = true
"#;
    const PARTS: [&str; 24] = [
        "\"",
        "[",
        "]",
        "=",
        "\n",
        "\u{feff}",
        "\0",
        "é",
        "\u{202e}",
        "'''",
        "\\u0000",
        "-",
        "1e999",
        "99999999999999999999",
        "service",
        "rule",
        "[[rule]]\n",
        "parent = \"blog\"\n",
        "/",
        "%",
        ":",
        "true",
        "{}",
        "1979-05-27",
    ];

    /// Replacements of bytes: the position, the number of bytes, and the new text.
    fn edits() -> impl Strategy<Value = Vec<(usize, usize, &'static str)>> {
        vec((0..FILE.len(), 0..40_usize, select(&PARTS[..])), 1..6)
    }

    /// Checks that each problem of a text has a position within it and can be shown.
    fn check_problems(text: &str) {
        let source = SourceFile::new("fuzz".into(), text.into());
        let Err(problems) = service::parse(text, &SystemHost::default()) else { return };
        assert!(!problems.is_empty());
        let shown = sanitized(text);
        for problem in &problems {
            let row = FileProblem::new(problem, &source);
            assert!(row.line >= 1 && row.column >= 1 && row.line <= 1 + text.matches('\n').count());
            assert!(excerpt(problem, "fuzz", &shown).contains("error"));
        }
    }

    proptest! {
        #[test]
        fn any_text_gets_located_problems(text in any::<String>()) {
            check_problems(&text);
        }

        #[test]
        fn any_edit_gets_located_problems(edits in edits()) {
            let mut text = FILE.to_owned();
            for (from, length, by) in edits {
                let mut at = from.min(text.len());
                let mut end = (at + length).min(text.len());
                while !text.is_char_boundary(at) { at -= 1; }
                while !text.is_char_boundary(end) { end += 1; }
                text.replace_range(at..end, by);
            }
            check_problems(&text);
        }
    }

    #[test]
    fn it_is_right_as_it_is() {
        assert_eq!(
            service::parse(FILE, &SystemHost::default()).map(|file| file.ruleset.rules().len()),
            Ok(4)
        );
    }
}
