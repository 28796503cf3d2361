//! The command line of `tollgate plugin`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use serde_json::Number;

use crate::options::{ResultOptions, SocketOption};
use crate::output::{Output, is_stdio};

#[derive(Args)]
pub struct PluginCommandLine {
    #[command(subcommand)]
    pub command: PluginCommand,
}

#[derive(Subcommand)]
// Deferred, because each command needs only its own options, and those of all commands take a third
// of a millisecond to build.
#[command(defer = true)]
pub enum PluginCommand {
    /// Check a plugin: show what it contains, or what is wrong with it
    ///
    /// The plugin is compiled but not loaded, so root is not needed, except to read the fields of
    /// tracepoints. The exit status is 125 if it has errors.
    Check(PluginCheckArguments),
    /// Compile a plugin and show its instructions
    ///
    /// The instructions are printed in the notation of the kernel's verifier, below their source
    /// lines. Nothing is loaded, so root is not needed, except to read the fields of tracepoints.
    Build(PluginCheckArguments),
    /// Load a plugin into a running daemon, which runs it at its hooks
    ///
    /// The plugin is loaded as a whole or not at all. It starts to run when all its programs are in
    /// the kernel. At hooks of the gate and of sockets it runs for all tasks that the daemon gates.
    Load(LoadArguments),
    /// List the daemon's plugins and their hooks
    List(PluginListArguments),
    /// Show the current values of a plugin's variables and maps
    ///
    /// Of each map, the entries with the largest values are shown, as many as --top says.
    Show(PluginShowArguments),
    /// Change global variables of a plugin while it runs
    Set(SetArguments),
    /// Print the output of plugins
    ///
    /// Messages about the plugins themselves, for example that one was unloaded, go to stderr, or
    /// into the JSON.
    Log(LogArguments),
    /// Run a plugin's `on call` once, and print what it returns
    ///
    /// A FILE is compiled, loaded, called and unloaded. A NAME refers to a plugin of a running
    /// daemon. The plugin's output goes to stderr.
    Call(CallArguments),
    /// Measure how long a plugin takes to compile and load, and what one call of it costs
    ///
    /// Its calls alternate with calls of an empty plugin, whose time is the cost of entering and
    /// leaving the kernel.
    Bench(BenchArguments),
    /// Replace a running plugin by another version of its source
    ///
    /// No call is missed, and at each hook each call is seen by only one of the two versions. Maps
    /// and variables with the same name and type are kept; the command reports those that are not.
    Swap(SwapArguments),
    /// Unload a plugin
    Unload(UnloadArguments),
}

#[derive(Args)]
pub struct PluginCheckArguments {
    /// The file (- for stdin)
    pub file: PathBuf,
    #[command(flatten)]
    pub result: ResultOptions,
}

