//! A watch whose values are read again and again.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;

use super::live_lens::Sample;
use crate::format::{command_line, count, number_of};
use crate::process_selection::Select;
use crate::process_watch::RunningWatch;

/// A watch, and what was read of it last.
pub struct LiveWatch<'a> {
    pub watch: RunningWatch<'a>,
    pub sample: Rc<RefCell<Sample>>,
    title: String,
}

impl<'a> LiveWatch<'a> {
    /// `sample`: where the extension of the watch puts what it reads.
    pub fn new(watch: RunningWatch<'a>, select: &Select, sample: Rc<RefCell<Sample>>) -> Self {
        Self { watch, sample, title: title(select) }
    }

    /// Reads what was counted since the reading before.
    pub fn refresh(&mut self) -> Result<()> {
        self.watch.runner.refresh().into_iter().next().map_or(Ok(()), Err)?;
        self.sample.borrow_mut().losses = self.watch.runner.losses()?;
        Ok(())
    }

    /// The first line of a view.
    pub fn head(&self) -> String {
        let sample = self.sample.borrow();
        let losses: u64 = sample.losses.values().sum();
        let lost = if losses > 0 { format!("  LOSSES: {}", count(losses)) } else { String::new() };
        let over = if self.watch.is_over() { "  all have ended" } else { "" };
        let threads = number_of(sample.threads, "thread");
        format!("tollgate lens  {}  {threads}{over}{lost}", self.title)
    }
}

/// What is watched, for the first line.
fn title(select: &Select) -> String {
    if select.all {
        return "all processes".into();
    }
    let pids = select.pid.iter().map(|pid| format!("process {pid}"));
    let words = select.cgroup.iter().chain(&select.unit).cloned();
    let names = select.comm.iter().map(|name| name.to_string_lossy().into_owned());
    pids.chain(words.chain(names).map(|word| command_line(&[word]))).collect::<Vec<_>>().join(", ")
}
