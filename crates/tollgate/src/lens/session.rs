//! The lens as an extension of a session.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use kernel::clock::{now_ns, tick_ns};
use kernel::gate::Lock;
use kernel::lens::call_stats::{RowName, RowStats};
use kernel::lens::counters::Collector;
use kernel::process;
use kernel::session::{LiveThread, SessionOptions};
use kernel::symbols::KernelSymbols;
use kernel::wire;

use super::build_report::{ReportRows, lens_report};
use super::flame::{FlameGraphs, FlameRequest};
use super::in_band_server::{InBandServer, InBandSocket};
use super::order::Order;
use super::report::{InProgress, LensReport};
use super::requests::{NOT_REPORTED, is_used_uncounted};
use super::slow_calls::SlowCalls;
use super::trace::{self, SessionTrace, TraceOptions};
use super::why_report::FUTEX;
use crate::call_name::call_name;
use crate::extension::{
    CALLS_OF_INNER_SESSIONS, Extension, ExtensionSetup, Joining, Losses, SessionContext,
};
use crate::format::{short_command_line, shown_path};
use crate::report::Section;

/// How often to read the counters, some of which could otherwise wrap.
const READ_INTERVAL_NS: u64 = 60_000_000_000;

/// What the lens records. Every session that is tended has a lens, because only the lens reads and
/// frees rows. With a mask of 0, the lens times no calls.
pub struct LensSetup {
    pub mask: u32,
    /// One of `wire::per`.
    pub per: u32,
    /// The order of calls in the report.
    pub order: Order,
    /// The names of the calls whose histograms are in the report.
    pub histograms: Vec<String>,
    /// Calls that take at least this long are recorded one by one. If 0, none are.
    pub slower_ns: u64,
    /// The file to which calls are written one by one. If `None`, they are not.
    pub trace: Option<TraceOptions>,
    /// Where processes request in-band records. If `None`, they have none.
    pub in_band: Option<InBandSocket>,
    /// The flame graphs that are to be written at the end.
    pub flames: Vec<FlameRequest>,
}

impl LensSetup {
    /// A lens that only gives programs the records of their own calls.
    pub fn in_band(socket: InBandSocket) -> Self {
        Self { mask: wire::LENS, in_band: Some(socket), ..Self::off() }
    }

    /// A lens that times no calls.
    pub fn off() -> Self {
        Self {
            mask: 0,
            per: wire::PER_ALL,
            order: Order::default(),
            histograms: Vec::new(),
            slower_ns: 0,
            trace: None,
            in_band: None,
            flames: Vec::new(),
        }
    }
}

impl ExtensionSetup for LensSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= self.mask;
        if self.in_band.is_some() {
            options.mask |= wire::LENS_IN_BAND;
        }
        if self.trace.is_some() {
            options.mask |= wire::LENS_TRACE;
        }
        options.per = self.per;
        options.slower_ns = self.slower_ns;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let now = now_ns();
        let flames = match self.flames {
            requests if requests.is_empty() => None,
            requests => Some(FlameGraphs::start(requests, context)?),
        };
        let trace = self
            .trace
            .map(|options| SessionTrace::start(options, context.gate, context.session.index))
            .transpose()?;
        let start_server =
            |socket| InBandServer::start(socket, context.gate, context.session.index);
        Ok(Box::new(LensInSession {
            mask: self.mask,
            per: self.per,
            order: self.order,
            histograms: self.histograms,
            collector: Collector::default(),
            slow: SlowCalls::new(now),
            in_progress: Vec::new(),
            counted: now..now,
            names: BTreeMap::new(),
            read_ns: now,
            has_trace: trace.is_some(),
            trace,
            live: Vec::new(),
            in_band: self.in_band.map(start_server).transpose()?,
            flames,
            has_unwritten_file: false,
        }))
    }
}

struct LensInSession {
    mask: u32,
    per: u32,
    order: Order,
    histograms: Vec<String>,
    collector: Collector,
    slow: SlowCalls,
    in_progress: Vec<InProgress>,
    /// The time in which calls count.
    counted: Range<u64>,
    /// The names of threads that have not ended.
    names: BTreeMap<u32, String>,
    /// When the counters were last read.
    read_ns: u64,
    has_trace: bool,
    trace: Option<SessionTrace>,
    /// With a trace: the threads that had not ended.
    live: Vec<LiveThread>,
    in_band: Option<InBandServer>,
    flames: Option<FlameGraphs>,
    /// The trace or a flame graph could not be written.
    has_unwritten_file: bool,
}

