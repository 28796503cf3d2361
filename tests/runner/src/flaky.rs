//! The ledger of flaky tests, a table in Markdown whose first column has the tests' names in
//! backticks.

use std::path::Path;

use anyhow::{Context as _, Result};

pub fn read(path: &Path) -> Result<Vec<String>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(names(&text))
}

fn names(text: &str) -> Vec<String> {
    let cells = text.lines().filter_map(|line| line.trim().strip_prefix('|')?.split('|').next());
    let names = cells.filter_map(|cell| cell.trim().strip_prefix('`')?.strip_suffix('`'));
    names.map(str::to_owned).collect()
}

/// Whether the ledger names a test. The test's name may begin with the name of its kernel.
pub fn has(ledger: &[String], test: &str) -> bool {
    let own = test.rsplit(' ').next().unwrap_or(test);
    ledger.iter().any(|name| name == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_column_names_tests() {
        let text = "# Flaky\n\n| test | date |\n|---|---|\n| `live::a` | `x` |\n|`vm::b`| y \
            |\n`no::row`\n";
        assert_eq!(names(text), ["live::a", "vm::b"]);
    }

    #[test]
    fn a_test_is_listed_whatever_kernel_it_ran_in() {
        let ledger = ["live::a".to_owned()];
        assert!(has(&ledger, "live::a") && has(&ledger, "linux-image-amd64 live::a"));
        assert!(!has(&ledger, "live::ab"));
    }
}
