//! `--sort`: the order of calls and tables in a report.

use clap::ValueEnum;

use super::report::Call;

/// The order of calls and tables in a report.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Order {
    #[default]
    Wall,
    Cpu,
    Blocked,
    Count,
    Errors,
}

impl Order {
    /// What the order compares; the largest comes first.
    pub fn key(self, call: &Call) -> u64 {
        match self {
            Self::Wall => call.wall_ns,
            Self::Cpu => call.cpu_ns,
            Self::Blocked => call.blocked_ns,
            Self::Count => call.count,
            Self::Errors => call.errors.values().sum(),
        }
    }
}
