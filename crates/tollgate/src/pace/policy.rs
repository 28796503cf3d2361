//! The policies that a simulation compares.

use ::pace::{
    Clairvoyant, Fastest, Governor, GovernorPolicy, Learner, Levels, ScheduleRule, SpeedPolicy,
    TypeKnowledge,
};
use serde::Serialize;

use super::report_format::ReportedInterval;

/// The tick of the paper's timer, in seconds. Pace's own schedules are not rounded here.
pub const PAPER_TICK: f64 = 0.001;

/// A policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    Fastest,
    Ondemand,
    Conservative,
    Schedutil,
    Flat,
    FourSteps,
    Pace,
    Clairvoyant,
}

impl PolicyName {
    pub const ALL: [Self; 8] = [
        Self::Fastest,
        Self::Ondemand,
        Self::Conservative,
        Self::Schedutil,
        Self::Flat,
        Self::FourSteps,
        Self::Pace,
        Self::Clairvoyant,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fastest => "fastest",
            Self::Ondemand => "ondemand",
            Self::Conservative => "conservative",
            Self::Schedutil => "schedutil",
            Self::Flat => "flat",
            Self::FourSteps => "four-steps",
            Self::Pace => "pace",
            Self::Clairvoyant => "clairvoyant",
        }
    }

    /// The policy at the beginning of the tasks that are judged.
    pub fn start<'levels>(
        self,
        levels: &'levels Levels,
        known: &[TypeKnowledge],
    ) -> Box<dyn SpeedPolicy + 'levels> {
        let governor = |governor| Box::new(GovernorPolicy::new(levels, governor)) as Box<_>;
        let learner = |rule| Box::new(Learner::new(levels, rule, known.to_vec())) as Box<_>;
        match self {
            Self::Fastest => Box::new(Fastest(levels)),
            Self::Ondemand => governor(Governor::Ondemand),
            Self::Conservative => governor(Governor::Conservative),
            Self::Schedutil => governor(Governor::Schedutil),
            Self::Flat => learner(ScheduleRule::Flat),
            Self::FourSteps => learner(ScheduleRule::FourSteps(PAPER_TICK)),
            Self::Pace => learner(ScheduleRule::Lambda),
            Self::Clairvoyant => Box::new(Clairvoyant::new(levels)),
        }
    }
}

/// The energy and the misses of a policy. All energy is modelled from the power of the levels.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyRow {
    pub policy: PolicyName,
    /// The energy of all judged tasks beyond that of an idle processor.
    pub modelled_energy_j: f64,
    /// The energy as a fraction of that of the fastest speed.
    pub modelled_of_fastest: Option<ReportedInterval>,
    /// The number of judged tasks that missed their deadlines.
    pub missed: u64,
    pub missed_share: Option<ReportedInterval>,
    /// The number of judged tasks that ran or waited while another task was unfinished.
    pub overlapped: usize,
}
