//! A PostgreSQL server of the test's own.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::job::folder;
use super::{Job, NOBODY, Running, eventually, words};

pub struct Postgres {
    pub running: Running,
    /// With its data and its socket.
    folder: TempDir,
}

/// Where its programs are, if they are installed.
pub fn installed() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut places: Vec<_> = versions.flatten().map(|version| version.path().join("bin")).collect();
    places.retain(|place| place.join("postgres").exists());
    places.sort();
    places.pop()
}

/// It refuses to be root's.
fn as_nobody(program: &Path, arguments: &str) -> Job {
    let mut job = Job::of(words(&format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --")));
    job.command.arg(program).args(words(arguments)).env("LC_ALL", "C");
    job
}

impl Postgres {
    pub fn start(programs: &Path, settings: &str) -> Self {
        let folder = folder();
        chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("root may give it away");
        let (data, sockets) = (folder.path().join("data").display().to_string(), folder.path().display());
        let init = format!("--pgdata={data} --username=owner --auth=trust --no-sync");
        as_nobody(&programs.join("initdb"), &init).finish().success();
        let options =
            format!("-D {data} -k {sockets} -c listen_addresses= -c fsync=off -c autovacuum=off {settings}");
        let running = as_nobody(&programs.join("postgres"), &options).start();
        eventually("the database", || running.read("err").contains("ready to accept connections"));
        Self { running, folder }
    }

    /// For psql.
    pub fn options(&self) -> String {
        format!("-h {} -U owner -d postgres -X -At", self.folder.path().display())
    }

    pub fn end(self) {
        // A fast shutdown.
        self.running.signal(libc::SIGINT);
        self.running.finish().success();
    }
}
