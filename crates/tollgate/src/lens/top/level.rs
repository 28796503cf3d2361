//! What the rows of `lens top` are.

use clap::ValueEnum;

/// What the rows are, from the largest to the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum TopLevel {
    Program,
    Process,
    Thread,
    Call,
    Site,
    File,
}

impl TopLevel {
    /// The title of the names.
    pub fn title(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Process => "process",
            Self::Thread => "thread",
            Self::Call => "call",
            Self::Site => "blocked in",
            Self::File => "file",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Self::Program => "programs",
            Self::Process => "processes",
            Self::Thread => "threads",
            Self::Call => "calls",
            Self::Site => "blocking sites",
            Self::File => "files",
        }
    }

    /// Whether a row of this level consists of rows of a smaller one.
    pub fn has_parts(self) -> bool {
        !matches!(self, Self::Site | Self::File)
    }

    /// One row, as a part of "and 3 more ROWS".
    pub fn one(self) -> &'static str {
        if self == Self::Site { "blocking site" } else { self.title() }
    }
}
