//! `tollgate service`: accounts for work and limits it across processes
//! (docs/decisions/0005-service.md).

mod arguments;
mod arms;
mod check;
mod commands;
mod dynamic_names;
mod explain_sockets;
mod extension;
mod format;
mod limit_command;
mod limits;
mod machine_cpu_time;
mod metrics;
mod registry;
mod render;
mod requests;
mod rule_file;
mod session;
mod system_host;
mod top;
mod wire_rules;

use std::process::ExitCode;

use anyhow::Result;

use arguments::ServiceCommand;
pub use arguments::ServiceCommandLine;
pub use arms::ARMS;
pub use commands::{assign_self, own_service};
pub use limits::lift_abandoned;
pub use requests::REQUEST_KEY;
pub use session::ServiceSetup;

pub fn run(arguments: &ServiceCommandLine) -> Result<ExitCode> {
    match &arguments.command {
        ServiceCommand::Check(arguments) => check::check(arguments),
        ServiceCommand::Apply(arguments) => commands::apply(arguments),
        ServiceCommand::List(arguments) => commands::list(arguments),
        ServiceCommand::Report(arguments) => commands::report(arguments),
        ServiceCommand::Top(socket) => top::top(socket),
        ServiceCommand::Explain(arguments) => commands::explain(arguments),
        ServiceCommand::Assign(arguments) => commands::assign(arguments),
        ServiceCommand::Limit(arguments) => limit_command::limit(arguments),
        ServiceCommand::Watchdog => limits::run_watchdog(),
    }
}
