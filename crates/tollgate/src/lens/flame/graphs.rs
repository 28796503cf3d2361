//! The flame graphs of a session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kernel::lens::flame::CpuSampler;
use kernel::losses::LOSS_REASONS;
use kernel::wire;

use super::folded::Folded;
use super::programs::Programs;
use super::samples::{CallName, Samples};
use super::svg::{Caption, svg};
use crate::extension::SessionContext;
use crate::format::{count, duration, number_of, shown_path};
use crate::lens::report::{Call, LensReport};
use crate::output::Output;

/// Whose stacks are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlameTime {
    /// The time in which calls were blocked.
    Blocked,
    /// The time of calls on a processor.
    Cpu,
}

impl FlameTime {
    /// The bit of [`wire::gate_mask`] with which it is sampled.
    fn bit(self) -> u32 {
        match self {
            Self::Blocked => wire::LENS_FLAME,
            Self::Cpu => wire::LENS_FLAME_CPU,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Blocked => "Blocked time in system calls",
            Self::Cpu => "Processor time in system calls",
        }
    }

    fn of_call(self, call: &Call) -> u64 {
        match self {
            Self::Blocked => call.blocked_ns,
            Self::Cpu => call.cpu_ns,
        }
    }
}

/// A flame graph that is to be written.
pub struct FlameRequest {
    pub time: FlameTime,
    path: PathBuf,
    output: Output,
}

impl FlameRequest {
    /// Fails if the file cannot be written.
    pub fn new(time: FlameTime, path: &Path) -> Result<Self> {
        let output = Output::at(path, "the flame graph")?;
        Ok(Self { time, path: path.to_owned(), output })
    }

    /// The bits of the session that it needs.
    pub fn mask(&self) -> u32 {
        self.time.bit()
    }

    fn is_picture(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"))
    }
}

/// The graphs, while their samples are taken.
pub struct FlameGraphs {
    requests: Vec<FlameRequest>,
    /// What the session watches, for the title.
    pub subject: String,
    blocked: Samples,
    on_cpu: Samples,
    programs: Programs,
    /// `None`: no graph of processor time is requested.
    sampler: Option<CpuSampler>,
}

impl FlameGraphs {
    pub fn start(requests: Vec<FlameRequest>, context: &SessionContext<'_>) -> Result<Self> {
        let has_cpu = requests.iter().any(|request| request.time == FlameTime::Cpu);
        let start = || CpuSampler::start(context.gate, context.session.index);
        Ok(Self {
            requests,
            subject: String::new(),
            blocked: Samples::default(),
            on_cpu: Samples::default(),
            programs: Programs::new(),
            sampler: has_cpu.then(start).transpose()?,
        })
    }

    /// Adds a record of the session. Returns whether it was one for flame graphs.
    pub fn add_record(&mut self, record: &[u8]) -> bool {
        if let Some(sleep) = kernel::ring::flame_sleep(record) {
            self.blocked.add_sleep(&sleep);
            return true;
        }
        let Some(sample) = kernel::ring::flame_sample(record) else { return false };
        match (&self.sampler, sample.kernel.frames) {
            (Some(sampler), 1..) => {
                self.on_cpu.add_on_cpu(&sample, &mut self.programs, sampler.period_ns);
            }
            _ => self.blocked.add_blocked_call(&sample, &mut self.programs),
        }
        true
    }

    /// Writes the graphs, and adds a note about each. Returns whether all of them are written.
    pub fn write(
        &mut self,
        report: &LensReport,
        context: &SessionContext<'_>,
        notes: &mut Vec<String>,
    ) -> bool {
        let mut are_written = true;
        let lost = losses(context);
        for request in &mut self.requests {
            let samples = match request.time {
                FlameTime::Blocked => &self.blocked,
                FlameTime::Cpu => &self.on_cpu,
            };
            let mut times: BTreeMap<CallName, u64> = BTreeMap::new();
            for call in &report.calls {
                let time = request.time.of_call(call);
                if let Some(abi) = calls::Abi::ALL.into_iter().find(|abi| abi.as_str() == call.abi)
                    && time > 0
                {
                    *times.entry((abi.as_str(), call.name.clone())).or_default() += time;
                }
            }
            let folded = samples.folded(&self.programs, &times);
            let about = about(samples, &folded, &lost);
            let text = if request.is_picture() {
                let title = request.time.title();
                let title = match self.subject.as_str() {
                    "" => title.to_owned(),
                    subject => format!("{title}: {subject}"),
                };
                svg(&folded, &Caption { title, about: about.clone() })
            } else {
                folded.text()
            };
            let path = shown_path(&request.path);
            let written = request.output.write_bytes(text.as_bytes());
            are_written &= written.is_ok();
            notes.push(match written {
                Ok(()) => format!("flame graph in {path}: {}", about.join("; ")),
                Err(error) => format!("{error:#}"),
            });
        }
        are_written
    }
}

/// What the graph was made of, and what is missing.
fn about(samples: &Samples, folded: &Folded, lost: &[String]) -> Vec<String> {
    let mut about = vec![format!(
        "{} in {}",
        duration(folded.total_ns()),
        number_of(samples.taken as usize, "sample")
    )];
    if samples.of_ended > 0 {
        about.push(format!(
            "the processes of {} had ended before Tollgate read their mappings: [unknown]",
            number_of(samples.of_ended as usize, "sample")
        ));
    }
    if samples.merged > 0 {
        let merged = number_of(samples.merged as usize, "stack");
        about.push(format!("there were too many different stacks: {merged} are not distinguished"));
    }
    about.extend_from_slice(lost);
    about
}

/// The losses that concern flame graphs.
fn losses(context: &SessionContext<'_>) -> Vec<String> {
    let Ok(lost) = context.gate.losses(context.session.index) else { return Vec::new() };
    let reasons = [wire::LOSS_FLAME_RATE, wire::LOSS_FLAME_FULL].map(|reason| reason as usize);
    let all = reasons.into_iter().filter(|reason| lost[*reason] > 0);
    all.map(|reason| format!("{}: {}", LOSS_REASONS[reason].text, count(lost[reason]))).collect()
}
