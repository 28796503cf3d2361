//! `tollgate service`: work follows its owner across processes (docs/decisions/0005-service.md).

mod arguments;
mod check;
mod control;
mod limit;
mod limits;
mod live;
mod machine_time;
mod named;
mod numbers;
mod problems;
mod remote;
mod sockets;
mod top;
mod words;

use std::process::ExitCode;

use anyhow::Result;

pub use arguments::Arguments;
use arguments::Command;
pub use control::{Report, Request, ServiceRow};
pub use live::{Services, in_force, mask};
pub use problems::{KIND, parsed};
pub use remote::{join, own_service};

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Check(arguments) => check::check(arguments),
        Command::Apply(arguments) => remote::apply(arguments),
        Command::List(arguments) => remote::list(arguments),
        Command::Report(arguments) => remote::report(arguments),
        Command::Top(socket) => top::top(socket),
        Command::Explain(arguments) => remote::explain(arguments),
        Command::Assign(arguments) => remote::assign(arguments),
        Command::Limit(arguments) => limit::limit(arguments),
        Command::Warden => limits::keep(),
    }
}
