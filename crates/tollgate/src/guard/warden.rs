//! The warden: a process of its own that lets go whom the guard holds, should Tollgate be killed.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use kernel::gate::Gate;
use kernel::guarded::{Ward, let_go_after};

use super::arguments::WardenArguments;
use crate::output::say;

pub struct Warden {
    child: Child,
}

fn start(gate: &Gate, session: u32) -> Result<Child> {
    let Ward { owner, session, threads_map, sessions_map } = gate.ward(session)?;
    let numbers = [owner, session, threads_map, sessions_map].map(|number| number.to_string());
    Command::new("/proc/self/exe")
        .args(["guard", "warden"])
        .args(numbers)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Not of the terminal's foreground group: what ends Tollgate must not end its warden.
        .process_group(0)
        .spawn()
        .context("cannot start the warden, which lets go whom the guard holds should Tollgate be killed")
}

impl Warden {
    pub fn start(gate: &Gate, session: u32) -> Result<Self> {
        Ok(Self { child: start(gate, session)? })
    }

    /// Sees to it that there is one.
    pub fn tend(&mut self, gate: &Gate, session: u32) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            let _ = say("tollgate: the guard's warden was killed; another one was started");
            self.child = start(gate, session)?;
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
    let_go_after(Ward { owner, session, threads_map, sessions_map })?;
    Ok(ExitCode::SUCCESS)
}