impl LensInSession {
    /// Reads the statistics of all rows.
    fn stats(&mut self, context: &SessionContext<'_>) -> Result<BTreeMap<RowName, RowStats>> {
        let mut stats = self.collector.stats_by_row(context.gate, context.session.index)?;
        if self.mask & wire::LENS == 0 {
            // These counts were made for other sessions, and cover only the time of those sessions.
            stats.values_mut().for_each(|row| *row = RowStats::default());
        }
        if self.mask & wire::LENS_WHY == 0 {
            // A session around this one may record them.
            stats.values_mut().for_each(|row| row.causes.clear());
        }
        Ok(stats)
    }
}

impl Extension for LensInSession {
    fn summary(&self, _processes: Option<usize>) -> Option<String> {
        let path = self.in_band.as_ref()?.path.as_deref()?;
        Some(format!("in-band records are given at {}", shown_path(path)))
    }

    fn prepare(
        &mut self,
        _context: &mut SessionContext<'_>,
        joining: &mut Joining<'_>,
    ) -> Result<()> {
        if let (Some(flames), Joining::Command { words, .. }) = (&mut self.flames, joining) {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into()).collect();
            flames.subject = short_command_line(&words);
        }
        Ok(())
    }

    fn begin(&mut self, began_ns: u64) {
        self.counted.start = began_ns;
        self.slow = SlowCalls::new(began_ns);
        self.trace.iter_mut().for_each(|trace| trace.begin(began_ns));
    }

    fn on_record(&mut self, _context: &mut SessionContext<'_>, record: &[u8]) -> Result<bool> {
        if self.flames.as_mut().is_some_and(|flames| flames.add_record(record)) {
            return Ok(true);
        }
        let slow = kernel::ring::slow_call(record);
        Ok(slow.map(|call| self.slow.add_record(&call)).is_some())
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        if now_ns() - self.read_ns > READ_INTERVAL_NS {
            self.collector.read(context.gate, context.session.index)?;
            self.read_ns = now_ns();
        }
        match &mut self.trace {
            Some(trace) => trace.tend(context.gate, context.session.index),
            None => Ok(()),
        }
    }

    fn deadline(&self, longest: Duration) -> Duration {
        if self.trace.is_some() { longest.min(trace::READ_INTERVAL) } else { longest }
    }

    fn finish_rows(
        &mut self,
        context: &mut SessionContext<'_>,
        lock: &Lock,
        rows: &BTreeSet<u32>,
    ) -> Result<()> {
        let session = context.session.index;
        Ok(self.collector.finish_rows(context.gate, lock, session, rows)?)
    }

    fn at_detach(&mut self, context: &mut SessionContext<'_>, lock: &Lock) -> Result<()> {
        // A failure loses nothing but the ticks.
        let ticks = context.gate.add_ticks(lock, context.session);
        let now = now_ns();
        let live = self.collector.read_at_detach(context.gate, lock, context.session.index)?;
        let counted = self.counted.start..now;
        self.in_progress = live.iter().filter_map(|thread| in_progress(thread, &counted)).collect();
        if matches!(self.per, wire::PER_PROCESS | wire::PER_THREAD) {
            let name = |thread: &LiveThread| Some((thread.pid, process::name(thread.pid)?));
            self.names = live.iter().filter_map(name).collect();
        }
        if self.trace.is_some() {
            self.live = live;
        }
        Ok(ticks?)
    }

    /// The memory of records is freed with the tasks, and may be another session's soon after.
    fn before_detach(&mut self, _live: &[LiveThread]) {
        self.in_band = None;
    }

    fn leave(&mut self) {
        self.in_band = None;
    }

    /// A session within this one has recorded its own slow calls and waits, if any.
    fn losses(&self) -> Losses {
        const OWN: u32 = wire::LENS_SLOW | wire::LENS_FLAME | wire::LENS_FLAME_CPU;
        let missing = self.collector.inner_calls();
        let is_loss = missing > 0 && (self.mask & OWN != 0 || self.has_trace);
        is_loss.then(|| (CALLS_OF_INNER_SESSIONS.to_owned(), missing)).into_iter().collect()
    }

    fn stop(&mut self, ended_ns: u64) {
        self.collector.stop(ended_ns);
        self.counted.end = ended_ns;
    }

    fn section(
        &mut self,
        context: &mut SessionContext<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        let stats = self.stats(context)?;
        // Slow calls, and sessions around or within this one, may record blocking sites that this
        // session did not request.
        let has_sites =
            self.mask & wire::LENS_SITES != 0 || stats.values().any(|row| !row.sites.is_empty());
        let symbols = if has_sites { KernelSymbols::get() } else { KernelSymbols::none() };
        if has_sites && symbols.is_empty() {
            notes.push("blocking sites have no names: /proc/kallsyms shows no addresses".into());
        }
        let (slow, seen) = std::mem::replace(&mut self.slow, SlowCalls::new(0)).finish();
        if seen > slow.len() as u64 {
            notes.push(format!(
                "{seen} slow calls were recorded; the {} slowest of them are listed",
                slow.len()
            ));
        }
        let rows = ReportRows {
            per: self.per,
            order: self.order,
            histograms: &self.histograms,
            has_files: self.mask & wire::LENS_FILES != 0,
            counted: self.counted.clone(),
            names: &self.names,
            tick_ns: tick_ns(),
        };
        let report = lens_report(&stats, &rows, symbols);
        for name in &self.histograms {
            if !report.calls.iter().any(|call| call.name == *name) {
                notes.push(format!("there is no histogram of {name}: no such call has ended"));
            }
        }
        if let Some(trace) = self.trace.take() {
            let ended_ns = self.counted.end;
            let finished = trace.finish(context.gate, context.session.index, &self.live, ended_ns);
            self.has_unwritten_file |= finished.is_err();
            notes.push(finished.unwrap_or_else(|error| format!("{error:#}")));
        }
        if waits_for_kernel_locks(&report) && KernelSymbols::variables().is_empty() {
            notes.push(
                "locks of the kernel have no names: /proc/kallsyms shows no variables".into(),
            );
        }
        if is_used_uncounted(&report) && !kernel::gate_programs::reports_requests() {
            notes.push(NOT_REPORTED.into());
        }
        if let Some(mut flames) = self.flames.take() {
            self.has_unwritten_file |= !flames.write(&report, context, notes);
        }
        let in_progress = std::mem::take(&mut self.in_progress);
        Ok(Some(Box::new(LensReport { slow, in_progress, ..report })))
    }

    fn has_unwritten_file(&self) -> bool {
        self.has_unwritten_file
    }
}

