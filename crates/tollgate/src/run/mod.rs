//! `tollgate run`: runs a command through the gate, and reports when it ends.

mod arguments;

use std::process::ExitCode;

use anyhow::{Result, bail};
use kernel::signals::Dispositions;

use crate::command::{self, find_program, refusal, refuse};
use crate::extension::ExtensionSetup;
use crate::guard::GuardSetup;
use crate::lens::{InBandSocket, LensSetup};
use crate::output::Output;
use crate::pace::PacingSetup;
use crate::plugin::{self, PluginSetup};
use crate::session_runner::SessionRunner;
use crate::source_file::SourceFile;
use crate::user;
pub use arguments::RunArguments;

pub fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.result.output.as_deref(), Output::Stderr)?;
    output.refuse_inputs(arguments.plugins.iter().chain(&arguments.pace.file))?;
    let user = arguments.user.as_deref().map(user::find).transpose()?;
    let words = &arguments.command;
    let program = match find_program(&words[0]) {
        Ok(program) => program,
        Err(refusal) => return refuse(&words[0], refusal),
    };
    let join = |service: &Option<String>| match service {
        Some(service) => crate::service::assign_self(&arguments.socket, service),
        None => Ok(()),
    };
    let plugins = plugin::read_all(&arguments.plugins)?;
    let has_others =
        arguments.guard.mode.is_some() || arguments.pace.file.is_some() || !plugins.is_empty();
    if arguments.service.is_some() && !arguments.lens && !has_others {
        join(&arguments.service)?;
        let error = command::gated(program, words, user, &[], Dispositions::take_over())?.execute();
        return refuse(&words[0], refusal(&error));
    }
    // If Tollgate keeps running beside the command, its own work must not be charged to the
    // service.
    let own_service = match arguments.service {
        Some(_) => Some(crate::service::own_service(&arguments.socket)?),
        None => None,
    };
    let in_band = arguments.in_band.then(InBandSocket::of_command).transpose()?;
    let variables: Vec<_> = in_band.iter().map(InBandSocket::variable).collect();
    let mut runner = SessionRunner::start(extensions(arguments, plugins, in_band)?)?;
    runner.prepare_command(&program, words)?;
    let join_service = || join(&arguments.service);
    let child = command::start(&mut runner, program, words, user, &variables, join_service)?;
    // The command runs already, so Tollgate continues even if the daemon has ended.
    let _ = join(&own_service);
    let measures_toll = !arguments.lens_options.no_toll;
    command::finish(runner, child, words, measures_toll, &arguments.result, &mut output)
}

/// The extensions of the run, in the order of their sections in the report.
fn extensions(
    arguments: &RunArguments,
    plugins: Vec<SourceFile>,
    in_band: Option<InBandSocket>,
) -> Result<Vec<Box<dyn ExtensionSetup>>> {
    let policy = arguments.guard.policy()?;
    let has_guard = policy.is_some();
    let pace = PacingSetup::of_options(&arguments.pace)?;
    let mut lens = if arguments.lens
        || arguments.in_band
        || (!has_guard && pace.is_none() && plugins.is_empty())
    {
        arguments.lens_options.setup()?
    } else if arguments.lens_options.is_given() {
        bail!(
            "with --guard, --pace or --plugin, the options --no-sites, --sample, --slower-than, \
            --why, --per, --by, --sort, --histogram, --flame-blocked, --flame-cpu and --trace need \
            --lens"
        );
    } else {
        LensSetup::off()
    };
    lens.in_band = in_band;
    let mut extensions: Vec<Box<dyn ExtensionSetup>> = vec![Box::new(lens)];
    if let Some(policy) = policy {
        extensions.push(Box::new(GuardSetup { policy, events: None, executables: Vec::new() }));
    }
    if let Some(pace) = pace {
        extensions.push(Box::new(pace));
    }
    if !plugins.is_empty() {
        let top = arguments.result.top;
        extensions.push(Box::new(PluginSetup::of_command(plugins, top, has_guard)?));
    }
    Ok(extensions)
}
