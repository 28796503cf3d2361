//! A program's profile, and what a call does to it and to its thread: pH's states and numbers.

use std::time::Duration;

use crate::{Call, Kind, Model, Parameters, Thread, Window};

/// What a profile is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It learns.
    Training,
    /// Nothing new for long; normal at this time, if it stays so.
    Frozen { normal_at: Duration },
    /// Calls are tested against what was learned until it became normal; it goes on learning beside.
    Normal,
}

/// What is said of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// How much of the window was not known; 0 also where nothing was tested.
    pub mismatches: usize,
    pub lfc: u32,
    pub delay: Duration,
}

/// Of one program, shared by all its threads.
#[derive(Debug, Clone)]
pub struct Profile {
    kinds: Vec<(Kind, usize)>,
    parameters: Parameters,
    train: Vec<Model>,
    test: Vec<Model>,
    state: State,
    trained: u64,
    since_change: u64,
    anomalies: u64,
}

impl Profile {
    /// Knows nothing yet. A call is anomalous if any of the models does not know it.
    pub fn new(kinds: &[(Kind, usize)], parameters: Parameters) -> Self {
        Self {
            kinds: kinds.to_vec(),
            parameters,
            train: empty(kinds),
            test: empty(kinds),
            state: State::Training,
            trained: 0,
            since_change: 0,
            anomalies: 0,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Since the profile became normal.
    pub fn anomalies(&self) -> u64 {
        self.anomalies
    }

    /// Pairs and windows that are tested against.
    pub fn size(&self) -> usize {
        self.test.iter().map(Model::size).sum()
    }

    /// Time has passed: what froze long enough ago is normal. pH asks at each call; the gate reads no clock on a
    /// usual one.
    pub fn tick(&mut self, now: Duration) {
        if let State::Frozen { normal_at } = self.state
            && now > normal_at
        {
            self.normalize();
        }
    }

    /// A call of a thread at a time: learned, tested, counted, delayed, in pH's order (`process_syscall`).
    pub fn call(&mut self, thread: &mut Thread, call: Call, now: Duration) -> Verdict {
        if thread.is_made_again(call) {
            let lfc = thread.locality.count();
            return Verdict { mismatches: 0, lfc, delay: self.parameters.delay(lfc) };
        }
        thread.window.push(call);
        self.learn(&thread.window, now);
        let mut mismatches = 0;
        if self.state == State::Normal {
            mismatches = mismatches_of(&self.test, &thread.window);
            if mismatches > 0 && self.anomalies > self.parameters.anomaly_limit {
                self.tolerize();
                thread.locality.wipe();
            }
        }
        thread.locality.push(mismatches > 0);
        self.anomalies += u64::from(mismatches > 0);
        let lfc = thread.locality.count();
        if lfc > self.parameters.tolerize_limit {
            self.sensitize();
        }
        Verdict { mismatches, lfc, delay: self.parameters.delay(lfc) }
    }

    fn learn(&mut self, window: &Window, now: Duration) {
        self.trained += 1;
        if mismatches_of(&self.train, window) > 0 {
            for model in &mut self.train {
                model.add(window);
            }
            self.since_change = 0;
            if let State::Frozen { .. } = self.state {
                self.state = State::Training;
            }
            return;
        }
        self.since_change += 1;
        if self.state == State::Training && self.parameters.freezes(self.trained, self.since_change) {
            self.state = State::Frozen { normal_at: now + self.parameters.normal_wait };
        }
    }

    /// What was learned is normal from now on.
    pub fn normalize(&mut self) {
        self.test.clone_from(&self.train);
        self.anomalies = 0;
        self.state = State::Normal;
        (self.trained, self.since_change) = (0, 0);
    }

    /// What it does now is to become normal: it learns until it freezes again (pH's `stop_normal`).
    pub fn tolerize(&mut self) {
        self.state = State::Training;
    }

    /// What it did lately is not to become normal: what was learned is forgotten.
    pub fn sensitize(&mut self) {
        self.train = empty(&self.kinds);
        (self.trained, self.since_change) = (0, 0);
        self.anomalies = 0;
    }
}

fn empty(kinds: &[(Kind, usize)]) -> Vec<Model> {
    kinds.iter().map(|(kind, length)| Model::new(*kind, *length)).collect()
}

fn mismatches_of(models: &[Model], window: &Window) -> usize {
    models.iter().map(|model| model.mismatches(window)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [(Kind, usize); 2] = [(Kind::Lookahead, 9), (Kind::Sequence, 6)];
    const NOW: Duration = Duration::ZERO;

    fn run(profile: &mut Profile, calls: &[Call]) -> Vec<Verdict> {
        let mut thread = Thread::default();
        calls.iter().map(|call| profile.call(&mut thread, *call, NOW)).collect()
    }

    /// Open, some reads, close, again and again.
    fn usual(times: usize) -> Vec<Call> {
        [2, 0, 0, 3].repeat(times)
    }

    fn normal(parameters: Parameters) -> Profile {
        let mut profile = Profile::new(&KINDS, parameters);
        run(&mut profile, &usual(100));
        profile.normalize();
        profile
    }

    #[test]
    fn a_profile_is_trained_frozen_and_normal_in_turn() {
        let mut profile = Profile::new(&KINDS, Parameters::default());
        let mut thread = Thread::default();
        let mut call = |profile: &mut Profile, call, now| profile.call(&mut thread, call, now);
        call(&mut profile, 2, NOW);
        assert_eq!(profile.state(), State::Training);
        for _ in 0..100 {
            usual(1).into_iter().for_each(|number| {
                call(&mut profile, number, NOW);
            });
        }
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        assert_eq!(profile.state(), State::Frozen { normal_at: week });
        call(&mut profile, 2, week);
        assert_eq!(profile.state(), State::Frozen { normal_at: week });
        // Something new unfreezes it.
        call(&mut profile, 59, week);
        assert_eq!(profile.state(), State::Training);
        for _ in 0..1000 {
            usual(1).into_iter().for_each(|number| {
                call(&mut profile, number, week);
            });
        }
        assert_eq!(profile.state(), State::Frozen { normal_at: week * 2 });
        let later = week * 2 + Duration::from_nanos(1);
        profile.tick(week * 2);
        assert_eq!(profile.state(), State::Frozen { normal_at: week * 2 });
        profile.tick(later);
        let verdict = call(&mut profile, 2, later);
        assert_eq!((profile.state(), verdict.mismatches), (State::Normal, 0));
    }

    #[test]
    fn usual_calls_are_no_anomalies() {
        let mut profile = normal(Parameters::default());
        assert!(
            run(&mut profile, &usual(1000)).iter().all(|verdict| verdict.mismatches == 0 && verdict.lfc == 0)
        );
    }

    #[test]
    fn unusual_calls_delay_all_that_follow_in_the_frame() {
        let parameters = Parameters { delay_factor: Duration::from_millis(1), ..Parameters::default() };
        let mut profile = normal(parameters);
        let mut calls = usual(10);
        calls.push(59);
        calls.extend(usual(100));
        let verdicts = run(&mut profile, &calls);
        assert!(verdicts[..40].iter().all(|verdict| verdict.delay.is_zero()));
        assert_eq!((verdicts[40].lfc, verdicts[40].delay), (1, Duration::from_millis(2)));
        let most = verdicts.iter().map(|verdict| verdict.lfc).max().expect("calls");
        // The call itself and those whose window has it: eight with pairs.
        assert_eq!(most, 9);
        assert!(verdicts[41..40 + 128].iter().all(|verdict| !verdict.delay.is_zero()));
        assert!(verdicts.last().expect("calls").delay.is_zero());
    }

    #[test]
    fn many_anomalies_one_at_a_time_make_a_changed_program_not_an_attack() {
        let mut profile = normal(Parameters { tolerize_limit: 128, ..Parameters::default() });
        for _ in 0..4 {
            let mut calls = usual(1);
            calls.push(59);
            calls.extend(usual(40));
            run(&mut profile, &calls);
        }
        // Nine anomalies each: more than 30 by the fourth.
        assert_ne!(profile.state(), State::Normal);
    }

    #[test]
    fn an_attack_is_not_learned() {
        let mut profile = normal(Parameters::default());
        let attack: Vec<_> = (100..130).collect();
        run(&mut profile, &attack);
        assert_eq!(profile.anomalies(), 0);
        profile.normalize();
        assert!(run(&mut profile, &attack).iter().any(|verdict| verdict.mismatches > 0));
    }
}
