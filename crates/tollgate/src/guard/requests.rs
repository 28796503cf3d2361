//! Requests about the guard to the daemon, and its replies.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::report::GuardedProgram;
use super::transitions::Transition;
use crate::format::span;

/// A request to the guard of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum GuardRequest {
    Status,
    /// All recorded events, and with `follow` also new ones.
    Events {
        follow: bool,
    },
    /// Brings the store up to date; the reply is its folder.
    Store,
    Import {
        baselines: Vec<Baseline>,
        replace: bool,
    },
    #[serde(rename = "verb")]
    Transition {
        #[serde(rename = "verb")]
        transition: Transition,
        programs: Vec<String>,
    },
    Off,
    On,
    Hold {
        pid: u32,
    },
    /// Process IDs, or names or paths of programs; empty for all.
    Release {
        #[serde(rename = "whom")]
        targets: Vec<String>,
    },
}

/// The key that only requests about the guard have: the tag of [`GuardRequest`].
pub const REQUEST_KEY: &str = "ask";

/// `tollgate guard status --json`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Status {
    pub schema: String,
    /// learn, watch or enforce
    pub mode: String,
    pub response: String,
    /// An operator has switched responses off.
    pub is_off: bool,
    pub pid: u32,
    /// RFC 3339
    pub since: String,
    /// The largest number of processes that may be held at the same time.
    pub held_most: u32,
    pub held: Vec<HeldProcessReport>,
    pub programs: Vec<GuardedProgram>,
    /// As in the report.
    #[serde(default)]
    pub foreign_continues: u64,
    /// As in the report.
    #[serde(default)]
    pub unidentified: u64,
    pub losses: BTreeMap<String, u64>,
}

/// A process that is held now.
#[derive(Debug, Serialize, Deserialize)]
pub struct HeldProcessReport {
    pub pid: u32,
    pub program: String,
    #[serde(default)]
    pub scope: Option<String>,
    pub command: String,
    pub unit: Option<String>,
    pub container: Option<String>,
    /// Nanoseconds until the process is released. Null if only an operator releases it.
    pub left_ns: Option<u64>,
}

impl HeldProcessReport {
    /// The time until the process is released, for display.
    pub fn left(&self) -> String {
        self.left_ns.map_or_else(
            || "until released".into(),
            |ns| format!("{} more", span(Duration::from_nanos(ns).as_secs())),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_key() {
        let request = serde_json::to_value(GuardRequest::Status).expect("JSON");
        assert!(request.get(REQUEST_KEY).is_some(), "{request}");
    }
}
