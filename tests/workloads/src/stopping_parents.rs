//! Parents that stop themselves when their child stops, as sudo and runuser do. A shell with job
//! control would continue them.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::clock::nap;
use crate::failure::{Outcome, check, failed};
use crate::process::{fork, kill, own_pid, status_of, wait};
use crate::routine::follow;

#[derive(Clone, Copy)]
struct Parents {
    stops_group: bool,
    late_ms: u64,
    rounds: u64,
    anomalous: u64,
}

pub fn stops_with_child(mut arguments: Arguments) -> Outcome {
    let stops_group = arguments.flag("--group", "1", 1..=1)?.is_some();
    let late_ms = arguments.flag("--late", "MS", 0..=MAX_REPETITIONS)?.unwrap_or(0);
    let parents = arguments.number("PARENTS", 1..=10)?;
    let rounds = arguments.number("ROUNDS", 0..=MAX_REPETITIONS)?;
    let anomalous = arguments.number("ANOMALOUS", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    if stops_group {
        begin_group()?;
    }
    Parents { stops_group, late_ms, rounds, anomalous }.run(parents)
}

fn begin_group() -> Outcome {
    // SAFETY: takes numbers only.
    check(unsafe { libc::setpgid(0, 0) }, "begin a process group").map(drop)
}

impl Parents {
    fn run(self, parents: u64) -> Outcome {
        if parents == 0 {
            return follow(self.rounds, self.anomalous);
        }
        let child = fork(|| {
            // As a shell does, so that the stop of the parents' group does not reach the child.
            let begun = if self.stops_group && parents == 1 { begin_group() } else { Ok(()) };
            status_of(begun.and_then(|()| self.run(parents - 1)))
        })?;
        loop {
            let status = wait(child, libc::WUNTRACED)?;
            if !libc::WIFSTOPPED(status) {
                return match status {
                    0 => Ok(()),
                    _ => Err(failed(format!("the child's wait status is {status:#x}"))),
                };
            }
            nap(self.late_ms)?;
            kill(if self.stops_group { 0 } else { own_pid() }, libc::WSTOPSIG(status))?;
            // The child may have ended meanwhile.
            let _ = kill(child, libc::SIGCONT);
        }
    }
}
