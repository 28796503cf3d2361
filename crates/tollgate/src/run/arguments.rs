//! The command line of `tollgate run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::guard::GuardArguments;
use crate::lens::LensOptions;
use crate::options::{ResultOptions, SocketOption};
use crate::pace::PacingOptions;

#[derive(Args)]
#[command(after_long_help = RUN_EXAMPLES)]
pub struct RunArguments {
    /// Time calls and report where they block (default if no other extension is selected)
    #[arg(long)]
    pub lens: bool,
    #[command(flatten)]
    pub lens_options: LensOptions,
    /// Let the command read records of its own latest calls in its own memory (docs/in-band.md);
    /// includes --lens
    #[arg(long)]
    pub in_band: bool,
    #[command(flatten)]
    pub result: ResultOptions,
    /// Run the command as this user (a name, UID or UID:GID) while Tollgate stays root
    ///
    /// HOME, USER and LOGNAME are set as in the user's entry of /etc/passwd, if there is one. Other
    /// variables and the directory stay.
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Charge the command's work to this service of a running daemon (`tollgate service list` shows
    /// the services)
    ///
    /// Without --lens, --guard, --pace and --plugin, the command replaces the Tollgate process, and
    /// there is no report.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    #[command(flatten)]
    pub pace: PacingOptions,
    /// Run this plugin at its hooks for the command's threads; may be repeated (docs/ecode.md
    /// describes the language)
    ///
    /// Its output goes to stderr; its variables and maps are in the report. Its name is that of the
    /// file without the extension. If several files have the same name, the later ones are named
    /// NAME-2, NAME-3 and so on.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
    #[command(flatten)]
    pub socket: SocketOption,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
    // Last, because the heading applies to everything that follows.
    #[command(flatten, next_help_heading = "Guard")]
    pub guard: GuardArguments,
}

const RUN_EXAMPLES: &str = "\
Examples:
  tollgate run -- tar cf /dev/null /usr/include
  tollgate run --per process --top 5 -- make -j4
  tollgate run --slower-than 10ms -u www-data -- ./server --port 8080
  tollgate run --json -o report.json -- ./benchmark
  tollgate run --service shop -- ./nightly-report
  tollgate run --plugin examples/reads.ec -- tar cf /dev/null /usr/include
  tollgate run --pace examples/tasks.toml -- ./game
  tollgate run --guard=learn -- ./server
  tollgate guard normalize ./server
  tollgate run --guard=enforce -- ./server";
