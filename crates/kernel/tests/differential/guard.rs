//! For every call, the kernel side of the guard gives the same result as the reference in
//! `crates/guard`.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use guard::{GuardThread, ModelKind, Parameters, Profile, ProfileState};
use kernel::wire;
use proptest::prelude::*;

use crate::guard_steps::GuardStepper;

/// `PROPTEST_CASES` sets another number: `make test-all` runs 500.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|number| number.parse().ok()).unwrap_or(150)
}

const NOW: Duration = Duration::ZERO;
const SIGRETURN: u32 = 15;
const RESTART: u32 = 219;
/// The number of restart_syscall in i386 is 0.
const RESTART_I386: u32 = calls::Abi::I386 as u32 * wire::CALLS_PER_ABI;

/// What happens to a thread, or to the profile.
#[derive(Debug, Clone, Copy)]
enum GuardInput {
    Call(u32),
    Signal {
        again: bool,
    },
    Stop,
    /// By an operator.
    Normalize,
    Tolerize,
}

/// The result of a call: mismatches, LFC, state, anomalies.
type Said = (u32, u32, u32, u64);

struct Reference {
    profile: Profile,
    threads: Vec<GuardThread>,
    /// In the order in which they were first made.
    calls: Vec<u32>,
}

/// The number of a program's calls that the kernel side distinguishes.
const SYMBOLS: usize = 126;
const ANY_OTHER: u32 = u32::MAX;

impl Reference {
    fn new(lookahead: u8, sequence: u8, parameters: Parameters) -> Self {
        let kinds =
            [(ModelKind::Lookahead, lookahead.into()), (ModelKind::Sequence, sequence.into())];
        Self {
            profile: Profile::new(&kinds, parameters),
            threads: vec![GuardThread::default(); wire::GUARD_STEP_THREADS as usize],
            calls: Vec::new(),
        }
    }

    fn distinguished(&mut self, call: u32) -> u32 {
        if !self.calls.contains(&call) {
            self.calls.push(call);
        }
        if self.calls[..self.calls.len().min(SYMBOLS)].contains(&call) { call } else { ANY_OTHER }
    }

    fn call(&mut self, thread: usize, call: u32) -> Said {
        let is_own = match call {
            RESTART | RESTART_I386 => {
                self.threads[thread].on_restart_syscall();
                false
            }
            SIGRETURN => !self.threads[thread].handler_return(),
            _ => true,
        };
        let call = if is_own { self.distinguished(call) } else { call };
        let thread = &mut self.threads[thread];
        let mismatches = if is_own {
            self.profile.process_syscall(thread, call, NOW).mismatches as u32
        } else {
            0
        };
        let state = match self.profile.state() {
            ProfileState::Training => wire::GUARD_TRAINING,
            ProfileState::Frozen { .. } => wire::GUARD_FROZEN,
            ProfileState::Normal => wire::GUARD_NORMAL,
        };
        (mismatches, thread.locality().count(), state, self.profile.anomalies())
    }
}

fn wire_parameters(lookahead: u8, sequence: u8, parameters: &Parameters) -> wire::guard_parameters {
    wire::guard_parameters {
        lookahead,
        sequence,
        tolerize_limit: parameters.tolerize_limit as u16,
        normal_factor: parameters.normal_factor.0 as u32,
        normal_factor_den: parameters.normal_factor.1 as u32,
        ..Default::default()
    }
}

