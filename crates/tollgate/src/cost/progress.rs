//! The progress of a run, on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The minimum time between two messages, so that the widest row is not searched for after each
/// quad.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);

/// The progress bar of a run.
pub struct Progress {
    bar: ProgressBar,
    budget: Duration,
    precision: f64,
    latest: Option<Instant>,
}

/// The benchmark, the arm, and half the width of the interval.
pub type LeastPrecise = (String, String, f64);

impl Progress {
    /// A progress bar on stderr, if that is a terminal.
    pub fn new(budget: Duration, precision: f64) -> Self {
        let bar = ProgressBar::new(budget.as_secs());
        let style =
            ProgressStyle::with_template("[{bar:30}] {msg}").expect("the template is right");
        bar.set_style(style.progress_chars("=> "));
        Self { bar, budget, precision, latest: None }
    }

    /// Shows what the run does now.
    pub fn show(&mut self, message: &str) {
        self.bar.set_message(message.to_owned());
        self.bar.tick();
    }

    /// Shows the progress after a quad. `widest` is called only if the bar is drawn.
    pub fn quad(
        &mut self,
        quads: usize,
        elapsed: Duration,
        widest: impl FnOnce() -> Option<LeastPrecise>,
    ) {
        if self.bar.is_hidden()
            || self.latest.is_some_and(|latest| latest.elapsed() < UPDATE_INTERVAL)
        {
            return;
        }
        self.latest = Some(Instant::now());
        self.bar.set_position(elapsed.as_secs());
        let left = self.budget.saturating_sub(elapsed);
        let row = widest().map_or(String::new(), |(benchmark, arm, half)| {
            format!("; {benchmark} {arm} ±{:.2} % of ±{:.2}", half * 100.0, self.precision * 100.0)
        });
        self.show(&format!("{quads} quads, at most {} s left{row}", left.as_secs()));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
