//! The test programs that cargo has built: what each is called, where it is, and where it runs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub name: String,
    /// cargo runs a test program in the folder of its package; so does the runner.
    pub folder: PathBuf,
    pub path: PathBuf,
}

/// What is read of a message of `cargo --message-format=json` (the cargo book, "External tools").
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A test target is called as it is; the unit tests of a library or binary, as its package's
/// folder.
fn program(message: Message) -> Option<Program> {
    let (target, manifest) = (message.target?, message.manifest_path?);
    let path = message.executable?;
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let folder = manifest.parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let name = if target.kind.iter().any(|kind| kind == "test") { target.name } else { package };
    Some(Program { name, folder, path })
}

/// The list of programs that cargo's messages name.
pub fn print(messages: impl BufRead) -> Result<()> {
    let mut all = BTreeMap::new();
    for line in messages.lines() {
        let line = line.context("cannot read cargo's messages")?;
        let message = serde_json::from_str(&line).with_context(|| format!("not a message: {line}"))?;
        let Some(program) = program(message) else { continue };
        if let Some(other) = all.insert(program.name.clone(), program) {
            bail!("two test programs are called {}", other.name);
        }
    }
    ensure!(!all.is_empty(), "cargo has built no test program");
    for Program { name, folder, path } in all.values() {
        println!("{name}\t{}\t{}", folder.display(), path.display());
    }
    Ok(())
}

/// The programs of these names, in this order.
pub fn read(list: &Path, names: &[String]) -> Result<Vec<Program>> {
    let mut text = String::new();
    let mut file = fs::File::open(list).with_context(|| format!("cannot open {}", list.display()))?;
    file.read_to_string(&mut text).with_context(|| format!("cannot read {}", list.display()))?;
    let all: Vec<_> = text.lines().map(parse).collect::<Result<_>>()?;
    let find = |name: &String| {
        let found = all.iter().find(|program| program.name == *name);
        found.cloned().with_context(|| format!("{} lists no test program {name}", list.display()))
    };
    names.iter().map(find).collect()
}

fn parse(line: &str) -> Result<Program> {
    let [name, folder, path]: [&str; 3] = line
        .split('\t')
        .collect::<Vec<_>>()
        .try_into()
        .ok()
        .with_context(|| format!("not three fields: {line}"))?;
    Ok(Program { name: name.into(), folder: folder.into(), path: path.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, name: &str, is_test: bool) -> Option<Program> {
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
