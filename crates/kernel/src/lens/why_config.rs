//! What the kernel side of `--why` must know of the kernel's code.

use crate::skeletons::gate::types::{address_range, why_config};
use crate::symbols::KernelSymbols;
use crate::wire;

/// Functions that pass a wake-up on, in `kernel/sched/`. The linker puts the code of this folder
/// into one piece.
const SCHEDULER: [&str; 10] = [
    "__wake_up_common",
    "autoremove_wake_function",
    "complete",
    "default_wake_function",
    "swake_up_one",
    "try_to_wake_up",
    "wake_bit_function",
    "wake_up_process",
    "wake_up_q",
    "woken_wake_function",
];
/// If the piece is larger, this kernel was linked in another order. That of Linux 6.18 has 160 kB.
const SCHEDULER_MAX: u64 = 1 << 20;
/// Further functions that pass a wake-up on: those of epoll and of poll and select.
const POLLS: [&str; wire::WAKE_RANGES as usize - 1] = ["ep_poll_callback", "pollwake"];
/// The function that runs softirqs. Since v6.9 or so, it is the first one.
const SOFTIRQS: [&str; 2] = ["handle_softirqs", "__do_softirq"];
/// By this function, a thread runs softirqs itself.
const RUNS_SOFTIRQS: &str = "__local_bh_enable_ip";
/// The markers of the entries of interrupts and exceptions (arch/x86/include/asm/idtentry.h).
const ENTRIES: [&str; 2] = ["__irqentry_text_start", "__irqentry_text_end"];
const PAGE_FAULT: &str = "asm_exc_page_fault";

/// Where the functions and variables of this kernel are that the kernel side distinguishes.
pub(crate) fn config() -> why_config {
    let symbols = KernelSymbols::get();
    let range = |name: &str| symbols.range(name).map_or_else(Default::default, between);
    let mut wakes = [address_range::default(); wire::WAKE_RANGES as usize];
    wakes[0] = scheduler(symbols);
    for (to, name) in wakes[1..].iter_mut().zip(POLLS) {
        *to = range(name);
    }
    why_config {
        wakes,
        softirqs: SOFTIRQS
            .iter()
            .find_map(|name| symbols.range(name))
            .map_or_else(Default::default, between),
        bh_enable: range(RUNS_SOFTIRQS),
        entries: symbols
            .address(ENTRIES[0])
            .zip(symbols.address(ENTRIES[1]))
            .map_or_else(Default::default, between),
        page_fault: range(PAGE_FAULT),
        variables: KernelSymbols::variables().bounds().map_or_else(Default::default, between),
    }
}

fn between((start, end): (u64, u64)) -> address_range {
    address_range { start, end }
}

fn scheduler(symbols: &KernelSymbols) -> address_range {
    let ranges = SCHEDULER.iter().filter_map(|name| symbols.range(name));
    let all = ranges.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
    match all {
        Some((start, end)) if end - start <= SCHEDULER_MAX => between((start, end)),
        _ => symbols.range("try_to_wake_up").map_or_else(Default::default, between),
    }
}