/// Gives the kernel side and the reference the same events. Panics at the first call with different
/// results.
fn compare(lookahead: u8, sequence: u8, parameters: Parameters, events: &[(usize, GuardInput)]) {
    static LOADED: LazyLock<Mutex<GuardStepper>> = LazyLock::new(|| {
        kernel::quiet();
        Mutex::new(GuardStepper::new().expect("it loads as root"))
    });
    let mut steps = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    steps.start(wire_parameters(lookahead, sequence, &parameters));
    let mut reference = Reference::new(lookahead, sequence, parameters);
    let mut waiting: Vec<(wire::guard_step, Option<Said>)> = Vec::new();
    let mut seen = 0;
    let mut take = |steps: &mut GuardStepper,
                    waiting: &mut Vec<(wire::guard_step, Option<Said>)>| {
        for part in waiting.chunks(wire::GUARD_STEPS as usize) {
            let mut wires: Vec<_> = part.iter().map(|(step, _)| *step).collect();
            steps.take(&mut wires);
            for (step, (_, said)) in wires.iter().zip(part) {
                let kernel = (step.mismatches, step.lfc, step.state, step.anomalies);
                if let Some(said) = said {
                    assert_eq!(
                        kernel,
                        *said,
                        "step {seen}, call {} of thread {}, {} unlearned",
                        step.call,
                        step.thread,
                        steps.profile.read().unlearned
                    );
                }
                seen += 1;
            }
        }
        waiting.clear();
    };
    for (thread, event) in events {
        let step = wire::guard_step { thread: *thread as u32, ..Default::default() };
        match *event {
            GuardInput::Call(call) => {
                let said = reference.call(*thread, call);
                waiting.push((wire::guard_step { call, ..step }, Some(said)));
            }
            GuardInput::Signal { again } => {
                reference.threads[*thread].handler_enter(again);
                let kind = if again { wire::STEP_SIGNAL_RESTARTS } else { wire::STEP_SIGNAL };
                waiting.push((wire::guard_step { kind, ..step }, None));
            }
            GuardInput::Stop => {
                reference.threads[*thread].mark_restart();
                waiting.push((wire::guard_step { kind: wire::STEP_STOP, ..step }, None));
            }
            GuardInput::Normalize => {
                take(&mut steps, &mut waiting);
                reference.profile.normalize();
                steps.normalize();
            }
            GuardInput::Tolerize => {
                take(&mut steps, &mut waiting);
                reference.profile.tolerize();
                steps.end_batches();
                steps.profile.tolerize();
            }
        }
    }
    take(&mut steps, &mut waiting);
    assert_eq!(steps.profile.read().unlearned, 0, "it was to fit");
}

/// Calls come in phrases, as programs make them, so that something is learned at all.
fn events(threads: usize, signals: bool) -> impl Strategy<Value = Vec<(usize, GuardInput)>> {
    let phrase = proptest::collection::vec(0..20_u32, 1..8);
    let phrases = proptest::collection::vec(phrase, 2..8);
    let choice = (0..threads, any::<proptest::sample::Index>(), 1..30_usize, 0..100_u32);
    (phrases, proptest::collection::vec(choice, 1..120)).prop_map(move |(phrases, choices)| {
        let mut events = Vec::new();
        for (thread, phrase, times, luck) in choices {
            for _ in 0..times {
                let calls =
                    phrase.get(&phrases).iter().map(|call| (thread, GuardInput::Call(*call)));
                events.extend(calls);
            }
            events.push((
                thread,
                match luck {
                    0..10 => GuardInput::Normalize,
                    10..13 => GuardInput::Tolerize,
                    13..30 => GuardInput::Call(100 + luck % 8),
                    30..40 if signals => GuardInput::Signal { again: luck % 2 == 0 },
                    40..50 if signals => GuardInput::Stop,
                    50..60 if signals => GuardInput::Call(SIGRETURN),
                    60..65 if signals => GuardInput::Call(RESTART),
                    // The same number in another ABI is another call.
                    _ => GuardInput::Call(luck % 3 * wire::CALLS_PER_ABI + luck % 5),
                },
            ));
        }
        events
    })
}

