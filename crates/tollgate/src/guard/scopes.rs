//! Scopes (`--scope`), which distinguish several programs with the same file. A scope's name is
//! part of the baseline's name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use identity::cgroup::{Cgroups, container_of};
use identity::script::script_argument;
use kernel::identity_name::{encode_identity, identity_hash};
use kernel::process::read_text;
use kernel::wire;
use serde::Deserialize;

use super::baseline::BaselineId;
use super::container_image::image_of;
use super::program_file::file_of_link;
use crate::kernel_text;
use crate::regular_file::open_regular;

/// The maximum number of scopes of one program that have profiles at a time. Scripts that are
/// created and run only once must not use up the profiles of all other programs.
pub const MAX_SCOPES: usize = 128;

/// The gate lists at most this many processes at a time to attach them (`attach_requests` in
/// bpf/gate/tasks.bpf.h), and each may have a scope of its own.
const MAX_ATTACHED_NAMES: usize = wire::THREADS as usize;

/// What distinguishes the baselines of a program's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScopeKind {
    /// The script that an interpreter such as python3 or sh runs
    Script,
    /// The systemd service that the program runs in
    Unit,
    /// The image of the container that the program runs in
    Image,
}

impl ScopeKind {
    /// One of [`wire::identity_kind`].
    pub fn wire(self) -> u32 {
        match self {
            Self::Script => wire::IDENTITY_SCRIPT,
            Self::Unit => wire::IDENTITY_UNIT,
            Self::Image => wire::IDENTITY_IMAGE,
        }
    }

    /// The scope's name in baselines. `None` if the cgroup turns out not to be that of a container.
    fn name(self, found: &wire::identity_name) -> Option<String> {
        let text = wire::text(&found.text);
        match self {
            Self::Script if text.starts_with('/') => Some(format!("script:{text}")),
            Self::Script => {
                let folder = wire::fd_path { mode: libc::S_IFDIR as u16, ..found.folder };
                let (folder, file) = (kernel_text::path(&folder), text.trim_start_matches("./"));
                Some(format!("script:{}/{file}", folder.trim_end_matches('/')))
            }
            Self::Unit => Some(format!("unit:{text}")),
            Self::Image => container_of(&text).map(|container| {
                image_of(Path::new("/"), container).map_or_else(
                    || format!("container:{container}"),
                    |image| format!("image:{image}"),
                )
            }),
        }
    }

    fn scope(self, found: &wire::identity_name) -> Scope {
        let name = self.name(found);
        Scope { number: identity_hash(found), name }
    }

    /// The scope that the kernel side will compute, if the name of a stored baseline determines it.
    pub fn of_baseline_name(self, name: &str) -> Option<Scope> {
        let (kind, text) = name.split_once(':')?;
        let is_own = matches!((self, kind), (Self::Script, "script") | (Self::Unit, "unit"));
        is_own.then(|| self.scope(&encode_identity(text.as_bytes(), None)))
    }
}

/// The scope of one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The number of the scope in the kernel; 0 without a scope.
    pub number: u64,
    pub name: Option<String>,
}

/// The scopes of a session.
pub struct SessionScopes {
    kind: Option<ScopeKind>,
    /// Names of the scopes of attached processes, which the kernel side does not know.
    attached: BTreeMap<u64, Option<String>>,
}

impl SessionScopes {
    pub fn new(kind: Option<ScopeKind>) -> Self {
        Self { kind, attached: BTreeMap::new() }
    }

    pub fn kind(&self) -> Option<ScopeKind> {
        self.kind
    }

    /// The name of the scope in which a program started.
    pub fn of_record(&self, record: &wire::guard_program_record) -> Option<String> {
        let number = record.program.scope;
        let kind = self.kind.filter(|_| number != 0)?;
        match identity_hash(&record.scope) == number {
            true => kind.name(&record.scope),
            false => self.attached.get(&number).cloned().flatten(),
        }
    }

    /// The scope of a process that joins the session. Its name is stored for later records.
    pub fn of_process(&mut self, process: impl FnOnce() -> ProcessInfo) -> Scope {
        let Some(kind) = self.kind else { return Scope::default() };
        let Some(found) = process().scope(kind) else { return Scope::default() };
        let scope = kind.scope(&found);
        // Most entries are of processes that have ended.
        if self.attached.len() == MAX_ATTACHED_NAMES {
            self.attached.clear();
        }
        self.attached.insert(scope.number, scope.name.clone());
        scope
    }
}

/// Whether one more scope of a program may have a profile besides those in `known`.
pub fn has_free_scope<'a>(
    identity: &BaselineId,
    known: impl Iterator<Item = &'a BaselineId>,
) -> bool {
    let is_of_same = |other: &&BaselineId| other.digest == identity.digest && other.scope.is_some();
    identity.scope.is_none() || known.filter(is_of_same).count() < MAX_SCOPES
}

/// What determines a process's scope.
#[derive(Default)]
pub struct ProcessInfo {
    program: PathBuf,
    arguments: Vec<Vec<u8>>,
    folder: PathBuf,
    /// /proc/PID/cgroup
    cgroups: String,
}

impl ProcessInfo {
    /// Information about a process. What cannot be read because the process has ended is empty.
    /// This may block: a process may have put its arguments into a file of FUSE.
    pub fn from_pid(pid: u32) -> Self {
        let at = |file| format!("/proc/{pid}/{file}");
        let line = fs::read(at("cmdline")).unwrap_or_default();
        let line = line.strip_suffix(b"\0").unwrap_or(&line);
        Self {
            program: file_of_link(Path::new(&at("exe"))).unwrap_or_default(),
            arguments: line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect(),
            folder: file_of_link(Path::new(&at("cwd"))).unwrap_or_default(),
            cgroups: read_text(at("cgroup")).unwrap_or_default(),
        }
    }

