//! The command line of `tollgate plugin`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use serde_json::Number;

use crate::cli::ResultOptions;
use crate::daemon::SocketOption;
use crate::output::{Output, is_dash};

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
// Options of other commands are nothing to this one, and take a third of a millisecond to put together.
#[command(defer = true)]
pub enum Command {
    /// Say what is in a plugin, or what is wrong with it
    ///
    /// It is compiled, and not loaded: this needs no root. Exits with 125 where it is no plugin.
    Check(CheckArguments),
    /// Compile a plugin, and show the instructions that the kernel would have
    ///
    /// As the kernel's verifier writes them, below the lines that they come from. Nothing is loaded: this needs no root.
    Build(CheckArguments),
    /// Have a running daemon load a plugin, and run it at its hooks
    ///
    /// All of it, or nothing: it runs once all of it is in the kernel. Its hooks in the gate are those of all tasks that the daemon gates.
    Load(LoadArguments),
    /// List the daemon's plugins, and where they run
    List(ListArguments),
    /// Show a plugin's variables and maps, as they are now
    ///
    /// Of each map --top entries, those with the largest values first; with --json, too.
    Show(ShowArguments),
    /// Change global variables of a plugin while it runs
    Set(SetArguments),
    /// Print what plugins tell
    ///
    /// What there is to say about them, such as that one was unloaded, is on stderr, or in the JSON.
    Log(LogArguments),
    /// Run a plugin's `on call` once, and print what it returns
    ///
    /// A file is compiled, loaded, called and taken away again. A name is that of a plugin that a running daemon has. What it prints
    /// meanwhile goes to stderr.
    Call(CallArguments),
    /// Measure a plugin: how long it takes from its text into the kernel, and what a call of it costs
    ///
    /// Its calls take turns with those of a plugin that does nothing, whose time is what the way into the kernel and back takes.
    Bench(BenchArguments),
    /// Put another text in a plugin's place while it runs
    ///
    /// No call is missed, and at each hook none is seen by both. Maps and variables of the same name and type are kept; what is not is told.
    Swap(SwapArguments),
    /// Take a plugin away
    Unload(UnloadArguments),
}

#[derive(Args)]
pub struct CheckArguments {
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
    /// What it is called; without it, as its file without what is behind the dot
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Of the plugins at a hook, the one with the lowest comes first; of those with the same, the one that came first
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    pub priority: i32,
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
    pub name: String,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct ListArguments {
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct ShowArguments {
    pub name: String,
    #[command(flatten)]
    pub result: ResultOptions,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct SetArguments {
    pub name: String,
    /// Such as limit=100; a number that the variable's type has, or true or false as 1 or 0
    #[arg(required = true, value_name = "VARIABLE=N", value_parser = assignment)]
    pub variables: Vec<(String, Number)>,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
pub struct LogArguments {
    /// Only this one
    pub name: Option<String>,
    /// Go on as they tell more, until it is unloaded, or Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Print each as a line of JSON, with its time
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub socket: SocketOption,
}

#[derive(Args)]
#[command(after_long_help = CALL_EXAMPLES)]
pub struct CallArguments {
    /// The file (- for stdin), or the name
    #[arg(value_name = "FILE|NAME")]
    pub plugin: PathBuf,
    #[command(flatten)]
    pub socket: SocketOption,
    #[command(flatten)]
    pub with: With,
    #[command(flatten)]
    pub result: ResultOptions,
}

const CALL_EXAMPLES: &str = "\
Examples:
  tollgate plugin call ./sum.ec --arg 1 --arg -2
  tollgate plugin call ./grey.ec --input photo.ppm --output-data grey.pgm";

// What a call comes with.
#[derive(Args)]
pub struct With {
    /// A number that `on call` takes, in the order in which it takes them (decimal or 0x, may be negative)
    #[arg(long = "arg", value_name = "N", value_parser = argument, allow_hyphen_values = true)]
    pub arguments: Vec<u64>,
    /// Put a file (- for stdin) into the global variable `input`, an array of bytes, and its length into `input_length`
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Write the first `output_length` bytes of the global variable `output` to a file (- for stdout; what `on call` returns
    /// goes to stderr then)
    #[arg(long, value_name = "FILE")]
    pub output_data: Option<PathBuf>,
}

/// Below, no interval around a median is as sure as `bench` says: 1 - 2 / 2^7 > 0.97.
const LEAST_ROUNDS: i64 = 7;

#[derive(Args)]
pub struct BenchArguments {
    /// The file (- for stdin)
    pub file: PathBuf,
    #[command(flatten)]
    pub with: With,
    /// Rounds, each of a thousand calls of either (7 to 10,000)
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(LEAST_ROUNDS..=10_000))]
    pub rounds: u32,
    #[command(flatten)]
    pub result: ResultOptions,
}

impl With {
    /// The plugin's own file may be stdin, too.
    pub fn fits_beside(&self, file: &Path) -> Result<()> {
        let is_taken = is_dash(file) && self.input.as_deref().is_some_and(is_dash);
        ensure!(!is_taken, "the plugin and its --input cannot both be stdin");
        Ok(())
    }

    /// Where the result goes without --output.
    pub fn result(&self) -> Output {
        if self.output_data.as_deref().is_some_and(is_dash) { Output::Stderr } else { Output::Stdout }
    }
}

fn assignment(text: &str) -> std::result::Result<(String, Number), &'static str> {
    let (name, value) = text.split_once('=').ok_or("this is no VARIABLE=N")?;
    let value = match value {
        "true" => 1.into(),
        "false" => 0.into(),
        value => number(value)?,
    };
    Ok((name.into(), value))
}

/// Its bits: the handler's parameter has a type.
fn argument(text: &str) -> std::result::Result<u64, &'static str> {
    number(text).map(|number| bits(&number).expect("it is a whole one"))
}

/// Of a whole one.
pub fn bits(number: &Number) -> Option<u64> {
    number.as_u64().or(number.as_i64().map(|number| number as u64))
}

fn number(text: &str) -> std::result::Result<Number, &'static str> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    match value {
        Ok(value) if is_negative && value <= 1 << 63 => Ok((value.wrapping_neg() as i64).into()),
        Ok(value) if !is_negative => Ok(value.into()),
        _ => Err("this is not a number of 64 bits"),
    }
}

#[cfg(test)]
mod tests {
    use super::{argument, number};

    #[test]
    fn numbers_have_64_bits() {
        assert_eq!(argument("12"), Ok(12));
        assert_eq!(argument("-1"), Ok(u64::MAX));
        assert_eq!(argument("0xff"), Ok(255));
        assert_eq!(argument("-0x8000000000000000"), Ok(1 << 63));
        for wrong in ["", "-", "x", "18446744073709551616", "-9223372036854775809", "--1"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}
