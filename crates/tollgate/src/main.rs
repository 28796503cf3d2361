//! Tollgate's one binary.

mod cgroups;
mod cli;
mod cost;
mod daemon;
mod doctor;
mod excerpt;
mod format;
mod guard;
mod input;
mod lens;
mod output;
mod plugin;
mod report;
mod run;
mod screen;
mod select;
mod service;
mod slow;
mod source;
mod toll;
mod user;
mod watch;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return cli::refuse(&error),
    };
    match cli::dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            // A terminal that is gone leaves nobody to tell.
            let _ = output::say(&format!("tollgate: {error:#}"));
            ExitCode::from(cli::OWN_FAILURE)
        }
    }
}
