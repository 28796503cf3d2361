//! The trace of a session, from the gate's records to the file.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kernel::clock::{boot_ns, now_ns, wall_clock};
use kernel::gate::Gate;
use kernel::lens::trace::{TraceReader, TraceRecord};
use kernel::process;
use kernel::session::LiveThread;
use kernel::symbols::KernelSymbols;
use kernel::wire;

use super::encoder::{ClockMoment, Encoder, TracedCall, Waker, WakerThread};
use crate::call_name::call_name;
use crate::format::{bytes, count, duration, shown_path};
use crate::lens::call_table::shown_name;
use crate::lens::slow_calls::result;
use crate::lens::why_report::{PartyKind, PartyNames};
use crate::lens::why_text;
use crate::result_file::ResultFile;

/// How often the records are read. There is room for 6 million calls in a second.
pub const READ_INTERVAL: Duration = Duration::from_millis(20);

/// How many packets are encoded at once.
const BATCH: usize = 1000;

/// What the options ask for.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    pub path: PathBuf,
    pub duration: Duration,
    /// The largest size of the file.
    pub bytes: u64,
}

/// The trace of a session.
pub struct SessionTrace {
    options: TraceOptions,
    file: ResultFile,
    reader: TraceReader,
    encoder: Encoder,
    /// What was encoded so far. The file is written at the end.
    written: File,
    size: u64,
    /// The calls of the file, and those that are not written yet.
    calls: u64,
    unwritten: u64,
    lost: u64,
    /// When the session began to count.
    began_ns: u64,
    has_begun: bool,
    /// The session has the end of the trace.
    is_limited: bool,
    is_full: bool,
}

/// How many calls and waits a session could not record.
fn lost(gate: &Gate, session: u32) -> Result<u64> {
    Ok(gate.losses(session)?[wire::LOSS_TRACE as usize])
}

/// `None`: the wake-up was not seen.
fn waker_of(record: &wire::trace_waker) -> Option<Waker> {
    let names = PartyNames { functions: KernelSymbols::get(), variables: KernelSymbols::none() };
    let party = names.single(&record.waker);
    if party.kind == PartyKind::Unknown {
        return None;
    }
    let text = why_text::party(&party);
    // A thread outside of the session's PID namespace has no number in it.
    let numbers = party.pid.zip(party.tid).filter(|(_, tid)| *tid != 0);
    let thread = numbers.map(|(pid, tid)| WakerThread {
        pid,
        tid,
        name: if party.thread.is_empty() { party.program.clone() } else { party.thread },
        program: party.program,
    });
    Some(Waker { left_ns: record.left_ns, woken_ns: record.woken_ns, text, thread })
}

impl SessionTrace {
    /// Begins to record. Fails if the file cannot be written.
    pub fn start(options: TraceOptions, gate: &Gate, session: u32) -> Result<Self> {
        let path = &options.path;
        let file = ResultFile::open(path)
            .with_context(|| format!("cannot write the trace to {}", shown_path(path)))?;
        let reader = TraceReader::new(gate, session)?;
        gate.trace_until(session, u64::MAX);
        let began_ns = now_ns();
        let real = wall_clock(began_ns).duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let clocks =
            ClockMoment { monotonic: began_ns, boot: boot_ns(), real: real.as_nanos() as u64 };
        Ok(Self {
            options,
            file,
            reader,
            encoder: Encoder::new(clocks),
            written: tempfile::tempfile().context("cannot make a temporary file for the trace")?,
            size: 0,
            calls: 0,
            unwritten: 0,
            lost: 0,
            began_ns,
            has_begun: false,
            is_limited: false,
            is_full: false,
        })
    }

    /// The session counts from this time on.
    pub fn begin(&mut self, began_ns: u64) {
        self.began_ns = began_ns;
        self.has_begun = true;
    }

