//! Starts the worker of a block, and exchanges the request and the reply with it.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kernel::process::wait_readable;

use super::process_group::{LeaderExit, ProcessGroup, WaitResult};
use super::worker::{WorkerReply, WorkerRequest};

/// How often a block checks whether the run was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long a worker may take to end after its reply. Its untimed work may take as long, unless the
/// arm has a limit of its own.
pub const WORKER_EXIT_LIMIT: Duration = Duration::from_secs(30);

/// A worker that has started.
pub struct Worker {
    group: ProcessGroup,
}

impl Worker {
    pub fn start(under: Option<&str>) -> Result<Self> {
        let own = own_program()?;
        let mut command = match under {
            None => Command::new(&own),
            Some(prefix) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &format!("exec {prefix} \"$0\" \"$@\"")]).arg(&own);
                shell
            }
        };
        command.args(["cost", "worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(Self { group: ProcessGroup::start(command, &worker_name(under, &own))? })
    }

    /// Sends the request and waits for the reply. Returns `None` if the run was cancelled
    /// meanwhile.
    pub fn finish(
        mut self,
        request: &WorkerRequest,
        limit: Duration,
        cancelled: &AtomicBool,
    ) -> Result<Option<WorkerReply>> {
        let deadline = Instant::now() + limit;
        let child = self.group.child();
        let mut to = child.stdin.take().expect("it is piped");
        let mut from = child.stdout.take().expect("it is piped");
        // If the worker has ended already, its status is the error to report.
        let _ = to.write_all(&serde_json::to_vec(request)?);
        drop(to);
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            if cancelled.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if !wait_readable(std::os::fd::AsRawFd::as_raw_fd(&from), POLL_INTERVAL) {
                if Instant::now() > deadline {
                    bail!("the workload did not end within {limit:?}");
                }
                continue;
            }
            match from.read(&mut buffer).context("cannot read the worker's reply")? {
                0 => break,
                n => bytes.extend_from_slice(&buffer[..n]),
            }
        }
        match self.group.wait(WORKER_EXIT_LIMIT, cancelled, LeaderExit::KillOthers)? {
            WaitResult::Ended(status) if status.success() => {}
            _ if cancelled.load(Ordering::Relaxed) => return Ok(None),
            WaitResult::Ended(status) => bail!("the workload failed: {status}"),
            WaitResult::TooLong | WaitResult::Cancelled => bail!("the workload did not end"),
        }
        if bytes.is_empty() {
            bail!(
                "the workload sent no reply: does the command of `under` run the command line \
                that is appended to it?"
            );
        }
        let reply = serde_json::from_slice(&bytes);
        let written = "the command of `under` wrote to stdout, which is reserved for the workload";
        Ok(Some(reply.context(written)?))
    }
}

/// The path of this program's file or, if the file was replaced meanwhile, the path in /proc that
/// leads to the old file.
fn own_program() -> Result<PathBuf> {
    let named = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(if named.exists() { named } else { format!("/proc/{}/exe", std::process::id()).into() })
}

fn worker_name(under: Option<&str>, own: &Path) -> String {
    format!(
        "{}{}{} cost worker",
        under.unwrap_or(""),
        if under.is_some() { " " } else { "" },
        own.display()
    )
}