#[derive(Args)]
#[command(after_long_help = LOAD_EXAMPLES)]
pub struct LoadArguments {
    /// The file (- for stdin)
    pub file: PathBuf,
    /// Name of the plugin (default: the file's name without its extension)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Position among the plugins at a hook: lower numbers run first, equal ones in the order of
    /// loading
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    pub priority: i32,
    /// In a daemon for a part of the machine, apply the handlers of sockets and packets to the
    /// whole machine; if it has --exe, but neither --unit nor --cgroup, run the plugin for all
    /// processes
    ///
    /// Without this option, those of sockets apply to the daemon's tasks only, a plugin with those
    /// of packets is refused, because a packet belongs to no task, and a daemon that has --exe, but
    /// neither --unit nor --cgroup, refuses all plugins.
    #[arg(long)]
    pub machine_wide: bool,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

const LOAD_EXAMPLES: &str = "\
Examples:
  tollgate plugin load slow-open.ec
  tollgate plugin load --name allow --priority -10 connect.ec
  tollgate plugin log --follow slow-open";

#[derive(Args)]
pub struct SwapArguments {
    /// The plugin's name
    pub name: String,
    /// The file (- for stdin)
    pub file: PathBuf,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct UnloadArguments {
    /// The plugin's name
    pub name: String,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct PluginListArguments {
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct PluginShowArguments {
    /// The plugin's name
    pub name: String,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct SetArguments {
    /// The plugin's name
    pub name: String,
    /// Variable and new value, such as limit=100; the value is a number as in E-code that fits the
    /// variable's type; true and false are 1 and 0
    #[arg(required = true, value_name = "VARIABLE=N", value_parser = assignment)]
    pub variables: Vec<(String, Number)>,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct LogArguments {
    /// Print only the output of this plugin
    pub name: Option<String>,
    /// Continue with new output until the plugin is unloaded, or until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Print each record as a line of JSON, with its time
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
#[command(after_long_help = CALL_EXAMPLES)]
pub struct CallArguments {
    /// A file (- is stdin), or the name of a plugin of the daemon
    #[arg(value_name = "FILE|NAME")]
    pub plugin: PathBuf,
    #[command(flatten)]
    pub socket: SocketOption,
    #[command(flatten)]
    pub with: CallInput,
    #[command(flatten)]
    pub result: ResultOptions,
}

const CALL_EXAMPLES: &str = "\
Examples:
  tollgate plugin call ./sum.ec --arg 1 --arg -2
  tollgate plugin call ./grey.ec --input photo.ppm --output-data grey.pgm";

// The input of a call.
#[derive(Args)]
pub struct CallInput {
    /// An argument of `on call`, a number as in E-code, may be negative; repeat the option for each
    /// parameter, in their order
    #[arg(long = "arg", value_name = "N", value_parser = argument, allow_hyphen_values = true)]
    pub arguments: Vec<u64>,
    /// Copy a file (- is stdin) into the global variable `input`, an array of bytes, and its length
    /// into `input_length`
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Write the first `output_length` bytes of the global variable `output` to a file (- is
    /// stdout; the result of `on call` then goes to stderr)
    #[arg(long, value_name = "FILE")]
    pub output_data: Option<PathBuf>,
}

/// With fewer rounds, no interval around a median reaches the 97 % that `bench` reports:
/// 1 - 2 / 2^7 > 0.97.
const MIN_ROUNDS: i64 = 7;

#[derive(Args)]
pub struct BenchArguments {
    /// The file (- for stdin)
    pub file: PathBuf,
    #[command(flatten)]
    pub with: CallInput,
    /// Number of rounds, each with a thousand calls of the plugin and of the empty one (7 to
    /// 10,000)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 40,
        value_parser = clap::value_parser!(u32).range(MIN_ROUNDS..=10_000)
    )]
    pub rounds: u32,
    #[command(flatten)]
    pub result: ResultOptions,
}

impl CallInput {
    /// Fails if both the plugin and its input are stdin.
    pub fn check_stdin_use(&self, file: &Path) -> Result<()> {
        let is_taken = is_stdio(file) && self.input.as_deref().is_some_and(is_stdio);
        ensure!(!is_taken, "the plugin and its --input cannot both be stdin");
        Ok(())
    }

    /// Where the result goes without --output.
    pub fn result(&self) -> Output {
        if self.output_data.as_deref().is_some_and(is_stdio) {
            Output::Stderr
        } else {
            Output::Stdout
        }
    }
}

fn assignment(text: &str) -> std::result::Result<(String, Number), String> {
    let (name, value) = text.split_once('=').ok_or("expected VARIABLE=N")?;
    let value = match value {
        "true" => 1.into(),
        "false" => 0.into(),
        value => number(value)?,
    };
    Ok((name.into(), value))
}

/// Parses an argument. Returns its bits, because only the handler's parameter has a type.
fn argument(text: &str) -> std::result::Result<u64, String> {
    number(text).map(|number| bits(&number).expect("it is a whole one"))
}

/// The bits of an integer; `None` for a number with a fraction.
pub fn bits(number: &Number) -> Option<u64> {
    number.as_u64().or(number.as_i64().map(|number| number as u64))
}

/// Parses a number as E-code does, with a sign before it.
fn number(text: &str) -> std::result::Result<Number, String> {
    let (is_negative, digits) =
        text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    match ecode::parse_number(digits)? {
        value if !is_negative => Ok(value.into()),
        value if value <= 1 << 63 => Ok((value.wrapping_neg() as i64).into()),
        _ => Err("the smallest number of 64 bits is -9223372036854775808".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{argument, assignment, number};

    #[test]
    fn numbers_have_64_bits() {
        assert_eq!(argument("12"), Ok(12));
        assert_eq!(argument("-1"), Ok(u64::MAX));
        assert_eq!(argument("0xff"), Ok(255));
        assert_eq!(argument("-0x8000000000000000"), Ok(1 << 63));
        for (wrong, why) in [
            ("", "expected a number"),
            ("-", "expected a number"),
            ("x", "expected a number"),
            ("--1", "expected a number"),
            ("1 ", "expected a number"),
            ("18446744073709551616", "this number does not fit into 64 bits"),
            ("-9223372036854775809", "the smallest number of 64 bits is -9223372036854775808"),
        ] {
            let error = number(wrong).expect_err(wrong);
            assert!(error.starts_with(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn numbers_are_written_as_in_the_language() {
        for (text, value) in [("017", 15), ("0X10", 16), ("0b101", 5), ("-017", -15), ("7ul", 7)] {
            assert_eq!(argument(text), Ok(value as u64), "{text}");
        }
        for (wrong, why) in [
            ("1e3", "there is no floating point in the kernel: write the number out"),
            ("1.5", "there is no floating point in the kernel: use integers, such as thousandths"),
            ("08", "`8` is not a digit of an octal number (it begins with 0): write 8"),
            ("12k", "`k` is not a digit of a number"),
        ] {
            assert_eq!(number(wrong), Err(why.into()));
        }
        assert_eq!(assignment("x=017"), Ok(("x".into(), 15.into())));
    }
}
