//! What the daemon is asked about plugins.

use serde::{Deserialize, Serialize};
use serde_json::Number;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask-plugins", rename_all = "kebab-case")]
pub enum Request {
    Load {
        name: String,
        priority: i32,
        text: Text,
    },
    Swap {
        name: String,
        text: Text,
    },
    Unload {
        name: String,
    },
    List,
    /// With so many of each map's entries.
    Show {
        name: String,
        top: usize,
    },
    /// All, or none.
    Set {
        name: String,
        variables: Vec<(String, Number)>,
    },
    /// To be called by whoever asks.
    Open {
        name: String,
    },
    /// What it has told since all had told so many lines.
    Told {
        name: String,
        after: u64,
    },
    /// What it has told, or all have; and what they tell from now on.
    Log {
        name: Option<String>,
        follow: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// Of its file.
    pub name: String,
    pub text: String,
}