/// Threads add their counts to the profile in batches, so the call at which several threads freeze
/// it is not exact.
const NEVER_FREEZES: (u64, u64) = (u32::MAX as u64, 1);

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn one_thread(events in events(1, true), lookahead in 2..10_u8, sequence in 2..9_u8) {
        compare(lookahead, sequence, Parameters::default(), &events);
    }

    #[test]
    fn several_threads(events in events(8, true)) {
        compare(
            9,
            6,
            Parameters { normal_factor: NEVER_FREEZES, ..Parameters::default() },
            &events,
        );
    }

    #[test]
    fn limits(
        events in events(1, false),
        tolerize_limit in 0..128_u32,
    ) {
        compare(
            9,
            6,
            Parameters { tolerize_limit, ..Parameters::default() },
            &events,
        );
    }
}

#[test]
fn overflow_windows_match() {
    // Of ten calls in random order, nearly all windows differ. The generator is Knuth's MMIX.
    let next = |state: &u64| {
        Some(state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407))
    };
    let calls = std::iter::successors(Some(1_u64), next).map(|state| (state >> 33) as u32 % 10);
    let walk: Vec<_> = calls.take(8000).map(|call| (0, GuardInput::Call(call))).collect();
    let events: Vec<_> = [walk.clone(), vec![(0, GuardInput::Normalize)], walk].concat();
    compare(9, 6, Parameters::default(), &events);
}

#[test]
fn calls_beyond_126_symbols_match() {
    let walk = |step: u32, many: u32| (0..many).map(move |n| (0, GuardInput::Call(n * step % 200)));
    let learned = walk(1, 3000).chain([(0, GuardInput::Normalize)]);
    // The short walk is in another order, also among the calls beyond the first 126, which are not
    // distinguished.
    let events: Vec<_> =
        learned.chain(walk(1, 400)).chain(walk(7, 60)).chain(walk(1, 400)).collect();
    compare(9, 6, Parameters::default(), &events);
}

/// Calls of real programs, as `strace -f` records them. Each recorded process counts as one of the
/// threads.
fn recorded(script: &str) -> Vec<(usize, GuardInput)> {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("record");
    let mut strace = std::process::Command::new("strace");
    strace
        .args(["-f", "-qq", "-s", "0", "-o"])
        .arg(&record)
        .args(["sh", "-c", script])
        .current_dir("/etc");
    let ran = strace.stdout(std::process::Stdio::null()).status().expect("strace is installed");
    assert!(ran.success(), "{script}");
    let text = String::from_utf8_lossy(&std::fs::read(record).expect("a record")).into_owned();
    let mut pids: Vec<&str> = Vec::new();
    let mut events = Vec::new();
    for (pid, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
        let index = pids.iter().position(|known| *known == pid).unwrap_or(pids.len());
        if index == pids.len() {
            pids.push(pid);
        }
        // Skips signals, and the second line of a call that strace prints in two lines.
        let name = rest.trim_start().split('(').next().unwrap_or_default();
        if let Some(number) = calls::number(calls::Abi::X86_64, name) {
            events.push((index % wire::GUARD_STEP_THREADS as usize, GuardInput::Call(number)));
        }
    }
    events
}

#[test]
fn real_programs() {
    let learned = recorded(
        "ls -lR . | sort | head -n 50; grep -rls root . | wc; find . -type l; tar cf - . | gzip | \
        wc",
    );
    let tested = recorded(
        "ls -l; find . -name 'p*' -exec ls -d {} ';' | sort -u; tar cf - passwd | tar tf -; (exit \
        3); date",
    );
    assert!(learned.len() > 3000 && tested.len() > 1000, "{} and {}", learned.len(), tested.len());
    let events: Vec<_> = [learned, vec![(0, GuardInput::Normalize)], tested].concat();
    compare(9, 6, Parameters { normal_factor: NEVER_FREEZES, ..Parameters::default() }, &events);
}

#[test]
fn a_long_run_freezes_at_the_same_call() {
    let mut events: Vec<_> = (0..3000_u32).map(|n| (0, GuardInput::Call(n / 7 % 30))).collect();
    events.extend((0..50_000_u32).map(|n| (0, GuardInput::Call([3, 3, 4, 9][n as usize % 4]))));
    compare(9, 6, Parameters::default(), &events);
}
