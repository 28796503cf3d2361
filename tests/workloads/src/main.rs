//! Programs with known system-call behaviour, for the live and VM tests.
//!
//! Tests run a workload under two observers and expect the same count of each call from both, so
//! its calls must not depend on chance or timing. `catalogue.rs` lists the sub-commands.
//!
//! The program has a C `main`: the start-up code of Rust's runtime reads /proc/self/maps, whose
//! length depends on the addresses of the mappings, and would ignore SIGPIPE in every program that
//! is executed.
#![no_main]

mod abi;
mod arguments;
mod beginning_calls;
mod blocking;
mod calls;
mod catalogue;
mod children;
mod clock;
mod command_server;
mod connections;
mod consumer;
mod cpu_time;
mod datagrams;
mod emulated_speed;
mod endpoint;
mod escapes;
mod failure;
mod file_user;
mod in_band;
mod in_band_connections;
mod in_band_isolation;
mod in_band_lives;
mod in_band_waiters;
mod inherited;
mod known_wakers;
mod lives;
mod load;
mod memory;
mod odd_tasks;
mod opener;
mod outcomes;
mod output;
mod pipe;
mod plugin_calls;
mod process;
mod raw;
mod reading;
mod relay;
mod requests;
mod ring;
mod routine;
mod seccomp;
mod side_effects;
mod signal_forker;
mod signals;
mod sleepers;
mod slowed_tasks;
mod stopping_parents;
mod tasks;
mod team;
mod tenants;
mod terminal;
mod tick_waits;
mod waits;
mod wake_ups;

use arguments::Arguments;
use output::print_line;
use std::env;
use std::ffi::{c_char, c_int};

#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _values: *const *const c_char) -> c_int {
    let mut words = env::args_os().skip(1);
    let Some(name) = words.next() else {
        eprint!("{}", catalogue::help());
        return 2;
    };
    let (name, outcome) = match name.to_str() {
        Some("--help" | "-h" | "help") => ("help", print_line(catalogue::help().trim_end())),
        text => match catalogue::WORKLOADS.iter().find(|workload| Some(workload.name) == text) {
            Some(workload) => (workload.name, (workload.run)(Arguments::new(words))),
            None => {
                eprintln!("workloads: no sub-command {name:?}: `workloads --help` lists them");
                return 2;
            }
        },
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("workloads {name}: {}", failure.message());
            failure.exit_status()
        }
    }
}
