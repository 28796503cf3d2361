//! The guard's store after concurrent changes by several processes, and after failed writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const CONTENT: [u8; 4] = *b"test";

fn tollgate() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes an export of one baseline that contains only this call after itself.
fn export(folder: &Path, call: &str) -> PathBuf {
    let baselines = json!([{
        "digest": hex(&CONTENT), "scope": null, "paths": ["/bin/test"],
        "lookahead": 9, "sequence": 6, "state": "training", "calls": [call],
        "pairs": [{"call": 0, "earlier": 0, "learned": 1, "normal": 0}], "windows": [],
        "trained": 2, "changed_at": 2, "anomalies": 0, "seen_calls": 2,
        "first_seen": 1_767_225_600, "last_changed": 1_767_225_600, "saved": 0,
    }]);
    let path = folder.join(format!("{call}.json"));
    let sum = hex(baselines.to_string().as_bytes());
    let document = json!({"schema": "tollgate.baselines/1", "sha256": sum, "baselines": baselines});
    fs::write(&path, document.to_string()).expect("written");
    path
}

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn shown(store: &Path) -> Value {
    let output =
        succeeded(tollgate().args(["guard", "show", "test", "--json", "--store"]).arg(store));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn concurrent_imports_are_all_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let exports: Vec<_> = (0..40).map(|n| export(folder.path(), &format!("syscall_{n}"))).collect();
    let import = |file| {
        let mut command = tollgate();
        command.args(["guard", "import", "--store"]).args([&store, file]).stdout(Stdio::null());
        command.spawn().expect("it starts")
    };
    let imports: Vec<_> = exports.iter().map(import).collect();
    for mut import in imports {
        assert!(import.wait().expect("it ends").success());
    }
    let shown = shown(&store);
    assert_eq!((&shown["pairs"], &shown["seen_calls"]), (&40.into(), &80.into()));
}

/// Makes a store with the baseline of one call, and returns it with exports of many more calls.
fn store_and_more(folder: &Path) -> (PathBuf, Vec<PathBuf>) {
    let store = folder.join("store");
    succeeded(
        tollgate().args(["guard", "import", "--store"]).args([&store, &export(folder, "read")]),
    );
    (store, (0..40).map(|n| export(folder, &format!("syscall_{n}"))).collect())
}

/// Imports further calls into a store that a failed import has left.
fn import_all(store: &Path, more: &[PathBuf]) {
    succeeded(tollgate().args(["guard", "import", "--store"]).arg(store).args(more));
    assert_eq!(shown(store)["pairs"], 41);
}

#[test]
fn failed_write_keeps_the_old_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, more) = store_and_more(folder.path());
    let before_import = shown(&store);
    // The limit to the size of files is an error, and does not end the program by SIGXFSZ.
    let script = "ulimit -f 1; exec \"$0\" guard import --store \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_tollgate")])
        .arg(&store)
        .args(&more)
        .output()
        .expect("sh runs");
    assert!(!output.status.success());
    assert_eq!(shown(&store), before_import);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.starts_with("tollgate: cannot save "), "{message}");
    assert!(message.ends_with(".baseline: File too large\n"), "{message}");
    let names = fs::read_dir(folder.path().join("store")).expect("a folder");
    assert_eq!(names.count(), 2, "the baseline and the lock");
    import_all(&store, &more);
}

#[test]
fn remains_of_a_killed_writer_do_not_disturb() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, more) = store_and_more(folder.path());
    let before_import = shown(&store);
    let files = fs::read_dir(&store).expect("a folder").flatten().map(|entry| entry.path());
    let baseline = files.into_iter().find(|path| path.to_string_lossy().ends_with(".baseline"));
    let baseline = baseline.expect("there is a baseline");
    // What the writer has written when it is killed.
    let content = fs::read(&baseline).expect("it is ours");
    let unfinished = format!("{}.new", baseline.display());
    fs::write(unfinished, &content[..content.len() / 2]).expect("it is ours");
    assert_eq!(shown(&store), before_import);
    import_all(&store, &more);
}

#[test]
fn incomplete_export_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let file = export(folder.path(), "read");
    succeeded(tollgate().args(["guard", "import", "--store"]).args([&store, &file]));
    let damaged = store.join(format!("{}.baseline", "0".repeat(64)));
    fs::write(damaged, "{").expect("written");
    let output = tollgate().args(["guard", "export", "--all", "--store"]).arg(&store).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("1 of 2 baselines cannot be read"), "{said}");
    assert!(output.stdout.is_empty());
}
