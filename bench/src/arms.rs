//! What is compared. Each arm loads itself, times all exercises, and is gone again.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use kernel::floor::Floor;
use kernel::gate::Gate;
use kernel::session::Options;
use kernel::wire;

use crate::Times;

pub struct Arm {
    pub name: &'static str,
    /// Bare and floor, which the others are compared with.
    pub is_reference: bool,
    pub run: Box<dyn Fn() -> Result<Times>>,
}

pub const BARE: &str = "bare";
pub const FLOOR: &str = "floor";

fn arm(name: &'static str, run: impl Fn() -> Result<Times> + 'static) -> Arm {
    Arm { name, is_reference: name == BARE || name == FLOOR, run: Box::new(run) }
}

pub fn arms() -> Vec<Arm> {
    let sites = wire::LENS | wire::LENS_SITES;
    let mut arms = vec![
        arm(BARE, in_a_worker),
        arm(FLOOR, || {
            let _floor = Floor::attach()?;
            in_a_worker()
        }),
        arm("bystander", move || bystander(sites)),
        arm("lens", move || gated(sites)),
        arm("lens --no-sites", || gated(wire::LENS)),
        arm("lens --sample", move || gated(sites | wire::LENS_SAMPLE)),
    ];
    if cfg!(feature = "test-extension") {
        arms.push(arm("tally", || gated(wire::TALLY)));
        arms.push(arm("lens + tally", || gated(wire::LENS | wire::TALLY)));
    }
    arms
}

/// The exercises run in a small process of their own, started anew: a fork is as dear as its process is big,
/// and a program's layout is a source of variance like any other.
fn in_a_worker() -> Result<Times> {
    let output = Command::new("/proc/self/exe").arg("--worker").stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "the worker failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn options(mask: u32) -> Options {
    Options { mask, per: wire::PER_ALL, slower_ns: 0 }
}

fn bystander(mask: u32) -> Result<Times> {
    let gate = Gate::open(mask)?;
    let session = gate.start_session(&options(mask))?;
    let times = in_a_worker();
    gate.end_session(&session)?;
    times
}

fn gated(mask: u32) -> Result<Times> {
    let gate = Gate::open(mask)?;
    let session = gate.start_session(&options(mask))?;
    let times = {
        let _nursery = gate.nursery(&session, true)?;
        in_a_worker()
    };
    gate.end_session(&session)?;
    times
}
