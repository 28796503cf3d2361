//! A rule: its events, its conditions and its action.

use std::cmp::Ordering;
use std::ops::Range;

use crate::conditions::Conditions;
use crate::event::RuleEvent;
use crate::query::RuleQuery;
use crate::tree::Id;

/// By what a rule splits a service: each value gets a dynamic service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SplitBy {
    User,
    Unit,
    Exe,
    Client,
}

impl SplitBy {
    pub const ALL: [Self; 4] = [Self::User, Self::Unit, Self::Exe, Self::Client];

    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Unit => "unit",
            Self::Exe => "exe",
            Self::Client => "client",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleAction {
    BelongsTo(Id),
    /// The thread keeps its service.
    Inherits,
    /// The service of the connection's other end, if that end is known. On fork, the service of the
    /// process that requested the fork by a signal to the parent.
    AdoptsPeer,
    CreatesBelow {
        below: Id,
        each: SplitBy,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub name: Option<String>,
    /// The byte range in the rule file.
    pub span: Range<usize>,
    pub priority: i32,
    pub events: Vec<RuleEvent>,
    /// Whether the file names the events. If not, the rule does not apply to a thread that works on
    /// behalf of another service: a helper that a worker executes works for the worker's client.
    pub has_explicit_events: bool,
    pub when: Conditions,
    pub then: RuleAction,
}

impl Rule {
    /// `Less` if `self` takes precedence.
    pub fn compare(&self, other: &Self) -> Ordering {
        other.priority.cmp(&self.priority).then_with(|| self.when.compare(&other.when))
    }

    pub fn applies_to(&self, event: RuleEvent, borrowed: bool) -> bool {
        self.events.contains(&event)
            && (self.has_explicit_events || !borrowed || !event.is_identity_event())
    }

    pub fn matches(&self, facts: &RuleQuery) -> bool {
        self.applies_to(facts.event, facts.on_behalf)
            && Conditions::project(facts, &self.when.shape())
                .is_some_and(|conditions| conditions == self.when)
    }
}
