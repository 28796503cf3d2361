//! Which programs a guard of many looks after, and which of them it never holds.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

#[derive(Default)]
pub struct Selection {
    /// Empty: all.
    pub chosen: Vec<PathBuf>,
    pub spared: Vec<PathBuf>,
    /// Processes of this session (setsid) are never held.
    pub spared_sid: Option<u32>,
}

/// A machine whose administrators cannot log in, or that does not log, is worse off than with any of these running.
/// PID 1 and Tollgate, then what Debian, Fedora and their like call the journal and the SSH server.
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

/// By the file itself, as the path means in this process's mount namespace: in its own, anybody may name a file so.
fn is_at(path: &Path, file: &Metadata) -> bool {
    fs::metadata(path).is_ok_and(|known| (known.dev(), known.ino()) == (file.dev(), file.ino()))
}

impl Selection {
    /// For the whole machine. Who names a program that is not there has mistyped it.
    pub fn of_machine(chosen: &[PathBuf], spared: &[PathBuf]) -> Result<Self> {
        let found = |path: &PathBuf| {
            path.canonicalize().with_context(|| format!("there is no program {}", path.display()))
        };
        let chosen: Vec<_> = chosen.iter().map(found).collect::<Result<_>>()?;
        let named: Vec<_> = spared.iter().map(found).collect::<Result<_>>()?;
        if let Some(other) = chosen.iter().chain(&named).find(|path| !path.is_file()) {
            bail!("{} is no program", other.display());
        }
        let spared = NEVER_HELD.iter().map(PathBuf::from).chain(named).collect();
        // Programs that are named are held, whoever runs them.
        let spared_sid = if chosen.is_empty() { kernel::process::own_session() } else { None };
        Ok(Self { chosen, spared, spared_sid })
    }

    pub fn is_chosen(&self, path: &Path, file: &Metadata) -> bool {
        self.chosen.is_empty() || self.chosen.iter().any(|chosen| chosen == path || is_at(chosen, file))
    }

    /// Who is named is held, whoever it is.
    pub fn is_spared(&self, file: &Metadata) -> bool {
        let any = |paths: &[PathBuf]| paths.iter().any(|path| is_at(path, file));
        any(&self.spared) && !any(&self.chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tollgate_and_the_first_process_are_spared() {
        let selection = Selection::of_machine(&[], &[]).expect("nothing is named");
        assert!(selection.is_spared(&fs::metadata("/proc/self/exe").expect("it is there")));
        assert!(selection.spared.iter().any(|path| path == Path::new("/proc/1/exe")));
        let named = Selection::of_machine(&["/proc/self/exe".into()], &[]).expect("it is there");
        assert!(!named.is_spared(&fs::metadata("/proc/self/exe").expect("it is there")));
    }

    #[test]
    fn a_file_of_that_name_elsewhere_is_not_spared() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sshd, other) = (folder.path().join("sshd"), folder.path().join("other"));
        fs::write(&sshd, "one").expect("written");
        fs::write(&other, "one").expect("written");
        let of = |path: &Path| fs::metadata(path).expect("it is there");
        let selection = Selection { spared: vec![sshd.clone()], ..Selection::default() };
        assert!(selection.is_spared(&of(&sshd)) && !selection.is_spared(&of(&other)));
        assert!(selection.is_chosen(&other, &of(&other)));
        let named = Selection { chosen: vec![sshd.clone()], spared: vec![sshd.clone()], spared_sid: None };
        assert!(!named.is_spared(&of(&sshd)));
        assert!(
            named.is_chosen(Path::new("/elsewhere"), &of(&sshd)) && !named.is_chosen(&other, &of(&other))
        );
    }
}
