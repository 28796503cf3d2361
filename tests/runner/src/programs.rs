//! The test programs that cargo has built: their names, paths and working folders.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

#[derive(Debug, Clone, PartialEq)]
pub struct TestProgram {
    pub name: String,
    /// The folder of the package, in which cargo would run the test program as well.
    pub folder: PathBuf,
    pub path: PathBuf,
}

/// The part of a message of `cargo --message-format=json` that the runner reads (the cargo book,
/// "External tools").
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<CargoProfile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct CargoProfile {
    test: bool,
}

/// A test target keeps its name; the unit tests of a library or binary are named by the folder of
/// their package.
fn program(message: Message) -> Option<TestProgram> {
    let (target, manifest) = (message.target?, message.manifest_path?);
    let path = message.executable?;
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let folder = manifest.parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let name = if target.kind.iter().any(|kind| kind == "test") { target.name } else { package };
    Some(TestProgram { name, folder, path })
}

/// Prints the list of programs that cargo's messages name.
pub fn print(messages: impl BufRead) -> Result<()> {
    let mut all = BTreeMap::new();
    for line in messages.lines() {
        let line = line.context("cannot read cargo's messages")?;
        let message =
            serde_json::from_str(&line).with_context(|| format!("not a message: {line}"))?;
        let Some(program) = program(message) else { continue };
        if let Some(other) = all.insert(program.name.clone(), program) {
            bail!("two test programs are called {}", other.name);
        }
    }
    ensure!(!all.is_empty(), "cargo has built no test program");
    for TestProgram { name, folder, path } in all.values() {
        println!("{name}\t{}\t{}", folder.display(), path.display());
    }
    Ok(())
}

/// Reads the programs of these names from the list, in this order.
pub fn read(list: &Path, names: &[String]) -> Result<Vec<TestProgram>> {
    let mut text = String::new();
    let mut file =
        fs::File::open(list).with_context(|| format!("cannot open {}", list.display()))?;
    file.read_to_string(&mut text).with_context(|| format!("cannot read {}", list.display()))?;
    let all: Vec<_> = text.lines().map(parse).collect::<Result<_>>()?;
    let find = |name: &String| {
        let found = all.iter().find(|program| program.name == *name);
        found.cloned().with_context(|| format!("{} lists no test program {name}", list.display()))
    };
    names.iter().map(find).collect()
}

fn parse(line: &str) -> Result<TestProgram> {
    let [name, folder, path]: [&str; 3] = line
        .split('\t')
        .collect::<Vec<_>>()
        .try_into()
        .ok()
        .with_context(|| format!("not three fields: {line}"))?;
    Ok(TestProgram { name: name.into(), folder: folder.into(), path: path.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, name: &str, is_test: bool) -> Option<TestProgram> {
        let text = format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{is_test}}},
                "executable":"/w/target/x"}}"#
        );
        program(serde_json::from_str(&text).expect("JSON"))
    }

    #[test]
    fn unit_tests_have_the_name_of_their_package_and_test_targets_their_own() {
        assert_eq!(of("lib", "other", true).expect("a program").name, "a");
        let live = of("test", "live", true).expect("a program");
        assert_eq!((live.name.as_str(), live.folder), ("live", "/w/crates/a".into()));
    }

    #[test]
    fn programs_that_are_no_tests_are_left_out() {
        assert_eq!(of("bin", "a", false), None);
        let message = serde_json::from_str(r#"{"reason":"build-finished","success":true}"#);
        assert_eq!(program(message.expect("JSON")), None);
    }

    #[test]
    fn a_line_of_the_list_has_three_fields() {
        let program = parse("live\t/w/a\t/w/target/live").expect("a program");
        assert_eq!(program.path, PathBuf::from("/w/target/live"));
        assert!(parse("live /w/a /w/target/live").is_err());
    }
}
