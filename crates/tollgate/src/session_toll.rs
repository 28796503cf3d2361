//! Measures the toll of a call in this session, by turning the gate on and off alternately in one
//! run.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use kernel::benchmark::{self, BenchmarkFn};
use kernel::clock::now_ns;
use kernel::gate::{Gate, Lock};
use kernel::session::{Session, SessionOptions};
use stats::interval::{median, median_interval};
use stats::paired::{PairedArm, abba_order, quad_differences};

use crate::report::Toll;

/// The minimum number of quads for which the range of the differences is an interval for the median
/// with a confidence above 95 % (sign test: 1 - 2/2^6).
const QUADS: usize = 6;
/// Batches per block: their median is the block's time, so that an interrupt does not affect it.
const BATCHES: usize = 9;
const CALLS_PER_BATCH: u32 = 500;
const CONFIDENCE: f64 = 0.95;
/// Long enough for the thread to be switched out and in. After that, the gate knows the thread.
const SETTLE: Duration = Duration::from_micros(60);

/// The maximum time of a batch. A plugin may take milliseconds for each call, and then a batch has
/// fewer calls.
const MAX_BATCH_NS: u64 = 10_000_000;

/// Median time of a getppid call in nanoseconds, over one block.
fn block(getppid: &mut BenchmarkFn) -> f64 {
    let mut nanoseconds = |calls: u32| {
        let began = now_ns();
        getppid(calls);
        now_ns() - began
    };
    let fitting = MAX_BATCH_NS / nanoseconds(1).max(1);
    let calls = fitting.clamp(1, CALLS_PER_BATCH.into()) as u32;
    median(&(0..BATCHES).map(|_| nanoseconds(calls) as f64 / f64::from(calls)).collect::<Vec<_>>())
}

fn toll(times: &[f64], against: &str) -> Toll {
    let differences = quad_differences(times, &abba_order(QUADS));
    let Some(interval) = median_interval(&differences, CONFIDENCE) else {
        return Toll::default();
    };
    Toll {
        calls: 0,
        ns_per_call: Some(interval.estimate),
        low: Some(interval.low),
        high: Some(interval.high),
        confidence: Some(interval.confidence),
        against: against.into(),
    }
}

/// Measures with a thread that is gated like the session's threads. If this session is the only
/// one, the gate is closed, so that no other session can join it. The gate is then detached during
/// the blocks that run without it.
pub fn measure(gate: &mut Gate, own: &Session, options: &SessionOptions) -> Result<Toll> {
    let lock = Lock::take()?;
    if !gate.is_shared(own) && gate.toggle().is_some() {
        gate.close(&lock);
        return against_detached(gate, own);
    }
    let session =
        gate.start_session(&lock, &SessionOptions { per: kernel::wire::PER_ALL, ..*options })?;
    drop(lock);
    let toll = against_bystander(gate, &session, options.mask);
    gate.end_session(&session)?;
    toll
}

/// The times of the arms' blocks, all on one gated thread; `switch` turns the gate on or off for
/// the thread.
fn time_arms(
    gate: &mut Gate,
    session: &Session,
    mut switch: impl FnMut(&mut Gate, PairedArm) -> Result<()>,
) -> Result<Vec<f64>> {
    let (to_worker, from_main) = mpsc::channel::<()>();
    let (to_main, from_worker) = mpsc::channel::<f64>();
    thread::scope(|scope| {
        let pending = gate.pending_children(session, false)?;
        let cpu = kernel::cpus::current();
        scope.spawn(move || {
            kernel::cpus::run_on(cpu);
            let mut getppid = benchmark::find("getppid").expect("it is one of them").prepare();
            while from_main.recv().is_ok() {
                thread::sleep(SETTLE);
                if to_main.send(block(&mut getppid)).is_err() {
                    return;
                }
            }
        });
        drop(pending);
        let mut times = Vec::new();
        for arm in abba_order(QUADS) {
            switch(gate, arm)?;
            to_worker.send(())?;
            times.push(from_worker.recv()?);
        }
        drop(to_worker);
        Ok(times)
    })
}

fn against_detached(gate: &mut Gate, own: &Session) -> Result<Toll> {
    let mut attached = PairedArm::On;
    let times = time_arms(gate, own, |gate, arm| {
        if arm != attached {
            let programs = gate.toggle().expect("checked by the caller");
            match arm {
                PairedArm::On => drop(programs.attach()?),
                PairedArm::Off => programs.detach(),
            }
            attached = arm;
        }
        Ok(())
    })?;
    Ok(toll(&times, "detached"))
}

fn against_bystander(gate: &mut Gate, session: &Session, mask: u32) -> Result<Toll> {
    let times = time_arms(gate, session, |gate, arm| {
        gate.set_mask(session, if arm == PairedArm::On { mask } else { 0 });
        Ok(())
    })?;
    Ok(toll(&times, "bystander"))
}
