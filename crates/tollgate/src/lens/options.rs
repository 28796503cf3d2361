//! What the lens records.

use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use kernel::wire;

use super::order::Order;
use super::session::LensSetup;
use crate::call_name::known_call;
use crate::options::duration;

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
    /// List first the calls with the most of this: time (in all, on a processor or blocked), calls
    /// or errors
    #[arg(long, value_enum, value_name = "BY")]
    sort: Option<Order>,
    /// Also print a histogram of the wall times of this call; may be repeated
    #[arg(long = "histogram", value_name = "CALL", value_parser = known_call)]
    histograms: Vec<String>,
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

impl LensOptions {
    /// The lens that these options describe.
    pub fn setup(&self) -> LensSetup {
        LensSetup {
            mask: self.mask(),
            per: self.per(),
            order: self.sort.unwrap_or_default(),
            histograms: self.histograms.clone(),
            slower_ns: self.slower_than.map_or(0, |limit| limit.as_nanos() as u64),
            in_band: None,
        }
    }

    /// Whether any option is given that needs the lens.
    pub fn is_given(&self) -> bool {
        self.no_sites
            || self.sample
            || self.slower_than.is_some()
            || self.why
            || self.per.is_some()
            || self.sort.is_some()
            || !self.histograms.is_empty()
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
