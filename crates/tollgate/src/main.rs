//! The `tollgate` binary.

#![deny(unsafe_code)]

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
mod kernel_text;
mod lens;
mod metrics;
mod options;
mod output;
mod pace;
mod plugin;
mod process_selection;
mod process_watch;
mod report;
mod result_file;
mod run;
mod service;
mod session_runner;
mod session_toll;
mod source_file;
mod source_message;
mod tui;
mod user;
mod watchdog;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let ended = match cli::Cli::try_parse() {
        Ok(cli) => cli::dispatch(cli),
        Err(error) => cli::refuse(&error),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            // If the terminal is gone, this error cannot be printed.
            let _ = output::print_message(&format!("tollgate: {error:#}"));
            ExitCode::from(exit_status::OWN_FAILURE)
        }
    }
}
