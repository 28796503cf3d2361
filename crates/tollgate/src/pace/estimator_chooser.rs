//! Chooses the estimators of the types that are paced, one type at a time.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ::pace::{Estimator, Levels, TraceTask, candidate_estimators, choose_estimator};
use kernel::clock::thread_time;

/// The minimum time between two choices, in multiples of the processor time of the last one, so
/// that choices use at most one percent of a processor. A choice replays the tasks with each
/// estimator, which takes some hundred milliseconds.
const PAUSE: u32 = 100;

/// The tasks by which an estimator is chosen.
pub struct ChoiceInput {
    pub tasks: Vec<TraceTask>,
    pub target: f64,
}

/// Chooses in another thread.
#[derive(Default)]
pub struct EstimatorChooser {
    /// The type, if its choice is still wanted, and the thread that chooses its estimator.
    running: Option<(Option<usize>, JoinHandle<Choice>)>,
    /// When the next choice may start. `None`: at once.
    next: Option<Instant>,
    used: Duration,
}

struct Choice {
    estimator: Option<Estimator>,
    used: Duration,
}

impl EstimatorChooser {
    /// The processor time of all choices that have ended.
    pub fn used(&self) -> Duration {
        self.used
    }

    /// Whether a choice may start now.
    pub fn is_free(&self) -> bool {
        self.running.is_none() && self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Starts to choose the estimator of a type.
    pub fn start(&mut self, type_index: usize, levels: Levels, input: ChoiceInput) {
        let choose = move || {
            let candidates = candidate_estimators();
            let chosen = choose_estimator(&levels, &input.tasks, input.target, &candidates, || ());
            Choice { estimator: chosen.map(|index| candidates[index]), used: thread_time() }
        };
        // If there is no thread for it, the type keeps its estimator until the next choice.
        let thread = thread::Builder::new().name("pace-choice".into()).spawn(choose);
        self.running = thread.ok().map(|thread| (Some(type_index), thread));
    }

    /// Discards the choice for a type, if it has not ended.
    pub fn discard(&mut self, type_index: usize) {
        if let Some((wanted, _)) = &mut self.running {
            wanted.take_if(|wanted| *wanted == type_index);
        }
    }

    /// The type and its estimator, if a choice has ended.
    pub fn finished(&mut self) -> Option<(usize, Estimator)> {
        let (type_index, thread) = self.running.take_if(|(_, thread)| thread.is_finished())?;
        let choice = thread.join().ok()?;
        self.used += choice.used;
        self.next = Some(Instant::now() + choice.used * PAUSE);
        Some((type_index?, choice.estimator?))
    }
}

#[cfg(test)]
mod tests {
    use ::pace::Level;

    use super::*;

    /// Starts a choice from 500 tasks for this type.
    fn started(type_index: usize) -> EstimatorChooser {
        let level = |ghz: f64| Level { hz: ghz * 1e9, watts: ghz.powi(3) };
        let levels = Levels::new([0.5, 0.6, 0.7, 0.8].map(level).into(), 0.0).unwrap();
        let task = |n: usize| TraceTask {
            kind: 0,
            begin: n as f64,
            cycles: 6e6 + (n % 7) as f64 * 3e5,
            deadline: 0.02,
        };
        let mut chooser = EstimatorChooser::default();
        assert!(chooser.is_free());
        let input = ChoiceInput { tasks: (0..500).map(task).collect(), target: 0.9 };
        chooser.start(type_index, levels, input);
        assert!(!chooser.is_free());
        chooser
    }

    #[test]
    fn estimator_is_chosen_from_the_tasks() {
        let mut chooser = started(3);
        let (type_index, estimator) = loop {
            if let Some(finished) = chooser.finished() {
                break finished;
            }
            thread::yield_now();
        };
        assert!(type_index == 3 && candidate_estimators().contains(&estimator));
        // The pause has begun.
        assert!(!chooser.is_free() && chooser.used() > Duration::ZERO);
    }

    #[test]
    fn discarded_choice_has_no_result() {
        let mut chooser = started(3);
        chooser.discard(4);
        chooser.discard(3);
        while chooser.running.is_some() {
            assert_eq!(chooser.finished(), None);
            thread::yield_now();
        }
        assert!(chooser.used() > Duration::ZERO);
    }
}
