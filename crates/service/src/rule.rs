//! A rule: on which events, under which conditions, and what follows.

use std::cmp::Ordering;
use std::ops::Range;

use crate::conditions::Conditions;
use crate::facts::Facts;
use crate::tree::Id;

/// When rules are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// In the child, which has its parent's service so far.
    Fork,
    Exec,
    /// It runs already when the rules come into force.
    Found,
    /// Another effective user.
    User,
    /// A message was received over a connection that the thread's side accepted.
    Receive,
    /// A file was opened.
    Open,
}

impl Event {
    pub const ALL: [Self; 6] = [Self::Fork, Self::Exec, Self::Found, Self::User, Self::Receive, Self::Open];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Exec => "exec",
            Self::Found => "found",
            Self::User => "user",
            Self::Receive => "receive",
            Self::Open => "open",
        }
    }

    /// Whether it tells what a thread is, and not for whom it works.
    pub fn is_of_identity(self) -> bool {
        !matches!(self, Self::Receive | Self::Open)
    }
}

/// For each different value of this, a service of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Each {
    User,
    Unit,
    Exe,
    Client,
}

impl Each {
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
pub enum Directive {
    BelongsTo(Id),
    /// It keeps the service that it has.
    Inherits,
    /// The other end's service, if that end is known; on fork, that of who asked the parent by a signal.
    AdoptsPeer,
    Starts {
        below: Id,
        each: Each,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub name: Option<String>,
    /// Bytes of the rule file.
    pub span: Range<usize>,
    pub priority: i32,
    pub events: Vec<Event>,
    /// Whether the file names the events. Where it does not, who works for somebody else is left alone: a helper that a
    /// worker executes works for the worker's client.
    pub names_events: bool,
    pub when: Conditions,
    pub then: Directive,
}

impl Rule {
    /// `Less`: decides over the other.
    pub fn compare(&self, other: &Self) -> Ordering {
        other.priority.cmp(&self.priority).then_with(|| self.when.compare(&other.when))
    }

    pub fn hears_of(&self, event: Event, borrowed: bool) -> bool {
        self.events.contains(&event) && (self.names_events || !borrowed || !event.is_of_identity())
    }

    pub fn fits(&self, facts: &Facts) -> bool {
        self.hears_of(facts.event, facts.borrowed)
            && Conditions::of(facts, &self.when.shape()).is_some_and(|conditions| conditions == self.when)
    }
}
