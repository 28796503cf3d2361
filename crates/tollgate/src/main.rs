//! The `tollgate` binary.

#![deny(unsafe_code)]

mod background_writer;
mod call_name;
mod cgroup_mounts;
mod cgroup_walk;
mod cli;
mod command;
mod cost;
mod daemon;
mod daemon_client;
mod doctor;
mod document_input;
mod durable_file;
mod exit_status;
mod extension;
mod extension_arm;
mod file_problems;
mod fitted_table;
mod format;
mod guard;
mod helper_thread;
mod kernel_text;
mod lens;
mod limited_input;
mod man_pages;
mod metrics;
mod options;
mod output;
mod pace;
mod plugin;
mod process_selection;
mod process_watch;
mod regular_file;
mod report;
mod result_file;
mod run;
mod service;
mod session_runner;
mod session_toll;
mod socket_file;
mod source_file;
mod source_message;
mod tui;
mod user;
mod watchdog;

use std::process::ExitCode;
use std::thread;

/// Enough for everything that Tollgate does: what Linux gives the first thread by default.
const STACK_BYTES: usize = 8 << 20;
/// With a smaller limit, the work gets a stack of its own. Tollgate was seen to need half of this.
const MIN_STACK_BYTES: u64 = 1 << 20;

fn main() -> ExitCode {
    if kernel::stack_limit() >= MIN_STACK_BYTES {
        return work();
    }
    // The limit is meant for the command, which inherits it.
    let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    match worker.map(thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // A panic has printed its message.
        Ok(Err(_)) => ExitCode::from(exit_status::OWN_FAILURE),
        Err(error) => {
            let _ = output::print_message(&format!("tollgate: no memory for a stack: {error}"));
            ExitCode::from(exit_status::OWN_FAILURE)
        }
    }
}

fn work() -> ExitCode {
    let ended = match cli::parse() {
        Ok(cli) => cli::dispatch(cli),
        Err(error) => cli::refuse(&error),
    };
    let code = ended.unwrap_or_else(|error| {
        // If the terminal is gone, this error cannot be printed.
        let _ = output::print_message(&format!("tollgate: {error:#}"));
        ExitCode::from(exit_status::OWN_FAILURE)
    });
    output::wait_for_messages(None);
    code
}
