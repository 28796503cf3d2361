//! Requests about plugins to the daemon, and its replies.

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::compile::CompileTimes;
use super::report::PluginState;
use super::variables::Variables;
use crate::extension::Losses;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask-plugins", rename_all = "kebab-case")]
pub enum PluginRequest {
    Load {
        name: String,
        priority: i32,
        machine_wide: bool,
        text: PluginSource,
    },
    Swap {
        name: String,
        text: PluginSource,
    },
    Unload {
        name: String,
    },
    List,
    /// Returns the state of a plugin, with up to `top` of each map's entries.
    Show {
        name: String,
        top: usize,
    },
    /// Sets either all variables or none.
    Set {
        name: String,
        variables: Vec<(String, Number)>,
    },
    /// Opens a plugin that the client is going to call.
    Open {
        name: String,
    },
    /// Returns the output of a plugin after the first `after` lines of all plugins.
    #[serde(rename = "told")]
    OutputSince {
        name: String,
        after: u64,
    },
    /// Returns the output of one plugin or of all; with `follow`, also new output.
    Log {
        name: Option<String>,
        follow: bool,
    },
}

/// The key that distinguishes requests about plugins from other requests: the tag of
/// [`PluginRequest`].
pub const REQUEST_KEY: &str = "ask-plugins";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginSource {
    /// The name of its file.
    pub name: String,
    pub text: String,
}

/// The JSON of `tollgate plugin load` and `swap`.
#[derive(Debug, Serialize, Deserialize)]
pub struct LoadReport {
    pub schema: String,
    pub name: String,
    #[serde(flatten)]
    pub times: CompileTimes,
    /// The time to link the plugin at all its hooks.
    pub link_us: f64,
    /// After a swap: what the new version did not receive from the old one, and why.
    pub not_kept: Vec<String>,
    /// After a swap: variables that were copied, because they have moved in memory.
    pub copied: Vec<String>,
    /// Parts of the plugin that have no effect in this session.
    pub idle: Vec<String>,
}

/// The JSON of `tollgate plugin list`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListReport {
    pub schema: String,
    pub plugins: Vec<PluginState>,
    /// The losses of the session, by reason.
    pub losses: Losses,
}

/// The JSON of `tollgate plugin show`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShowReport {
    pub schema: String,
    pub plugin: PluginState,
    /// The losses of the session, by reason.
    pub losses: Losses,
}

/// What a client needs to call a plugin without the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenReport {
    pub program: u32,
    pub data: u32,
    pub control: u32,
    /// The offset in the control memory of the mark of a plugin that was swapped or unloaded.
    pub retired: u32,
    pub variables: Variables,
    pub parameters: usize,
    /// The number of lines that all plugins have written so far.
    pub lines: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_key() {
        let request = serde_json::to_value(PluginRequest::List).expect("JSON");
        assert!(request.get(REQUEST_KEY).is_some(), "{request}");
    }
}
