//! A PostgreSQL server for one test.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::job::folder;
use super::web_stack::{self, AS_NOBODY};
use super::{NOBODY, Running, eventually};

pub struct Postgres {
    pub running: Running,
    /// Contains the server's data and socket.
    folder: TempDir,
}

/// The folder of PostgreSQL's programs.
pub fn programs() -> PathBuf {
    web_stack::program("postgres").parent().expect("a folder").into()
}

impl Postgres {
    pub fn start(settings: &str) -> Self {
        let folder = folder();
        chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("root may give it away");
        let (data, sockets) =
            (folder.path().join("data").display().to_string(), folder.path().display());
        let init = format!("--pgdata={data} --username=owner --auth=trust --no-sync");
        let as_nobody = |name: &str, arguments: &str| {
            let mut job = web_stack::job(AS_NOBODY, programs().join(name), arguments);
            job.command.env("LC_ALL", "C");
            job
        };
        as_nobody("initdb", &init).finish().success();
        let options = format!(
            "-D {data} -k {sockets} -c listen_addresses= -c fsync=off -c autovacuum=off {settings}"
        );
        let running = as_nobody("postgres", &options).start();
        eventually("the database", || running.read("err").contains("ready to accept connections"));
        Self { running, folder }
    }

    /// The folder of its socket.
    pub fn host(&self) -> &Path {
        self.folder.path()
    }

    pub fn end(self) {
        // PostgreSQL's "fast shutdown".
        self.running.signal(libc::SIGINT);
        self.running.finish().success();
    }
}
