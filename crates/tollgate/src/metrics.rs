//! Metrics in the text format of Prometheus (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kernel::losses::LOSS_REASONS;

use crate::format::printable;

/// Writes the samples of one metric, each with its labels.
pub fn family(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl Iterator<Item = (String, f64)>,
) {
    let _ = writeln!(out, "# HELP tollgate_{name} {help}\n# TYPE tollgate_{name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(out, "tollgate_{name}{labels} {value}");
    }
}

/// One label in braces.
pub fn label(name: &str, value: &str) -> String {
    labels(&[(name, value)])
}

/// Labels in braces.
pub fn labels(labels: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| {
        let value: String = value.chars().map(escaped).collect();
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", labels.iter().map(one).collect::<Vec<_>>().join(","))
}

/// A character of a label's value. Characters that could control a reader's terminal are as in
/// messages: "\x1b".
fn escaped(character: char) -> String {
    match character {
        '\\' => r"\\".to_owned(),
        '"' => "\\\"".to_owned(),
        '\n' => r"\n".to_owned(),
        other => printable(other.encode_utf8(&mut [0; 4])).replace('\\', r"\\"),
    }
}

/// The losses of all extensions. Those of the gate have a sample also if there were none, so that
/// the first one is an increase.
pub fn losses(out: &mut String, losses: &BTreeMap<String, u64>) {
    let mut all: BTreeMap<&str, u64> = LOSS_REASONS.iter().map(|reason| (reason.text, 0)).collect();
    all.extend(losses.iter().map(|(reason, n)| (reason.as_str(), *n)));
    let samples = all.into_iter().map(|(reason, n)| (label("reason", reason), n as f64));
    family(out, "losses_total", "counter", "Losses, by reason.", samples);
}

/// The version of this program.
pub fn build_info(out: &mut String) {
    let version = label("version", env!("CARGO_PKG_VERSION"));
    let help = "1, with the version of Tollgate.";
    family(out, "build_info", "gauge", help, [(version, 1.0)].into_iter());
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Checks that each line is a sample or a comment.
    pub fn assert_is_page(page: &str) {
        for line in page.lines() {
            assert!(line.starts_with("# ") || line.starts_with("tollgate_"), "{line}");
        }
    }

    #[test]
    fn every_loss_is_a_sample() {
        let mut page = String::new();
        losses(&mut page, &BTreeMap::from([("too \"many\"".into(), 3)]));
        build_info(&mut page);
        assert_is_page(&page);
        assert!(page.contains("tollgate_losses_total{reason=\"too \\\"many\\\"\"} 3\n"), "{page}");
        let none = format!("tollgate_losses_total{{reason=\"{}\"}} 0\n", LOSS_REASONS[0].text);
        assert!(page.contains(&none), "{page}");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("program", "/a\"b\\c\nd"), r#"{program="/a\"b\\c\nd"}"#);
        assert_eq!(label("program", "\u{1b}[1mé\t"), r#"{program="\\x1b[1mé\\t"}"#);
        assert_eq!(label("program", "\u{202e}"), r#"{program="\\u202e"}"#);
    }
}
