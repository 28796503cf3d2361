//! Which of several programs one file is: `--scope`. Its name is a part of the baseline's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use kernel::{scope, wire};
use serde::Deserialize;

use super::baseline::Identity;
use super::file::{file_of_link, open_file};
use super::image::image_of;
use super::placement::container_of;
use crate::slow;

/// Scopes of one program that have profiles at a time: files without end, such as scripts that are made to be run
/// once, are not to take those of all others.
pub const MOST_SCOPES: usize = 128;

/// As many as programs can have names.
const MOST_TAKEN_IN: usize = 4096;

/// What a baseline is of, besides the program's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The script that an interpreter such as python3 or sh is given
    Script,
    /// The systemd service that it runs in
    Unit,
    /// The image of the container that it runs in
    Image,
}

impl Kind {
    /// One of [`wire::guard_scope`].
    pub fn wire(self) -> u32 {
        match self {
            Self::Script => wire::GUARD_SCRIPT,
            Self::Unit => wire::GUARD_UNIT,
            Self::Image => wire::GUARD_IMAGE,
        }
    }

    /// As baselines have it. None: it is in no container, whatever its control group looks like.
    fn name(self, found: &wire::scope_name) -> Option<String> {
        let text = slow::text(&found.text);
        match self {
            Self::Script if text.starts_with('/') => Some(format!("script:{text}")),
            Self::Script => {
                let folder = wire::fd_path { mode: libc::S_IFDIR as u16, ..found.folder };
                let (folder, file) = (slow::path(&folder), text.trim_start_matches("./"));
                Some(format!("script:{}/{file}", folder.trim_end_matches('/')))
            }
            Self::Unit => Some(format!("unit:{text}")),
            Self::Image => container_of(&text).map(|container| {
                image_of(Path::new("/"), container)
                    .map_or_else(|| format!("container:{container}"), |image| format!("image:{image}"))
            }),
        }
    }

    fn scope(self, found: &wire::scope_name) -> Scope {
        let name = self.name(found);
        Scope { number: scope::number(found), name }
    }

    /// What the kernel side will look for, where that follows from the name of a stored baseline.
    pub fn stored(self, name: &str) -> Option<Scope> {
        let (kind, text) = name.split_once(':')?;
        let is_own = matches!((self, kind), (Self::Script, "script") | (Self::Unit, "unit"));
        is_own.then(|| self.scope(&scope::name(text.as_bytes(), None)))
    }
}

/// Of one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// In the kernel; 0: none.
    pub number: u64,
    pub name: Option<String>,
}

/// The scopes of a session.
pub struct Scopes {
    kind: Option<Kind>,
    /// Of processes that were taken in, whose names the kernel side does not know.
    taken_in: BTreeMap<u64, Option<String>>,
}

impl Scopes {
    pub fn new(kind: Option<Kind>) -> Self {
        Self { kind, taken_in: BTreeMap::new() }
    }

    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// In which a program began.
    pub fn of_record(&self, record: &wire::guard_program_record) -> Option<String> {
        let number = record.program.scope;
        let kind = self.kind.filter(|_| number != 0)?;
        match scope::number(&record.scope) == number {
            true => kind.name(&record.scope),
            false => self.taken_in.get(&number).cloned().flatten(),
        }
    }

    pub fn of_process(&mut self, process: impl FnOnce() -> Process) -> Scope {
        let Some(kind) = self.kind else { return Scope::default() };
        let Some(found) = process().scope(kind) else { return Scope::default() };
        let scope = kind.scope(&found);
        // Of processes that are gone, most of them.
        if self.taken_in.len() == MOST_TAKEN_IN {
            self.taken_in.clear();
        }
        self.taken_in.insert(scope.number, scope.name.clone());
        scope
    }
}

/// Whether one more scope of a program may have a profile besides these.
pub fn has_room<'a>(identity: &Identity, known: impl Iterator<Item = &'a Identity>) -> bool {
    let is_of_same = |other: &&Identity| other.digest == identity.digest && other.scope.is_some();
    identity.scope.is_none() || known.filter(is_of_same).count() < MOST_SCOPES
}

/// What tells a process's scope.
pub struct Process {
    program: PathBuf,
    arguments: Vec<Vec<u8>>,
    folder: PathBuf,
    /// /proc/PID/cgroup
    cgroups: String,
}

impl Process {
    /// As far as it still runs.
    pub fn running(pid: u32) -> Self {
        let at = |file| format!("/proc/{pid}/{file}");
        let line = fs::read(at("cmdline")).unwrap_or_default();
        let line = line.strip_suffix(b"\0").unwrap_or(&line);
        Self {
            program: file_of_link(Path::new(&at("exe"))).unwrap_or_default(),
            arguments: line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect(),
            folder: file_of_link(Path::new(&at("cwd"))).unwrap_or_default(),
            cgroups: fs::read_to_string(at("cgroup")).unwrap_or_default(),
        }
    }