    /// Information about a command of this process, by its path and its arguments.
    pub fn for_command(path: &Path, words: &[OsString]) -> Self {
        let (program, arguments) = interpreter_of_script(path, words);
        Self {
            program: program.canonicalize().unwrap_or(program),
            arguments: arguments.into_iter().map(OsString::into_vec).collect(),
            folder: std::env::current_dir().unwrap_or_default(),
            cgroups: read_text("/proc/self/cgroup").unwrap_or_default(),
        }
    }

    fn scope(&self, kind: ScopeKind) -> Option<Box<wire::identity_name>> {
        if kind != ScopeKind::Script {
            let cgroups = Cgroups::parse(&self.cgroups);
            let found = match kind {
                ScopeKind::Unit => cgroups.kernel_service(),
                _ => cgroups.kernel_container(),
            };
            return found.map(|text| encode_identity(text.as_bytes(), None));
        }
        let file_name = self.program.file_name().unwrap_or_default().to_string_lossy();
        let script = script_argument(&file_name, &self.arguments)?;
        let folder = (!script.starts_with(b"/")).then_some(self.folder.as_path());
        Some(encode_identity(script, folder))
    }
}

/// The program that runs, and its arguments: for a script, those of the interpreter.
pub fn interpreter_of_script(path: &Path, words: &[OsString]) -> (PathBuf, Vec<OsString>) {
    /// BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h
    const MAX_SHEBANG_BYTES: u64 = 256;
    let mut first = Vec::new();
    let read = open_regular(path)
        .and_then(|(file, _)| file.take(MAX_SHEBANG_BYTES).read_to_end(&mut first));
    let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some(line) = line.strip_prefix(b"#!").filter(|_| read.is_ok()).map(<[u8]>::trim_ascii)
    else {
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

    fn process(program: &str, line: &str, folder: &str) -> ProcessInfo {
        ProcessInfo {
            program: program.into(),
            arguments: line.split(' ').map(|word| word.as_bytes().to_vec()).collect(),
            folder: folder.into(),
            cgroups: "0::/system.slice/app.service\n".into(),
        }
    }

    fn name(kind: ScopeKind, process: ProcessInfo) -> Option<String> {
        SessionScopes::new(Some(kind)).of_process(|| process).name
    }

    #[test]
    fn a_script_is_named_by_its_path() {
        let of =
            |line: &str| name(ScopeKind::Script, process("/usr/bin/python3.11", line, "/srv/a"));
        assert_eq!(of("python3 app.py").as_deref(), Some("script:/srv/a/app.py"));
        assert_eq!(of("python3 ./app.py").as_deref(), Some("script:/srv/a/app.py"));
        assert_eq!(of("python3 /opt/app.py").as_deref(), Some("script:/opt/app.py"));
        assert_eq!(of("python3 -c code"), None);
        let root = process("/bin/dash", "sh run.sh", "/");
        assert_eq!(name(ScopeKind::Script, root).as_deref(), Some("script:/run.sh"));
        let unit = process("/bin/dash", "sh run.sh", "/");
        assert_eq!(name(ScopeKind::Unit, unit).as_deref(), Some("unit:app.service"));
    }

    #[test]
    fn stored_scopes_are_recomputed() {
        let scopes = SessionScopes::new(Some(ScopeKind::Script));
        let scope = ScopeKind::Script.of_baseline_name("script:/opt/app.py").expect("a scope");
        assert_eq!(scope.name.as_deref(), Some("script:/opt/app.py"));
        let began = wire::guard_program_record {
            scope: *encode_identity(b"/opt/app.py", None),
            program: wire::guard_program { scope: scope.number, ..Default::default() },
            ..Default::default()
        };
        assert_eq!(scopes.of_record(&began), scope.name);
        assert_eq!(ScopeKind::Script.of_baseline_name("unit:app.service"), None);
        assert_eq!(ScopeKind::Image.of_baseline_name("image:nginx"), None);
        assert_eq!(SessionScopes::new(None).of_record(&began), None);
    }

    #[test]
    fn attached_process_keeps_its_scope_name() {
        let mut scopes = SessionScopes::new(Some(ScopeKind::Unit));
        let scope = scopes.of_process(|| process("/usr/bin/app", "app", "/"));
        let record = wire::guard_program_record {
            program: wire::guard_program { scope: scope.number, ..Default::default() },
            ..Default::default()
        };
        assert_eq!(scopes.of_record(&record).as_deref(), Some("unit:app.service"));
    }

    #[test]
    fn a_script_has_its_interpreters_arguments() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script");
        let words = ["script".into(), "x".into()];
        let executed = |text: &str| {
            fs::write(&path, text).expect("written");
            let (program, arguments) = interpreter_of_script(&path, &words);
            (program.display().to_string(), arguments.join(std::ffi::OsStr::new(" ")))
        };
        let at = path.display();
        assert_eq!(
            executed("#! /bin/sh -e x \n"),
            ("/bin/sh".into(), format!("/bin/sh -e x {at} x").into())
        );
        assert_eq!(executed("#!/bin/sh\n"), ("/bin/sh".into(), format!("/bin/sh {at} x").into()));
        assert_eq!(executed("\u{7f}ELF"), (at.to_string(), "script x".into()));
    }
}
