//! Which programs the guard of a session covers, and which of them it never holds.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::format::shown_path;

/// Which programs are guarded, and which of these are never held.
#[derive(Default)]
pub struct ProgramFilter {
    /// If empty, all programs are selected.
    pub selected: Vec<PathBuf>,
    pub exempt: Vec<PathBuf>,
    /// Processes of this session (setsid) are never held.
    pub exempt_sid: Option<u32>,
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

/// Whether the file is the one at `path` in this process's mount namespace. The file's own path is
/// not used: in another mount namespace, any user can give a file such a path.
fn is_at(path: &Path, file: &Metadata) -> bool {
    fs::metadata(path).is_ok_and(|known| (known.dev(), known.ino()) == (file.dev(), file.ino()))
}

impl ProgramFilter {
    /// The filter of a system-wide session. A path that does not exist is an error, because it is
    /// probably mistyped.
    pub fn of_machine(selected: &[PathBuf], exempt: &[PathBuf]) -> Result<Self> {
        let found = |path: &PathBuf| {
            path.canonicalize().with_context(|| format!("there is no program {}", shown_path(path)))
        };
        let selected: Vec<_> = selected.iter().map(found).collect::<Result<_>>()?;
        let named: Vec<_> = exempt.iter().map(found).collect::<Result<_>>()?;
        if let Some(other) = selected.iter().chain(&named).find(|path| !path.is_file()) {
            bail!("{} is not a program", shown_path(other));
        }
        let exempt = NEVER_HELD.iter().map(PathBuf::from).chain(named).collect();
        // Explicitly selected programs are held in every session.
        let exempt_sid = if selected.is_empty() { kernel::process::own_sid() } else { None };
        Ok(Self { selected, exempt, exempt_sid })
    }

    /// Whether a program is guarded.
    pub fn is_selected(&self, path: &Path, file: &Metadata) -> bool {
        self.selected.is_empty()
            || self.selected.iter().any(|selected| selected == path || is_at(selected, file))
    }

    /// Whether a program is never held. An explicitly selected program is not exempt.
    pub fn is_exempt(&self, file: &Metadata) -> bool {
        let any = |paths: &[PathBuf]| paths.iter().any(|path| is_at(path, file));
        any(&self.exempt) && !any(&self.selected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tollgate_and_pid_1_are_exempt() {
        let selection = ProgramFilter::of_machine(&[], &[]).expect("nothing is named");
        assert!(selection.is_exempt(&fs::metadata("/proc/self/exe").expect("it is there")));
        assert!(selection.exempt.iter().any(|path| path == Path::new("/proc/1/exe")));
        let named =
            ProgramFilter::of_machine(&["/proc/self/exe".into()], &[]).expect("it is there");
        assert!(!named.is_exempt(&fs::metadata("/proc/self/exe").expect("it is there")));
    }

    #[test]
    fn same_name_elsewhere_is_not_exempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sshd, other) = (folder.path().join("sshd"), folder.path().join("other"));
        fs::write(&sshd, "one").expect("written");
        fs::write(&other, "one").expect("written");
        let of = |path: &Path| fs::metadata(path).expect("it is there");
        let selection = ProgramFilter { exempt: vec![sshd.clone()], ..ProgramFilter::default() };
        assert!(selection.is_exempt(&of(&sshd)) && !selection.is_exempt(&of(&other)));
        assert!(selection.is_selected(&other, &of(&other)));
        let named = ProgramFilter {
            selected: vec![sshd.clone()],
            exempt: vec![sshd.clone()],
            exempt_sid: None,
        };
        assert!(!named.is_exempt(&of(&sshd)));
        assert!(
            named.is_selected(Path::new("/elsewhere"), &of(&sshd))
                && !named.is_selected(&other, &of(&other))
        );
    }
}
