//! Where Tollgate writes, and what it does not let through to a terminal.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

const OWN_FAILURE: Option<i32> = Some(125);

fn tollgate(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args(words)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/diff.in"));
    command
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let cases = [
        (&["--help"][..], "the help"),
        (&["run", "--help"], "the help"),
        (&["--version"], "the version"),
    ];
    for (words, what) in cases {
        let full = File::options().write(true).open("/dev/full").expect("it exists");
        let output = tollgate(words).stdout(full).output().expect("it runs");
        assert_eq!(output.status.code(), OWN_FAILURE, "{words:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let message = format!("tollgate: cannot write {what} to stdout: No space");
        assert!(said.starts_with(&message), "{said}");
        let mut command = tollgate(words);
        let close = || {
            // SAFETY: its own; nothing of it is used here.
            unsafe { libc::close(libc::STDOUT_FILENO) };
            Ok(())
        };
        // SAFETY: the action only makes a system call.
        unsafe { command.pre_exec(close) };
        assert_eq!(command.output().expect("it runs").status.code(), OWN_FAILURE, "{words:?}");
    }
}

#[test]
fn paths_in_messages_do_not_control_the_terminal() {
    let path = OsStr::from_bytes(b"a\x1b[2J\ntollgate: forged \xc2\x9b2J");
    let output = tollgate(&["lens", "diff"]).args([path, path]).output().expect("it runs");
    assert_eq!(output.status.code(), OWN_FAILURE);
    let said = String::from_utf8_lossy(&output.stderr);
    let shown = r"tollgate: cannot read a\x1b[2J\ntollgate: forged \u009b2J: No such file";
    assert!(said.starts_with(shown), "{said:?}");
    let diff = &["lens", "diff", "before.json", "after.json", "-o"];
    let folder = OsStr::from_bytes(b"no\x1b[2J\nfolder/x");
    let output = tollgate(diff).arg(folder).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with(r"tollgate: cannot write the result to no\x1b[2J\nfolder"),
        "{said:?}"
    );
}

#[test]
fn result_goes_to_a_named_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let diff = &["lens", "diff", "before.json", "after.json", "-o"];
    let mut writer = tollgate(diff).arg(&pipe).spawn().expect("it runs");
    let text = fs::read_to_string(&pipe).expect("it is ours");
    assert!(writer.wait().expect("it is our child").success());
    assert!(text.starts_with("before: server --old"), "{text}");
}

#[test]
fn standard_descriptors_are_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    for (name, old) in [("/dev/stdout", "old\n"), ("/dev/fd/1", "old\n")] {
        fs::write(&path, old).expect("it is ours");
        let log = File::options().append(true).open(&path).expect("it is ours");
        let diff = &["lens", "diff", "before.json", "after.json", "-o", name];
        assert!(tollgate(diff).stdout(Stdio::from(log)).status().expect("it runs").success());
        let text = fs::read_to_string(&path).expect("it is ours");
        assert!(text.starts_with("old\nbefore: server --old"), "{text}");
    }
}

#[test]
fn results_do_not_replace_inputs() {
    const INPUT: &str = "./input.ec";
    const CONTENT: &str = "the input\n";
    for words in [
        "lens diff ./input.ec ./other",
        "lens diff ./other ./input.ec",
        "cost compare ./other ./input.ec",
        "cost run --arm-file ./input.ec",
        "guard merge ./other ./input.ec",
        "guard replay --train ./other --test ./input.ec",
        "guard replay --train ./input.ec --test-attack ./other --test-normal ./other",
        "pace simulate ./other ./input.ec",
        "pace simulate ./other --levels ./input.ec",
        "pace levels ./input.ec",
        "plugin check ./input.ec",
        "plugin build ./input.ec",
        "plugin bench ./input.ec",
        "plugin bench ./other --input ./input.ec",
        "plugin call ./input.ec",
        "plugin call ./other --input ./input.ec",
        "plugin load ./input.ec",
        "plugin swap name ./input.ec",
        "service check ./input.ec",
        "run --plugin ./other --plugin ./input.ec COMMAND",
        "run --pace ./input.ec COMMAND",
        "pace watch --rules ./input.ec COMMAND",
        "pace watch --levels ./input.ec COMMAND",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [INPUT, "other"] {
            fs::write(folder.path().join(name), CONTENT).expect("it is ours");
        }
        let (options, command) =
            words.split_once(" COMMAND").map_or((words, false), |(o, _)| (o, true));
        let mut words: Vec<_> = options.split(' ').chain(["-o", INPUT]).collect();
        words.extend(if command { &["--", "true"][..] } else { &[] });
        let output = tollgate(&words).current_dir(folder.path()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = "tollgate: the result would replace the input ./input.ec; give another file";
        assert!(said.starts_with(expected), "{words:?}: {said}");
        assert_eq!(output.status.code(), OWN_FAILURE, "{words:?}");
        let text = fs::read_to_string(folder.path().join(INPUT)).expect("it is there");
        assert_eq!(text, CONTENT, "{words:?}");
    }
}