/// Whether a call waited for a lock of the kernel.
fn waits_for_kernel_locks(report: &LensReport) -> bool {
    let sites = report.calls.iter().flat_map(|call| &call.blocked_in);
    sites.flat_map(|site| &site.locks).any(|wait| wait.lock.lock != FUTEX)
}

/// The call that a thread is in. /proc is read for a call whose beginning the gate has not seen.
fn in_progress(thread: &LiveThread, counted: &Range<u64>) -> Option<InProgress> {
    let tid = thread.pid;
    let (slot, entered) = match thread.call {
        Some(call) => call,
        None if thread.is_call_known => return None,
        None => (process::current_call(tid)?, 0),
    };
    let (abi, name) = call_name(slot);
    Some(InProgress { tid, name, abi: abi.as_str().into(), ns: known_time(entered, counted) })
}

/// The time since a call was entered. `None` for 0, and for a call that began before calls counted,
/// which only another session has seen.
fn known_time(entered: u64, counted: &Range<u64>) -> Option<u64> {
    (entered != 0 && entered >= counted.start).then(|| counted.end.saturating_sub(entered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_from_before_the_watch_has_no_known_time() {
        let counted = 1_000..5_000;
        assert_eq!(known_time(1_000, &counted), Some(4_000));
        assert_eq!(known_time(4_000, &counted), Some(1_000));
        assert_eq!(known_time(999, &counted), None);
        assert_eq!(known_time(0, &counted), None);
    }
}