    /// A command of this process, by the path that it is found at, and its words.
    pub fn to_be(path: &Path, words: &[OsString]) -> Self {
        let (program, arguments) = executed(path, words);
        Self {
            program: program.canonicalize().unwrap_or(program),
            arguments: arguments.into_iter().map(OsString::into_vec).collect(),
            folder: std::env::current_dir().unwrap_or_default(),
            cgroups: fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
        }
    }

    fn scope(&self, kind: Kind) -> Option<Box<wire::scope_name>> {
        if kind != Kind::Script {
            return scope::placement(kind.wire(), &self.cgroups)
                .map(|text| scope::name(text.as_bytes(), None));
        }
        let file_name = self.program.file_name().unwrap_or_default().to_string_lossy();
        let script = scope::script(&file_name, &self.arguments)?;
        let folder = (!script.starts_with(b"/")).then_some(self.folder.as_path());
        Some(scope::name(script, folder))
    }
}

/// The program that runs, and its arguments: of a script they are the interpreter's.
pub fn executed(path: &Path, words: &[OsString]) -> (PathBuf, Vec<OsString>) {
    /// BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h
    const LONGEST: u64 = 256;
    let mut first = Vec::new();
    let read = open_file(path).and_then(|(file, _)| file.take(LONGEST).read_to_end(&mut first));
    let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some(line) = line.strip_prefix(b"#!").filter(|_| read.is_ok()).map(<[u8]>::trim_ascii) else {
        return (path.to_owned(), words.to_vec());
    };
    let word = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (interpreter, option) = (word(&line[..end]), line[end..].trim_ascii());
    let option = (!option.is_empty()).then(|| word(option));
    let arguments = std::iter::once(interpreter.clone()).chain(option).chain([path.into()]);
    (interpreter.into(), arguments.chain(words.iter().skip(1).cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(program: &str, line: &str, folder: &str) -> Process {
        Process {
            program: program.into(),
            arguments: line.split(' ').map(|word| word.as_bytes().to_vec()).collect(),
            folder: folder.into(),
            cgroups: "0::/system.slice/app.service\n".into(),
        }
    }

    fn name(kind: Kind, process: Process) -> Option<String> {
        Scopes::new(Some(kind)).of_process(|| process).name
    }

    #[test]
    fn a_script_is_named_by_its_path() {
        let of = |line: &str| name(Kind::Script, process("/usr/bin/python3.11", line, "/srv/a"));
        assert_eq!(of("python3 app.py").as_deref(), Some("script:/srv/a/app.py"));
        assert_eq!(of("python3 ./app.py").as_deref(), Some("script:/srv/a/app.py"));
        assert_eq!(of("python3 /opt/app.py").as_deref(), Some("script:/opt/app.py"));
        assert_eq!(of("python3 -c code"), None);
        let root = process("/bin/dash", "sh run.sh", "/");
        assert_eq!(name(Kind::Script, root).as_deref(), Some("script:/run.sh"));
        let unit = process("/bin/dash", "sh run.sh", "/");
        assert_eq!(name(Kind::Unit, unit).as_deref(), Some("unit:app.service"));
    }

    #[test]
    fn what_is_stored_is_found_again_where_its_name_says_how() {
        let scopes = Scopes::new(Some(Kind::Script));
        let scope = Kind::Script.stored("script:/opt/app.py").expect("a scope");
        assert_eq!(scope.name.as_deref(), Some("script:/opt/app.py"));
        let began = wire::guard_program_record {
            scope: *scope::name(b"/opt/app.py", None),
            program: wire::guard_program { scope: scope.number, ..Default::default() },
            ..Default::default()
        };
        assert_eq!(scopes.of_record(&began), scope.name);
        assert_eq!(Kind::Script.stored("unit:app.service"), None);
        assert_eq!(Kind::Image.stored("image:nginx"), None);
        assert_eq!(Scopes::new(None).of_record(&began), None);
    }

    #[test]
    fn a_process_that_was_taken_in_keeps_its_name() {
        let mut scopes = Scopes::new(Some(Kind::Unit));
        let scope = scopes.of_process(|| process("/usr/bin/app", "app", "/"));
        let met = wire::guard_program_record {
            program: wire::guard_program { scope: scope.number, ..Default::default() },
            ..Default::default()
        };
        assert_eq!(scopes.of_record(&met).as_deref(), Some("unit:app.service"));
    }

    #[test]
    fn a_script_has_its_interpreters_arguments() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script");
        let words = ["script".into(), "x".into()];
        let executed = |text: &str| {
            fs::write(&path, text).expect("written");
            let (program, arguments) = executed(&path, &words);
            (program.display().to_string(), arguments.join(std::ffi::OsStr::new(" ")))
        };
        let at = path.display();
        assert_eq!(executed("#! /bin/sh -e x \n"), ("/bin/sh".into(), format!("/bin/sh -e x {at} x").into()));
        assert_eq!(executed("#!/bin/sh\n"), ("/bin/sh".into(), format!("/bin/sh {at} x").into()));
        assert_eq!(executed("\u{7f}ELF"), (at.to_string(), "script x".into()));
    }
}
