//! Which programs the guard of a session covers, and which of them it never holds.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kernel::guard::exempt_files::executor;
use kernel::wire;

use crate::format::shown_path;
use crate::user;

/// Which programs are guarded, and which of these are never held.
#[derive(Clone, Default)]
pub struct ProgramFilter {
    /// If empty, all programs are selected.
    pub selected: Vec<PathBuf>,
    pub exempt: Vec<ExemptProgram>,
    /// Processes of this session (setsid) are never held.
    pub exempt_sid: Option<u32>,
}

/// A program that is never held if root, or this user, has executed it. Everybody can execute it
/// with code of his own (`LD_PRELOAD`).
#[derive(Clone)]
pub struct ExemptProgram {
    pub path: PathBuf,
    pub user: Option<u32>,
}

impl ExemptProgram {
    /// Reads `PATH` or `PATH:USER`. A path may contain a colon.
    pub fn parse(text: &OsStr) -> Result<Self> {
        let whole = Self { path: text.into(), user: None };
        let bytes = text.as_bytes();
        let colon = bytes.iter().rposition(|byte| *byte == b':');
        let Some(colon) = colon.filter(|_| !whole.path.exists()) else { return Ok(whole) };
        let name = String::from_utf8_lossy(&bytes[colon + 1..]);
        // Users of other name services have numbers only.
        match user::uid(&name).or_else(|| name.parse().ok()) {
            Some(user) => {
                Ok(Self { path: OsStr::from_bytes(&bytes[..colon]).into(), user: Some(user) })
            }
            None => bail!(
                "there is no program {}, and no user {} in /etc/passwd",
                shown_path(&whole.path),
                shown_path(Path::new(&*name))
            ),
        }
    }

    fn executors(&self) -> impl Iterator<Item = u32> {
        [wire::GUARD_EXECUTOR_ROOT].into_iter().chain(self.user.map(executor))
    }
}

/// These programs are never held, because without them administrators cannot log in, or nothing is
/// logged. They are PID 1 and Tollgate, then the journal and the SSH server by the paths of Debian,
/// Fedora and related distributions.
const NEVER_HELD: [&str; 8] = [
    "/proc/1/exe",
    "/proc/self/exe",
    "/lib/systemd/systemd-journald",
    "/usr/lib/systemd/systemd-journald",
    "/usr/sbin/sshd",
    "/usr/lib/openssh/sshd-session",
    "/usr/libexec/openssh/sshd-session",
    "/usr/lib/ssh/sshd-session",
];

/// The permissions of the owner, the group and others to execute a file (inode(7)).
const EXECUTE_BITS: u32 = 0o111;
/// How a script begins (fs/binfmt_script.c).
const SCRIPT_START: [u8; 2] = *b"#!";

/// Whether the file is the one at `path` in this process's mount namespace. The file's own path is
/// not used: in another mount namespace, any user can give a file such a path.
fn is_at(path: &Path, file: &Metadata) -> bool {
    fs::metadata(path).is_ok_and(|known| (known.dev(), known.ino()) == (file.dev(), file.ino()))
}

/// Fails if the file at the path is no program. The process of a script runs its interpreter.
fn check_program(path: &Path) -> Result<()> {
    let file = fs::metadata(path)?;
    if !file.is_file() {
        bail!("{} is not a program", shown_path(path));
    }
    let mut start = [0; SCRIPT_START.len()];
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok();
    if is_read && start == SCRIPT_START {
        bail!(
            "{} is a script: the program of its process is its interpreter; name the interpreter, \
            and use --scope script for a baseline for each script",
            shown_path(path)
        );
    }
    if file.mode() & EXECUTE_BITS == 0 {
        bail!("{} is not a program: nobody may execute it", shown_path(path));
    }
    Ok(())
}

impl ProgramFilter {
    /// The filter of a system-wide session. A path that does not exist is an error, because it is
    /// probably mistyped.
    pub fn of_machine(selected: &[PathBuf], exempt: &[ExemptProgram]) -> Result<Self> {
        let found = |path: &PathBuf| {
            path.canonicalize().with_context(|| format!("there is no program {}", shown_path(path)))
        };
        let selected: Vec<_> = selected.iter().map(found).collect::<Result<_>>()?;
        let named = |it: &ExemptProgram| Ok(ExemptProgram { path: found(&it.path)?, ..*it });
        let named: Vec<_> = exempt.iter().map(named).collect::<Result<_>>()?;
        for path in selected.iter().chain(named.iter().map(|it| &it.path)) {
            check_program(path)?;
        }
        let is_selected = |it: &&ExemptProgram| {
            let file = fs::metadata(&it.path);
            file.is_ok_and(|file| selected.iter().any(|path| is_at(path, &file)))
        };
        if let Some(both) = named.iter().find(is_selected) {
            bail!("{} is both guarded (--exe) and exempt (--exempt)", shown_path(&both.path));
        }
        let never_held = NEVER_HELD.map(|path| ExemptProgram { path: path.into(), user: None });
        let exempt = never_held.into_iter().chain(named).collect();
        // Explicitly selected programs are held in every session.
        let exempt_sid = if selected.is_empty() { kernel::process::own_sid() } else { None };
        Ok(Self { selected, exempt, exempt_sid })
    }

    /// Whether a program is guarded.
    pub fn is_selected(&self, path: &Path, file: &Metadata) -> bool {
        self.is_path_selected(path) || self.selected.iter().any(|path| is_at(path, file))
    }

    /// Whether a program is guarded of which only the path is known.
    pub fn is_path_selected(&self, path: &Path) -> bool {
        self.selected.is_empty() || self.selected.iter().any(|selected| selected == path)
    }

