//! Requests about pacing to the daemon.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask-pace", rename_all = "kebab-case")]
pub enum PaceRequest {
    /// Replies with a `PacingReport`.
    Report,
    /// Discards what is known of types in this store. Replies with a [`ResetReply`].
    Reset { types: Vec<String>, store: PathBuf },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResetReply {
    /// The names of those that are not known.
    Unknown(Vec<String>),
    /// The daemon has another store.
    OtherStore(PathBuf),
}

/// The key that only requests about pacing have: the tag of [`PaceRequest`].
pub const REQUEST_KEY: &str = "ask-pace";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_key() {
        let request = serde_json::to_value(PaceRequest::Report).expect("JSON");
        assert!(request.get(REQUEST_KEY).is_some(), "{request}");
    }
}
