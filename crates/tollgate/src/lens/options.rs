//! What the lens records.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum, value_parser};
use kernel::wire;

use super::flame::{FlameRequest, FlameTime};
use super::order::Order;
use super::session::LensSetup;
use super::trace::TraceOptions;
use crate::call_name::known_call;
use crate::options::{duration, positive_duration};
use crate::output::is_stdio;

/// A trace of 1 TiB.
const MAX_TRACE_MIB: u64 = 1 << 20;

// What the lens records.
#[derive(Args)]
pub struct LensOptions {
    /// Do not record where calls block (saves a stack walk at some of the sleeps)
    #[arg(long)]
    no_sites: bool,
    /// Count all calls, but time only one in sixteen of the cheap ones on average; the report has
    /// intervals for the estimated times
    #[arg(long)]
    sample: bool,
    /// Of the calls that take at least this long (10ms, 1s), also list the slowest, each with its
    /// time, thread, arguments and stacks
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub slower_than: Option<Duration>,
    /// Also show why calls blocked: what has woken their threads, and who held the locks that they
    /// waited for; with --slower-than also what these threads slept in meanwhile
    #[arg(long, conflicts_with = "no_sites")]
    why: bool,
    /// Give each process, thread or command its own table; a command is the name of a program's
    /// file
    #[arg(long, value_enum, value_name = "WHAT")]
    per: Option<Per>,
    /// Also print a table of the calls, bytes and times of each file and socket
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "sample")]
    by: Option<Breakdown>,
    /// List first the calls with the most of this: time (in all, on a processor or blocked), calls
    /// or errors
    #[arg(long, value_enum, value_name = "BY")]
    sort: Option<Order>,
    /// Also print a histogram of the wall times of this call; may be repeated
    #[arg(long = "histogram", value_name = "CALL", value_parser = known_call)]
    histograms: Vec<String>,
    /// Also write a flame graph of the time in which calls were blocked: a picture if the name ends
    /// in .svg, otherwise folded stacks (- is stdout)
    ///
    /// Shows which functions of the program made the calls, and where in the kernel they slept. The
    /// program needs no frame pointers.
    #[arg(long, value_name = "FILE")]
    flame_blocked: Option<PathBuf>,
    /// Also write a flame graph of the time of calls on a processor, as --flame-blocked does
    #[arg(long, value_name = "FILE")]
    flame_cpu: Option<PathBuf>,
    /// Also write each call, and the times in which it was blocked or waited for a processor, to
    /// this file, which ui.perfetto.dev shows
    ///
    /// With --why, arrows lead to each thread that slept from the thread that has woken it.
    #[arg(long, value_name = "FILE", conflicts_with = "sample")]
    trace: Option<PathBuf>,
    /// Trace for this long from the beginning
    #[arg(
        long,
        value_name = "TIME",
        value_parser = positive_duration,
        default_value = "10s",
        requires = "trace"
    )]
    trace_for: Duration,
    /// Let the file of the trace have at most this many MiB
    #[arg(
        long,
        value_name = "MIB",
        value_parser = value_parser!(u64).range(1..=MAX_TRACE_MIB),
        default_value_t = 256,
        requires = "trace"
    )]
    trace_size: u64,
    /// Do not measure the toll at the end, which takes about 0.2 s
    #[arg(
        long,
        env = "TOLLGATE_NO_TOLL",
        hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    pub no_toll: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Per {
    Process,
    Thread,
    Command,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Breakdown {
    File,
}

impl LensOptions {
    /// The lens that these options describe.
    pub fn setup(&self) -> Result<LensSetup> {
        if self.trace.as_deref().is_some_and(is_stdio) {
            bail!("a trace needs a file: it is not written to stdout");
        }
        let flames = self.flames()?;
        Ok(LensSetup {
            mask: flames.iter().fold(self.mask(), |mask, request| mask | request.mask()),
            per: self.per(),
            order: self.sort.unwrap_or_default(),
            histograms: self.histograms.clone(),
            slower_ns: self.slower_than.map_or(0, |limit| limit.as_nanos() as u64),
            trace: self.trace.clone().map(|path| TraceOptions {
                path,
                duration: self.trace_for,
                bytes: self.trace_size << 20,
            }),
            in_band: None,
            flames,
        })
    }

    fn flames(&self) -> Result<Vec<FlameRequest>> {
        let blocked = self.flame_blocked.iter().map(|path| (FlameTime::Blocked, path));
        let on_cpu = self.flame_cpu.iter().map(|path| (FlameTime::Cpu, path));
        blocked.chain(on_cpu).map(|(time, path)| FlameRequest::new(time, path)).collect()
    }

    /// Whether any option is given that needs the lens.
    pub fn is_given(&self) -> bool {
        self.no_sites
            || self.sample
            || self.slower_than.is_some()
            || self.why
            || self.per.is_some()
            || self.by.is_some()
            || self.trace.is_some()
            || self.sort.is_some()
            || !self.histograms.is_empty()
            || self.flame_blocked.is_some()
            || self.flame_cpu.is_some()
    }

    fn mask(&self) -> u32 {
        let mut mask = wire::LENS;
        if !self.no_sites {
            mask |= wire::LENS_SITES;
        }
        if self.sample {
            mask |= wire::LENS_SAMPLE;
        }
        if self.slower_than.is_some() {
            mask |= wire::LENS_SLOW;
        }
        if self.by == Some(Breakdown::File) {
            mask |= wire::LENS_FILES;
        }
        if self.why {
            mask |= wire::LENS_WHY;
        }
        mask
    }

    fn per(&self) -> u32 {
        match self.per {
            None => wire::PER_ALL,
            Some(Per::Process) => wire::PER_PROCESS,
            Some(Per::Thread) => wire::PER_THREAD,
            Some(Per::Command) => wire::PER_COMMAND,
        }
    }
}
