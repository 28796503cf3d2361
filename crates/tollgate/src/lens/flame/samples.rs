//! Counts the sampled stacks of one kind of time.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use kernel::symbols::KernelSymbols;
use kernel::wire;

use super::folded::{Folded, Frame, FrameKind};
use super::programs::{Programs, UserFrame};
use crate::call_name::call_name;

/// The maximum number of different stacks; one takes some 500 bytes.
const MAX_STACKS: usize = 16_384;
/// The maximum number of different kernel stacks in which one call has slept.
const MAX_SLEEPS: usize = 256;

/// A call, by its ABI and its name.
pub type CallName = (&'static str, String);

#[derive(PartialEq, Eq, Hash)]
struct Stack {
    process: Rc<str>,
    /// The innermost frame first, in both parts.
    user: Rc<[UserFrame]>,
    call: u32,
    kernel: Vec<u64>,
}

/// Intervals of a call that has not ended.
struct Pending {
    sequence: u32,
    ns: HashMap<Vec<u64>, u64>,
}

#[derive(Default)]
pub struct Samples {
    /// By the slot of the thread.
    pending: HashMap<u32, Pending>,
    stacks: HashMap<Stack, u64>,
    pub taken: u64,
    /// The processes had ended before their memory was read.
    pub of_ended: u64,
    /// Samples for which there were too many different stacks.
    pub merged: u64,
}

impl Samples {
    /// Adds a blocked interval.
    pub fn add_sleep(&mut self, sleep: &wire::flame_sleep) {
        let fresh = || Pending { sequence: sleep.sequence, ns: HashMap::new() };
        let pending = self.pending.entry(sleep.slot).or_insert_with(fresh);
        if pending.sequence != sleep.sequence {
            *pending = fresh();
        }
        let mut stack = frames(&sleep.kernel).to_vec();
        if pending.ns.len() >= MAX_SLEEPS && !pending.ns.contains_key(&stack) {
            stack.clear();
            self.merged += 1;
        }
        *pending.ns.entry(stack).or_default() += sleep.blocked_ns;
    }

    /// Adds a call that has ended, of which intervals were added.
    pub fn add_blocked_call(&mut self, sample: &wire::flame_sample, programs: &mut Programs) {
        let Some(pending) = self.pending.remove(&sample.slot) else { return };
        if pending.sequence == sample.sequence {
            self.add(sample, programs, pending.ns);
        }
    }

    /// Adds a sample of a processor, which stands for `ns`. What the gate does itself is no part of
    /// the call.
    pub fn add_on_cpu(&mut self, sample: &wire::flame_sample, programs: &mut Programs, ns: u64) {
        let kernel = frames(&sample.kernel);
        let symbols = KernelSymbols::get();
        let is_gate = |address: &u64| symbols.function(*address).is_some_and(is_program_of_gate);
        if !kernel.iter().any(is_gate) {
            self.add(sample, programs, HashMap::from([(kernel.to_vec(), ns)]));
        }
    }

    fn add(
        &mut self,
        sample: &wire::flame_sample,
        programs: &mut Programs,
        kernel: HashMap<Vec<u64>, u64>,
    ) {
        self.taken += 1;
        let user: Rc<[UserFrame]> = match (sample.stack_bytes, programs.unwind(sample)) {
            (0, _) => [UserFrame::Unknown].into(),
            (_, Some(frames)) => frames.into(),
            (_, None) => {
                self.of_ended += 1;
                [UserFrame::Unknown].into()
            }
        };
        let process: Rc<str> = wire::text(&sample.comm).into();
        for (kernel, ns) in kernel {
            let (process, call) = (Rc::clone(&process), sample.call);
            let mut stack = Stack { process, user: Rc::clone(&user), call, kernel };
            if self.stacks.len() >= MAX_STACKS && !self.stacks.contains_key(&stack) {
                self.merged += 1;
                stack.user = [UserFrame::Unknown].into();
                stack.kernel.clear();
            }
            *self.stacks.entry(stack).or_default() += ns;
        }
    }

    /// The stacks with their names. The samples of each call are scaled to the call's time in
    /// `times`. A call without a sample has no frames below it.
    pub fn folded(&self, programs: &Programs, times: &BTreeMap<CallName, u64>) -> Folded {
        let names = programs.names(self.stacks.keys().flat_map(|stack| stack.user.iter().copied()));
        let mut by_call: BTreeMap<CallName, Folded> = BTreeMap::new();
        for (stack, ns) in &self.stacks {
            let (abi, name) = call_name(stack.call);
            let frames = named(stack, &shown_call(abi.as_str(), &name), &names);
            by_call.entry((abi.as_str(), name)).or_default().add(frames, *ns);
        }
        let mut folded = Folded::default();
        for (call, time) in times {
            match by_call.get(call) {
                Some(sampled) => add_scaled(&mut folded, sampled, *time),
                None => {
                    let process = Frame::new(FrameKind::Process, "[not sampled]");
                    let call = Frame::new(FrameKind::Call, &shown_call(call.0, &call.1));
                    folded.add(vec![process, call], *time);
                }
            }
        }
        folded
    }
}

/// Adds stacks in proportion, so that they add up to `total`.
fn add_scaled(folded: &mut Folded, sampled: &Folded, total: u64) {
    let (all, mut before) = (u128::from(sampled.total_ns().max(1)), 0u128);
    let scaled = |ns: u128| (ns * u128::from(total) / all) as u64;
    for (stack, ns) in sampled.stacks() {
        let after = before + u128::from(ns);
        folded.add(stack.to_vec(), scaled(after) - scaled(before));
        before = after;
    }
}

/// As reports show it.
fn shown_call(abi: &str, name: &str) -> String {
    if abi == calls::Abi::X86_64.as_str() { name.to_owned() } else { format!("{name} ({abi})") }
}

fn named(stack: &Stack, call: &str, names: &HashMap<UserFrame, String>) -> Vec<Frame> {
    let symbols = KernelSymbols::get();
    let process = Frame::new(FrameKind::Process, &stack.process);
    let user = stack.user.iter().rev().map(|frame| Frame::new(FrameKind::User, &names[frame]));
    let kernel = stack.kernel.iter().rev().map(|address| {
        let unknown = || format!("{address:#x}");
        let name = symbols.function(*address).map_or_else(unknown, str::to_owned);
        Frame::new(FrameKind::Kernel, &name)
    });
    let call = Frame::new(FrameKind::Call, call);
    [process].into_iter().chain(user).chain([call]).chain(kernel).collect()
}

/// The kernel names a BPF program by its hash and its own name.
fn is_program_of_gate(function: &str) -> bool {
    function.starts_with("bpf_prog_") && function.contains("_gate_")
}

fn frames(stack: &wire::stack) -> &[u64] {
    &stack.address[..(stack.frames as usize).min(stack.address.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep(sequence: u32, address: u64, blocked_ns: u64) -> wire::flame_sleep {
        let mut kernel = wire::stack { frames: 1, ..Default::default() };
        kernel.address[0] = address;
        wire::flame_sleep { slot: 7, sequence, blocked_ns, kernel, ..Default::default() }
    }

    /// The end of call 0, which is read. Its process does not exist.
    fn end(sequence: u32) -> Box<wire::flame_sample> {
        let mut sample = Box::new(wire::flame_sample { slot: 7, sequence, ..Default::default() });
        sample.comm[0] = b'p' as std::ffi::c_char;
        sample.stack_bytes = 1;
        sample
    }

    #[test]
    fn intervals_wait_for_the_end_of_their_call() {
        let (mut samples, mut programs) = (Samples::default(), Programs::new());
        samples.add_sleep(&sleep(1, 100, 5));
        // The end of call 1 was lost.
        samples.add_sleep(&sleep(2, 200, 30));
        samples.add_sleep(&sleep(2, 201, 10));
        samples.add_sleep(&sleep(2, 200, 20));
        samples.add_blocked_call(&end(2), &mut programs);
        samples.add_blocked_call(&end(2), &mut programs);
        assert_eq!((samples.taken, samples.of_ended), (1, 1));
        let mut all: Vec<_> =
            samples.stacks.iter().map(|(stack, ns)| (stack.kernel.clone(), *ns)).collect();
        all.sort();
        assert_eq!(all, [(vec![200], 50), (vec![201], 10)]);
    }

    #[test]
    fn stacks_add_up_to_the_time_of_their_call() {
        let (mut samples, mut programs) = (Samples::default(), Programs::new());
        for address in [1, 2, 3] {
            samples.add_sleep(&sleep(1, address, 1));
        }
        samples.add_blocked_call(&end(1), &mut programs);
        let abi = calls::Abi::X86_64.as_str();
        let times = [((abi, "read".to_owned()), 1_000), ((abi, "poll".to_owned()), 77)];
        let folded = samples.folded(&programs, &times.into());
        assert_eq!(folded.total_ns(), 1_077);
        let text = folded.text();
        assert!(
            text.starts_with("[not sampled];poll 77\np;[unknown];read;0x1_[k] 333\n"),
            "{text}"
        );
    }

    #[test]
    fn number_of_stacks_is_bounded() {
        let (mut samples, mut programs) = (Samples::default(), Programs::new());
        for address in 0..MAX_STACKS as u64 + 10 {
            samples.add_sleep(&sleep(address as u32, address + 1, 1));
            samples.add_blocked_call(&end(address as u32), &mut programs);
        }
        assert_eq!((samples.stacks.len(), samples.merged), (MAX_STACKS + 1, 10));
        assert_eq!(samples.stacks.values().sum::<u64>(), MAX_STACKS as u64 + 10);
    }

    #[test]
    fn own_programs_are_known_by_their_names() {
        assert!(is_program_of_gate("bpf_prog_6deef7357e7b4530_gate_sys_exit"));
        assert!(!is_program_of_gate("bpf_prog_6deef7357e7b4530_sd_devices"));
        assert!(!is_program_of_gate("__x64_sys_gate_"));
    }
}
