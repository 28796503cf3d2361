//! The warden: a process of its own that lets go whom the guard holds, should Tollgate be killed.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use kernel::gate::Gate;
use kernel::guarded::{Ward, let_go_after, lifeline};

use super::arguments::WardenArguments;
use crate::output::{Output, say};

pub struct Warden {
    child: Child,
    _lifeline: OwnedFd,
}

const PURPOSE: &str = "cannot start the warden, which lets go whom the guard holds should Tollgate be killed";
/// What it prints then.
const ON_DUTY: &str = "on duty\n";

fn start(gate: &Gate, session: u32) -> Result<Warden> {
    let Ward { owner, session, threads_map, sessions_map } = gate.ward(session)?;
    let numbers = [owner, session, threads_map, sessions_map].map(|number| number.to_string());
    let (near, lifeline) = lifeline().context(PURPOSE)?;
    let mut child = Command::new("/proc/self/exe")
        .args(["guard", "warden"])
        .args(numbers)
        .stdin(near)
        .stdout(Stdio::piped())
        // Not of the terminal's foreground group: what ends Tollgate must not end its warden.
        .process_group(0)
        .spawn()
        .context(PURPOSE)?;
    // Nobody is held before it is on duty.
    let mut word = [0; ON_DUTY.len()];
    child.stdout.take().expect("a pipe").read_exact(&mut word).context(PURPOSE)?;
    Ok(Warden { child, _lifeline: lifeline })
}

impl Warden {
    pub fn start(gate: &Gate, session: u32) -> Result<Self> {
        start(gate, session)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sees to it that there is one.
    pub fn tend(&mut self, gate: &Gate, session: u32) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            let what = match start(gate, session) {
                Ok(other) => {
                    *self = other;
                    "another one was started".into()
                }
                // That one may have been killed, too: it is tried again soon.
                Err(error) => format!("{error:#}"),
            };
            let _ = say(&format!("tollgate: the guard's warden was killed; {what}"));
        }
        Ok(())
    }

    pub fn dismiss(mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the warden itself does.
pub fn keep(arguments: &WardenArguments) -> Result<ExitCode> {
    let WardenArguments { owner, session, threads_map, sessions_map } = *arguments;
    let_go_after(Ward { owner, session, threads_map, sessions_map }, || {
        // Whoever started it may be gone already; then it has work to do.
        let _ = Output::Stdout.write(ON_DUTY);
    })?;
    Ok(ExitCode::SUCCESS)
}
