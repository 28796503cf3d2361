//! The selection of tests. A test's full name is that of its program, `::`, and its path there.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

#[derive(Debug, Default)]
pub struct TestSelection {
    /// Full names of tests, and names of modules that end with `::`.
    pub only: Option<Vec<String>>,
    pub skip: Vec<String>,
    pub names: Vec<String>,
    pub exact: bool,
}

/// Reads the names in a file. Comments begin with `#`.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(names(&text))
}

fn names(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn covers(only: &str, test: &str) -> bool {
    if only.ends_with("::") { test.starts_with(only) } else { test == only }
}

impl TestSelection {
    pub fn takes(&self, test: &str) -> bool {
        let is_named = |name: &String| if self.exact { test == name } else { test.contains(name) };
        self.only.as_ref().is_none_or(|only| only.iter().any(|only| covers(only, test)))
            && (self.names.is_empty() || self.names.iter().any(is_named))
            && !self.skip.iter().any(|part| test.contains(part))
    }

    /// Fails if `only` names a test that one of the programs should contain but does not.
    pub fn ensure_complete(&self, programs: &[&str], tests: &[String]) -> Result<()> {
        let program_of = |name: &str| name.split("::").next().unwrap_or_default().to_owned();
        for only in self.only.iter().flatten() {
            let is_of_these = programs.contains(&program_of(only).as_str());
            if is_of_these && !tests.iter().any(|test| covers(only, test)) {
                bail!("there is no test {only}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> TestSelection {
        TestSelection { only: Some(names(text)), ..Default::default() }
    }

    #[test]
    fn a_file_names_tests_and_modules() {
        let selection = only("# why\nlive::a::  # these\n\nlive::b::one\n");
        assert!(selection.takes("live::a::two") && selection.takes("live::b::one"));
        assert!(!selection.takes("live::b::one_more") && !selection.takes("live::ab::two"));
    }

    #[test]
    fn names_are_parts_of_names_unless_they_are_to_be_exact() {
        let names = vec!["b::on".to_owned()];
        let mut selection = TestSelection { names, ..Default::default() };
        assert!(selection.takes("live::b::one"));
        selection.exact = true;
        assert!(!selection.takes("live::b::one"));
        selection.names = vec!["live::b::one".into()];
        assert!(selection.takes("live::b::one"));
    }

    #[test]
    fn skipped_names_are_not_selected() {
        let selection = TestSelection { skip: vec!["::b::".into()], ..Default::default() };
        assert!(selection.takes("live::a::one") && !selection.takes("live::b::one"));
    }

    #[test]
    fn a_file_that_names_what_is_not_there_is_refused() {
        let tests = ["live::a::one".to_owned()];
        assert!(only("live::a::one\nvm::b::two").ensure_complete(&["live"], &tests).is_ok());
        let error =
            only("live::a::two").ensure_complete(&["live"], &tests).expect_err("it is not there");
        assert_eq!(error.to_string(), "there is no test live::a::two");
        assert!(only("live::c::").ensure_complete(&["live"], &tests).is_err());
    }
}