    /// Reads what was recorded.
    pub fn tend(&mut self, gate: &Gate, session: u32) -> Result<()> {
        // A watch is tended before it begins.
        if self.has_begun && !self.is_limited && !self.is_full {
            self.is_limited = true;
            gate.trace_until(session, self.until_ns());
        }
        for record in self.reader.read()? {
            self.add(&record);
            if self.encoder.packets() >= BATCH {
                self.write(gate, session)?;
            }
        }
        let lost = lost(gate, session)?;
        if lost > self.lost {
            let missing = count(lost - self.lost);
            self.encoder.mark(now_ns(), &format!("{missing} calls and waits are missing"));
            self.lost = lost;
        }
        self.write(gate, session)
    }

    fn until_ns(&self) -> u64 {
        self.began_ns.saturating_add(self.options.duration.as_nanos() as u64)
    }

    fn add(&mut self, record: &TraceRecord) {
        // The gate may have got to know the limit later.
        let is_late = record.ended_ns().is_some_and(|ended_ns| ended_ns >= self.until_ns());
        if self.is_full || self.has_begun && is_late {
            return;
        }
        match record {
            TraceRecord::Wait(wait) => {
                let site = (wait.site != 0).then(|| KernelSymbols::get().function(wait.site));
                self.encoder.add_wait(wait, site.flatten());
            }
            TraceRecord::Waker(record) => {
                if let Some(waker) = waker_of(record) {
                    self.encoder.add_waker(record.pid, waker);
                }
            }
            TraceRecord::Call(call) => {
                let (abi, name) = call_name(call.call);
                self.unwritten += 1;
                self.encoder.add_call(&TracedCall {
                    tid: call.pid,
                    pid: call.tgid,
                    command: &wire::text(&call.comm),
                    name: &shown_name(&name, abi.as_str()),
                    began_ns: call.began_ns,
                    ended_ns: Some(call.ended_ns),
                    result: Some(&result(call.result)),
                });
            }
        }
    }

    /// Writes what was encoded. What would make the file too large is left out, and the trace ends.
    fn write(&mut self, gate: &Gate, session: u32) -> Result<()> {
        let mut encoded = self.encoder.take();
        let unwritten = std::mem::take(&mut self.unwritten);
        if !self.is_full && self.size + encoded.len() as u64 > self.options.bytes {
            self.is_full = true;
            gate.trace_until(session, 0);
            self.encoder.mark(now_ns(), "the trace has reached its size");
            encoded = self.encoder.take();
        } else {
            self.calls += unwritten;
        }
        self.size += encoded.len() as u64;
        self.written.write_all(&encoded).context("cannot write the trace to a temporary file")
    }

    /// Adds the calls in progress, and writes the file. `ended_ns`: the session counts no more.
    /// Returns what the report says about it.
    pub fn finish(
        mut self,
        gate: &Gate,
        session: u32,
        live: &[LiveThread],
        ended_ns: u64,
    ) -> Result<String> {
        self.tend(gate, session)?;
        let is_timed_out = ended_ns > self.until_ns();
        if is_timed_out {
            self.encoder.mark(self.until_ns(), "the trace has reached its duration");
        } else if !self.is_full {
            live.iter().for_each(|thread| self.add_unfinished(thread));
        }
        self.write(gate, session)?;
        self.written.rewind().context("cannot read the temporary file of the trace")?;
        let path = shown_path(&self.options.path);
        let copied = self.file.replace(|to| io::copy(&mut self.written, to).map(drop));
        copied.with_context(|| format!("cannot write the trace to {path}"))?;
        let limit = match (self.is_full, is_timed_out) {
            (true, _) => format!(" until it had {}", bytes(self.options.bytes)),
            (_, true) => format!(" of the first {}", duration(self.until_ns() - self.began_ns)),
            _ => String::new(),
        };
        Ok(format!("{path} has a trace of {} calls{limit}", count(self.calls)))
    }

    fn add_unfinished(&mut self, thread: &LiveThread) {
        let Some((call, entered_ns)) = thread.call else { return };
        if entered_ns < self.began_ns {
            return;
        }
        let (abi, name) = call_name(call);
        let tid = thread.pid;
        self.encoder.add_call(&TracedCall {
            tid,
            pid: process::process_of_thread(tid).unwrap_or(tid),
            command: &process::name(tid).unwrap_or_default(),
            name: &shown_name(&name, abi.as_str()),
            began_ns: entered_ns,
            ended_ns: None,
            result: None,
        });
    }
}
