//! The common interface of both models.

use crate::{Lookahead, Sequence, Window};

/// The kinds of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelKind {
    /// Pairs of calls at a distance, as in pH.
    Lookahead,
    /// Whole windows, as in stide.
    Sequence,
}

impl ModelKind {
    /// All kinds of models.
    pub const ALL: [Self; 2] = [Self::Lookahead, Self::Sequence];

    /// The length of the window in calls: 9 as in pH's source, and 6 for stide (Hofmeyr, Forrest
    /// and Somayaji, "Intrusion Detection using Sequences of System Calls", JCS 6 (1998)).
    pub fn default_length(self) -> usize {
        match self {
            Self::Lookahead => 9,
            Self::Sequence => 6,
        }
    }

    /// The name of the kind on the command line and in JSON reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookahead => "lookahead",
            Self::Sequence => "sequence",
        }
    }
}

/// A model of a program's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Model {
    /// pH's lookahead pairs.
    Lookahead(Lookahead),
    /// stide's sequences.
    Sequence(Sequence),
}

impl Model {
    /// An empty model.
    ///
    /// # Panics
    /// If `length` is out of range: 2 to 9 calls for lookahead pairs, 2 to 16 for sequences.
    pub fn new(kind: ModelKind, length: usize) -> Self {
        match kind {
            ModelKind::Lookahead => Self::Lookahead(Lookahead::new(length)),
            ModelKind::Sequence => Self::Sequence(Sequence::new(length)),
        }
    }

    /// The number of mismatches of the window's newest call; 0 if it is normal.
    pub fn mismatches(&self, window: &Window) -> usize {
        match self {
            Self::Lookahead(model) => model.mismatches(window),
            Self::Sequence(model) => model.mismatches(window),
        }
    }

    /// Adds the window to the model.
    pub fn add(&mut self, window: &Window) {
        match self {
            Self::Lookahead(model) => model.add(window),
            Self::Sequence(model) => model.add(window),
        }
    }

    /// The number of pairs or windows.
    pub fn size(&self) -> usize {
        match self {
            Self::Lookahead(model) => model.size(),
            Self::Sequence(model) => model.size(),
        }
    }
}
