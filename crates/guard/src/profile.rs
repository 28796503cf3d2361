//! A program's profile, and the effect of a call on the profile and the thread, with pH's states
//! and counts.

use std::time::Duration;

use crate::{CallNumber, GuardThread, Model, ModelKind, Parameters, Window};

/// pH's states of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileState {
    /// The profile learns.
    Training,
    /// The profile has learned nothing new for a long time. It becomes normal at the given time
    /// unless it learns something new before that.
    Frozen {
        /// The time, by the clock of the calls, at which the profile becomes normal.
        normal_at: Duration,
    },
    /// Calls are tested against the data that the profile had learned when it became normal. The
    /// profile continues to learn, but only in its training data.
    Normal,
}

/// The result for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallVerdict {
    /// The sum of the models' mismatches; also 0 if the call was not tested.
    pub mismatches: usize,
    /// The locality frame count after the call.
    pub lfc: u32,
    /// The delay that pH prescribes for the call.
    pub delay: Duration,
}

/// The profile of one program, shared by all its threads.
#[derive(Debug, Clone)]
pub struct Profile {
    model_kinds: Vec<(ModelKind, usize)>,
    parameters: Parameters,
    train: Vec<Model>,
    test: Vec<Model>,
    state: ProfileState,
    trained: u64,
    since_change: u64,
    anomalies: u64,
}

impl Profile {
    /// An empty profile. A call is anomalous if it mismatches in any of the models.
    pub fn new(kinds: &[(ModelKind, usize)], parameters: Parameters) -> Self {
        Self {
            model_kinds: kinds.to_vec(),
            parameters,
            train: empty(kinds),
            test: empty(kinds),
            state: ProfileState::Training,
            trained: 0,
            since_change: 0,
            anomalies: 0,
        }
    }

    /// The state of the profile.
    pub fn state(&self) -> ProfileState {
        self.state
    }

    /// The number of anomalies since the profile became normal or was sensitized.
    pub fn anomalies(&self) -> u64 {
        self.anomalies
    }

    /// The number of pairs and windows that calls are tested against.
    pub fn size(&self) -> usize {
        self.test.iter().map(Model::size).sum()
    }

    /// Makes a frozen profile normal if `normal_at` has passed. pH checks this at each call. The
    /// gate leaves the check to user space, because it does not read the clock for a normal call.
    pub fn tick(&mut self, now: Duration) {
        if let ProfileState::Frozen { normal_at } = self.state
            && now > normal_at
        {
            self.normalize();
        }
    }

    /// Learns, tests, counts and delays a call of a thread, in the order of pH's
    /// `process_syscall`. Which anomalies count towards the limit depends on the clock, so
    /// [`crate::AnomalyLimit`] is applied separately.
    pub fn process_syscall(
        &mut self,
        thread: &mut GuardThread,
        call: CallNumber,
        now: Duration,
    ) -> CallVerdict {
        if thread.consume_restart(call) {
            let lfc = thread.locality.count();
            return CallVerdict { mismatches: 0, lfc, delay: self.parameters.delay(lfc) };
        }
        thread.window.push(call);
        self.learn(&thread.window, now);
        let mut mismatches = 0;
        if self.state == ProfileState::Normal {
            mismatches = total_mismatches(&self.test, &thread.window);
        }
        thread.locality.push(mismatches > 0);
        self.anomalies += u64::from(mismatches > 0);
        let lfc = thread.locality.count();
        if lfc > self.parameters.tolerize_limit {
            self.sensitize();
        }
        CallVerdict { mismatches, lfc, delay: self.parameters.delay(lfc) }
    }

    fn learn(&mut self, window: &Window, now: Duration) {
        self.trained += 1;
        if total_mismatches(&self.train, window) > 0 {
            for model in &mut self.train {
                model.add(window);
            }
            self.since_change = 0;
            if let ProfileState::Frozen { .. } = self.state {
                self.state = ProfileState::Training;
            }
            return;
        }
        self.since_change += 1;
        if self.state == ProfileState::Training
            && self.parameters.freezes(self.trained, self.since_change)
        {
            self.state = ProfileState::Frozen { normal_at: now + self.parameters.normal_wait };
        }
    }

    /// Makes the training data the normal data. From then on, calls are tested.
    pub fn normalize(&mut self) {
        self.test.clone_from(&self.train);
        self.anomalies = 0;
        self.state = ProfileState::Normal;
        (self.trained, self.since_change) = (0, 0);
    }

    /// Returns to training, so that the present behaviour can become normal (pH's `stop_normal`).
    pub fn tolerize(&mut self) {
        self.state = ProfileState::Training;
    }

