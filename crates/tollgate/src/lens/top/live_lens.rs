//! The lens of a live view, as an extension of its session.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use kernel::clock::now_ns;
use kernel::gate::Lock;
use kernel::lens::call_stats::{RowName, RowStats};
use kernel::lens::interval::IntervalReader;
use kernel::process;
use kernel::session::SessionOptions;

use super::super::report::{COMMON, UNNAMED};
use crate::extension::{Extension, ExtensionSetup, Losses, SessionContext};

/// What was counted in an interval.
#[derive(Default)]
pub struct Sample {
    pub time: Duration,
    pub rows: Vec<SampleRow>,
    /// The number of watched threads.
    pub threads: usize,
    /// Since the beginning.
    pub losses: Losses,
}

impl Sample {
    /// The time in seconds; not 0.
    pub fn seconds(&self) -> f64 {
        self.time.as_secs_f64().max(1e-9)
    }
}

/// What a thread or a process has done in an interval.
pub struct SampleRow {
    /// The name of its process.
    pub program: String,
    pub name: RowName,
    pub stats: RowStats,
}

pub struct LiveLensSetup {
    pub mask: u32,
    pub per: u32,
    /// Where the latest sample is put.
    pub sample: Rc<RefCell<Sample>>,
}

impl ExtensionSetup for LiveLensSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= self.mask;
        options.per = self.per;
    }

    fn start(self: Box<Self>, _context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let now = now_ns();
        Ok(Box::new(LiveLens {
            reader: IntervalReader::default(),
            programs: BTreeMap::new(),
            began_ns: now,
            read_ns: now,
            sample: self.sample,
        }))
    }
}

struct LiveLens {
    reader: IntervalReader,
    /// The latest names of the processes of the latest sample.
    programs: BTreeMap<u32, String>,
    began_ns: u64,
    read_ns: u64,
    sample: Rc<RefCell<Sample>>,
}

impl LiveLens {
    fn sample_row(&self, mut name: RowName, stats: RowStats) -> SampleRow {
        if name.is_common() {
            name.command = COMMON.into();
        } else if let Some(now) = process::name(name.pid) {
            name.command = now;
        }
        if name.command.is_empty() {
            name.command = UNNAMED.into();
        }
        let known = || self.programs.get(&name.tgid).cloned();
        let program =
            process::name(name.tgid).or_else(known).unwrap_or_else(|| name.command.clone());
        SampleRow { program, name, stats }
    }
}

impl Extension for LiveLens {
    fn begin(&mut self, began_ns: u64) {
        (self.began_ns, self.read_ns) = (began_ns, began_ns);
    }

    fn refresh(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        let interval = self.reader.read(context.gate, context.session.index, self.began_ns)?;
        // A thread that sleeps in a call has slept for exactly this time.
        let before = std::mem::replace(&mut self.read_ns, interval.ended_ns);
        let time = Duration::from_nanos(interval.ended_ns.saturating_sub(before));
        let active = interval.rows.into_iter().filter_map(|(name, mut row)| {
            row.calls.retain(|_, call| call.count + call.unfinished + call.wall_ns > 0);
            (!row.calls.is_empty()).then_some((name, row))
        });
        let rows: Vec<_> = active.map(|(name, stats)| self.sample_row(name, stats)).collect();
        self.programs = rows.iter().map(|row| (row.name.tgid, row.program.clone())).collect();
        let losses = Losses::new();
        *self.sample.borrow_mut() = Sample { time, rows, threads: interval.threads, losses };
        Ok(())
    }

    fn finish_rows(
        &mut self,
        context: &mut SessionContext<'_>,
        lock: &Lock,
        rows: &BTreeSet<u32>,
    ) -> Result<()> {
        Ok(self.reader.finish_rows(context.gate, lock, context.session.index, rows)?)
    }
}
