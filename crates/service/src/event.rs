//! The events at which rules are matched.

/// An event at which rules are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleEvent {
    /// The thread was forked. It has its parent's service when the rules are matched.
    Fork,
    /// A new program was executed.
    Exec,
    /// The thread was already running when the rules became active.
    Found,
    /// The effective user changed.
    User,
    /// A message was received over a connection that the thread's side accepted.
    Receive,
    /// A file was opened.
    Open,
}

impl RuleEvent {
    /// All events.
    pub const ALL: [Self; 6] =
        [Self::Fork, Self::Exec, Self::Found, Self::User, Self::Receive, Self::Open];

    /// The name of the event in a rule file.
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

    /// Whether the event concerns the thread's identity, and not a request that it works on.
    pub fn is_identity_event(self) -> bool {
        !matches!(self, Self::Receive | Self::Open)
    }
}
