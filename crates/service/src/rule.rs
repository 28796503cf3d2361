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
    /// The effective user.
    User,
    /// The systemd unit.
    Unit,
    /// The executable.
    Exe,
    /// The address of the client.
    Client,
}

impl SplitBy {
    /// All kinds of splits.
    pub const ALL: [Self; 4] = [Self::User, Self::Unit, Self::Exe, Self::Client];

    /// The name of the split in a rule file.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Unit => "unit",
            Self::Exe => "exe",
            Self::Client => "client",
        }
    }
}

/// What a rule does to a thread that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// The thread gets this service.
    BelongsTo(Id),
    /// The thread keeps its service.
    Inherits,
    /// The thread gets the service of the connection's other end, if that end is known. On fork,
    /// the thread gets the service of the process that requested the fork by a signal to the
    /// parent.
    AdoptsPeer,
    /// The thread gets a dynamic service.
    StartsDynamic {
        /// The parent of the dynamic service.
        parent: Id,
        /// By what the parent is split.
        split: SplitBy,
    },
}

/// A rule of a rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The name, if the file gives one.
    pub name: Option<String>,
    /// The byte range in the rule file.
    pub span: Range<usize>,
    /// Rules with a higher priority take precedence.
    pub priority: i32,
    /// The events at which the rule is matched.
    pub events: Vec<RuleEvent>,
    /// Whether the file names the events. If not, the rule is not matched at identity events of a
    /// thread that was assigned by hand or works on behalf of another service. For example, a
    /// program that a worker executes keeps working for the worker's client.
    pub has_explicit_events: bool,
    /// The conditions.
    pub conditions: Conditions,
    /// The action.
    pub action: RuleAction,
}

impl Rule {
    /// `Less` if `self` takes precedence.
    pub fn compare(&self, other: &Self) -> Ordering {
        other.priority.cmp(&self.priority).then_with(|| self.conditions.compare(&other.conditions))
    }

    /// Whether the rule is matched at an event. `on_behalf` is whether the thread works for a
    /// service other than its own.
    pub fn applies_to(&self, event: RuleEvent, on_behalf: bool) -> bool {
        self.events.contains(&event)
            && (self.has_explicit_events || !on_behalf || !event.is_identity_event())
    }

    /// Whether the rule matches.
    pub fn matches(&self, query: &RuleQuery) -> bool {
        self.applies_to(query.event, query.on_behalf)
            && Conditions::project(query, &self.conditions.shape())
                .is_some_and(|conditions| conditions == self.conditions)
    }
}