    /// The users, as [`executor`] numbers them, whose processes of this program are never held;
    /// empty: the program is not exempt. An explicitly selected program is not exempt.
    pub fn executors(&self, file: &Metadata) -> Vec<u32> {
        if self.selected.iter().any(|path| is_at(path, file)) {
            return Vec::new();
        }
        let exempt = self.exempt.iter().filter(|exempt| is_at(&exempt.path, file));
        exempt.flat_map(ExemptProgram::executors).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The files that are at the exempt paths now.
    pub fn exempt_files(&self) -> Vec<Metadata> {
        self.exempt.iter().filter_map(|exempt| fs::metadata(&exempt.path).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn metadata(path: &Path) -> Metadata {
        fs::metadata(path).expect("it is there")
    }

    fn at(path: &Path) -> ExemptProgram {
        ExemptProgram { path: path.into(), user: None }
    }

    #[test]
    fn scripts_are_no_programs() {
        let folder = tempfile::tempdir().expect("there is room");
        let at_script = folder.path().join("script");
        fs::write(&at_script, "#!/bin/sh\n").expect("the folder is ours");
        let of = |path: &Path, is_exempt: bool| {
            let (selected, exempt) = match is_exempt {
                false => (vec![path.to_owned()], Vec::new()),
                true => (Vec::new(), vec![at(path)]),
            };
            ProgramFilter::of_machine(&selected, &exempt).map(drop)
        };
        for is_exempt in [false, true] {
            let refused = of(&at_script, is_exempt).expect_err("it is a script").to_string();
            assert!(refused.contains("is a script: the program of its process"), "{refused}");
            assert!(of(folder.path(), is_exempt).is_err());
            // A file that is too short for a script.
            let short = folder.path().join("short");
            fs::write(&short, "#").expect("the folder is ours");
            let mode = |mode| fs::set_permissions(&short, Permissions::from_mode(mode));
            mode(0o644).expect("the file is ours");
            let refused = of(&short, is_exempt).expect_err("it cannot be executed").to_string();
            assert!(refused.contains("nobody may execute it"), "{refused}");
            mode(0o700).expect("the file is ours");
            of(&short, is_exempt).expect("it may become a program");
        }
    }

    #[test]
    fn guarded_program_is_not_exempt() {
        let folder = tempfile::tempdir().expect("there is room");
        let [program, link] = ["program", "link"].map(|name| folder.path().join(name));
        fs::write(&program, "").expect("the folder is ours");
        fs::set_permissions(&program, Permissions::from_mode(0o700)).expect("the file is ours");
        fs::hard_link(&program, &link).expect("the folder is ours");
        for other in [&program, &link] {
            let both = ProgramFilter::of_machine(std::slice::from_ref(&program), &[at(other)]);
            let refused = both.map(drop).expect_err("it contradicts itself").to_string();
            assert!(refused.contains("is both guarded (--exe) and exempt (--exempt)"), "{refused}");
        }
    }

    #[test]
    fn tollgate_and_pid_1_are_exempt() {
        let selection = ProgramFilter::of_machine(&[], &[]).expect("nothing is named");
        let own = metadata(Path::new("/proc/self/exe"));
        assert_eq!(selection.executors(&own), [wire::GUARD_EXECUTOR_ROOT]);
        assert!(selection.exempt.iter().any(|exempt| exempt.path == Path::new("/proc/1/exe")));
        let named =
            ProgramFilter::of_machine(&["/proc/self/exe".into()], &[]).expect("it is there");
        assert!(named.executors(&own).is_empty());
    }

    #[test]
    fn same_name_elsewhere_is_not_exempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sshd, other) = (folder.path().join("sshd"), folder.path().join("other"));
        fs::write(&sshd, "one").expect("written");
        fs::write(&other, "one").expect("written");
        let selection = ProgramFilter { exempt: vec![at(&sshd)], ..ProgramFilter::default() };
        let is_exempt = |path| !selection.executors(&metadata(path)).is_empty();
        assert!(is_exempt(&sshd) && !is_exempt(&other));
        assert!(selection.is_selected(&other, &metadata(&other)));
        let named = ProgramFilter {
            selected: vec![sshd.clone()],
            exempt: vec![at(&sshd)],
            exempt_sid: None,
        };
        assert!(named.executors(&metadata(&sshd)).is_empty());
        assert!(
            named.is_selected(Path::new("/elsewhere"), &metadata(&sshd))
                && !named.is_selected(&other, &metadata(&other))
        );
    }

    #[test]
    fn exempt_program_is_executed_by_root_or_the_named_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a:root");
        fs::write(&path, "one").expect("written");
        let parsed = |text: &Path| ExemptProgram::parse(text.as_os_str());
        assert_eq!(parsed(&path).expect("a file with a colon").path, path);
        let mut text = path.clone().into_os_string();
        text.push(":no-such-user");
        let error = parsed(Path::new(&text)).err().expect("no such user");
        assert!(error.to_string().contains("no user no-such-user"), "{error}");
        let named = ExemptProgram { path: path.clone(), user: Some(4711) };
        let selection =
            ProgramFilter { exempt: vec![at(&path), named], ..ProgramFilter::default() };
        let root = wire::GUARD_EXECUTOR_ROOT;
        assert_eq!(selection.executors(&metadata(&path)), [root, root + 4711]);
        let root = parsed(Path::new("/proc/self/exe:root")).expect("every machine has root");
        assert_eq!((root.path.as_path(), root.user), (Path::new("/proc/self/exe"), Some(0)));
    }
}
