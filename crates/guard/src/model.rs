//! What both models have in common.

use crate::{Lookahead, Sequence, Window};

/// Which model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Pairs of calls that were so many calls apart: pH's own.
    Lookahead,
    /// Whole windows: stide.
    Sequence,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Lookahead, Self::Sequence];

    /// As the models' papers have them: pH's source looks at 9 calls; stide is used with 6 (Hofmeyr, Forrest and
    /// Somayaji, "Intrusion Detection using Sequences of System Calls", JCS 6 (1998)).
    pub fn usual_length(self) -> usize {
        match self {
            Self::Lookahead => 9,
            Self::Sequence => 6,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Lookahead => "lookahead",
            Self::Sequence => "sequence",
        }
    }
}

/// What a program's calls were like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Model {
    Lookahead(Lookahead),
    Sequence(Sequence),
}

impl Model {
    /// Knows nothing yet.
    ///
    /// # Panics
    /// If `length` is not of 2 to 9 calls (lookahead: a bit for each distance in a byte) or 2 to 16 (sequence).
    pub fn new(kind: Kind, length: usize) -> Self {
        match kind {
            Kind::Lookahead => Self::Lookahead(Lookahead::new(length)),
            Kind::Sequence => Self::Sequence(Sequence::new(length)),
        }
    }

    /// How much of the window, whose newest call is judged, is not known; 0: all is.
    pub fn mismatches(&self, window: &Window) -> usize {
        match self {
            Self::Lookahead(model) => model.mismatches(window),
            Self::Sequence(model) => model.mismatches(window),
        }
    }

    /// From now on the window is known.
    pub fn add(&mut self, window: &Window) {
        match self {
            Self::Lookahead(model) => model.add(window),
            Self::Sequence(model) => model.add(window),
        }
    }

    /// Pairs, or windows.
    pub fn size(&self) -> usize {
        match self {
            Self::Lookahead(model) => model.size(),
            Self::Sequence(model) => model.size(),
        }
    }
}
