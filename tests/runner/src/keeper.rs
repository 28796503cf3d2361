//! A program that holds a resource for the tests as long as its stdin is open.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

pub struct Keeper(Child);

impl Keeper {
    /// Returns when the program has said "ready".
    pub fn start(path: &Path) -> Result<Self> {
        let mut command = Command::new(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot start {}", path.display()))?;
        let mut keeper = Self(child);
        let mut line = String::new();
        let stdout = keeper.0.stdout.take().context("it is piped")?;
        BufReader::new(stdout).read_line(&mut line).context("cannot read what the keeper says")?;
        ensure!(line == "ready\n", "the keeper said {line:?}");
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    fn script(text: &str) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keeper");
        // This process never has the file open for writing, because another test may fork
        // meanwhile.
        fs::write(folder.path().join("text"), text).expect("a file can be written");
        let copied = Command::new("cp").arg(folder.path().join("text")).arg(&path).status();
        assert!(copied.expect("cp starts").success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        (folder, path)
    }

    #[test]
    fn keeper_runs_until_dropped() {
        let (folder, path) =
            script("#!/bin/sh\necho ready; cat >/dev/null; touch \"$(dirname \"$0\")/ended\"\n");
        let ended = folder.path().join("ended");
        let keeper = Keeper::start(&path).expect("it is ready");
        assert!(!ended.exists());
        drop(keeper);
        assert!(ended.exists());
    }

    #[test]
    fn keeper_that_is_not_ready_is_an_error() {
        let (_folder, path) = script("#!/bin/sh\necho no\n");
        assert!(Keeper::start(&path).is_err());
        assert!(Keeper::start(Path::new("/nowhere")).is_err());
    }
}
