//! What is compared. Each arm loads itself, times all exercises, and is gone again.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use kernel::floor::Floor;
use kernel::gate::{Gate, Lock};
use kernel::session::{Options, Session};
use kernel::wire;

use crate::Times;

type Timer = Box<dyn Fn(Option<&str>) -> Result<Times>>;

pub struct Arm {
    pub name: &'static str,
    /// Bare and floor, which the others are compared with.
    pub is_reference: bool,
    /// Times one exercise, or all.
    pub run: Timer,
}

pub const BARE: &str = "bare";
pub const FLOOR: &str = "floor";

fn arm(name: &'static str, run: impl Fn(Option<&str>) -> Result<Times> + 'static) -> Arm {
    Arm { name, is_reference: name == BARE || name == FLOOR, run: Box::new(run) }
}

pub fn arms() -> Vec<Arm> {
    let sites = wire::LENS | wire::LENS_SITES;
    let mut arms = vec![
        arm(BARE, in_a_worker),
        arm(FLOOR, |exercise| {
            let _floor = Floor::attach(false)?;
            in_a_worker(exercise)
        }),
        arm("floor + clocks", |exercise| {
            let _floor = Floor::attach(true)?;
            in_a_worker(exercise)
        }),
        arm("bystander", move |exercise| bystander(sites, exercise)),
        arm("lens", move |exercise| gated(sites, exercise)),
        arm("lens --no-sites", |exercise| gated(wire::LENS, exercise)),
        arm("lens --sample", move |exercise| gated(sites | wire::LENS_SAMPLE, exercise)),
    ];
    if cfg!(feature = "test-extension") {
        arms.push(arm("tally", |exercise| gated(wire::TALLY, exercise)));
        arms.push(arm("lens + tally", |exercise| gated(wire::LENS | wire::TALLY, exercise)));
    }
    arms
}

/// The exercises run in a small process of their own, started anew: a fork is as dear as its process is big,
/// and a program's layout is a source of variance like any other.
fn in_a_worker(exercise: Option<&str>) -> Result<Times> {
    let mut worker = Command::new("/proc/self/exe");
    worker.arg("--worker").args(exercise.map(|name| ["--exercise", name]).into_iter().flatten());
    let output = worker.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "the worker failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn open(mask: u32) -> Result<(Gate, Session)> {
    let lock = Lock::take()?;
    let gate = Gate::open(&lock, mask)?;
    let session = gate.start_session(&lock, &Options { mask, per: wire::PER_ALL, slower_ns: 0 })?;
    Ok((gate, session))
}

fn bystander(mask: u32, exercise: Option<&str>) -> Result<Times> {
    let (gate, session) = open(mask)?;
    let times = in_a_worker(exercise);
    gate.end_session(&session)?;
    times
}

fn gated(mask: u32, exercise: Option<&str>) -> Result<Times> {
    let (gate, session) = open(mask)?;
    let times = {
        let _nursery = gate.nursery(&session, true)?;
        in_a_worker(exercise)
    };
    gate.end_session(&session)?;
    #[cfg(feature = "test-extension")]
    if mask & wire::TALLY != 0 {
        ensure_tallied(gate)?;
    }
    times
}

/// It adds one at every second call: an arm that did nothing would cost nothing, too.
#[cfg(feature = "test-extension")]
fn ensure_tallied(mut gate: Gate) -> Result<()> {
    let counted = gate.toggle().expect("the bench loads its gate").tallies()?;
    ensure!(counted > 10_000, "tally counted {counted} only");
    Ok(())
}