    /// Wipes the training data, so that the latest behaviour does not become normal.
    pub fn sensitize(&mut self) {
        self.train = empty(&self.model_kinds);
        (self.trained, self.since_change) = (0, 0);
        self.anomalies = 0;
    }
}

fn empty(kinds: &[(ModelKind, usize)]) -> Vec<Model> {
    kinds.iter().map(|(kind, length)| Model::new(*kind, *length)).collect()
}

fn total_mismatches(models: &[Model], window: &Window) -> usize {
    models.iter().map(|model| model.mismatches(window)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [(ModelKind, usize); 2] = [(ModelKind::Lookahead, 9), (ModelKind::Sequence, 6)];
    const NOW: Duration = Duration::ZERO;

    fn run(profile: &mut Profile, calls: &[CallNumber]) -> Vec<CallVerdict> {
        let mut thread = GuardThread::default();
        calls.iter().map(|call| profile.process_syscall(&mut thread, *call, NOW)).collect()
    }

    /// Open, two reads and close, repeated.
    fn normal_calls(times: usize) -> Vec<CallNumber> {
        [2, 0, 0, 3].repeat(times)
    }

    fn normal(parameters: Parameters) -> Profile {
        let mut profile = Profile::new(&KINDS, parameters);
        run(&mut profile, &normal_calls(100));
        profile.normalize();
        profile
    }

    #[test]
    fn a_profile_is_trained_frozen_and_normal_in_turn() {
        let mut profile = Profile::new(&KINDS, Parameters::default());
        let mut thread = GuardThread::default();
        let mut call =
            |profile: &mut Profile, call, now| profile.process_syscall(&mut thread, call, now);
        call(&mut profile, 2, NOW);
        assert_eq!(profile.state(), ProfileState::Training);
        for _ in 0..100 {
            normal_calls(1).into_iter().for_each(|number| {
                call(&mut profile, number, NOW);
            });
        }
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        assert_eq!(profile.state(), ProfileState::Frozen { normal_at: week });
        call(&mut profile, 2, week);
        assert_eq!(profile.state(), ProfileState::Frozen { normal_at: week });
        // A new call unfreezes the profile.
        call(&mut profile, 59, week);
        assert_eq!(profile.state(), ProfileState::Training);
        for _ in 0..1000 {
            normal_calls(1).into_iter().for_each(|number| {
                call(&mut profile, number, week);
            });
        }
        assert_eq!(profile.state(), ProfileState::Frozen { normal_at: week * 2 });
        let later = week * 2 + Duration::from_nanos(1);
        profile.tick(week * 2);
        assert_eq!(profile.state(), ProfileState::Frozen { normal_at: week * 2 });
        profile.tick(later);
        let verdict = call(&mut profile, 2, later);
        assert_eq!((profile.state(), verdict.mismatches), (ProfileState::Normal, 0));
    }

    #[test]
    fn learned_calls_are_not_anomalies() {
        let mut profile = normal(Parameters::default());
        assert!(
            run(&mut profile, &normal_calls(1000))
                .iter()
                .all(|verdict| verdict.mismatches == 0 && verdict.lfc == 0)
        );
    }

    #[test]
    fn anomaly_delays_all_calls_in_the_frame() {
        let parameters =
            Parameters { delay_factor: Duration::from_millis(1), ..Parameters::default() };
        let mut profile = normal(parameters);
        let mut calls = normal_calls(10);
        calls.push(59);
        calls.extend(normal_calls(100));
        let verdicts = run(&mut profile, &calls);
        assert!(verdicts[..40].iter().all(|verdict| verdict.delay.is_zero()));
        assert_eq!((verdicts[40].lfc, verdicts[40].delay), (1, Duration::from_millis(2)));
        let most = verdicts.iter().map(|verdict| verdict.lfc).max().expect("calls");
        // The call itself and the eight calls whose lookahead window contains it.
        assert_eq!(most, 9);
        assert!(verdicts[41..40 + 128].iter().all(|verdict| !verdict.delay.is_zero()));
        assert!(verdicts.last().expect("calls").delay.is_zero());
    }

    #[test]
    fn tolerize_limit_wipes_training() {
        let mut profile = normal(Parameters::default());
        let attack: Vec<_> = (100..130).collect();
        run(&mut profile, &attack);
        assert_eq!(profile.anomalies(), 0);
        profile.normalize();
        assert!(run(&mut profile, &attack).iter().any(|verdict| verdict.mismatches > 0));
    }
}
