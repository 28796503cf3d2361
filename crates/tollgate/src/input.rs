//! Reading documents that Tollgate has written.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Read first, as the rest of another schema may be anything.
#[derive(Deserialize)]
struct Header {
    schema: Option<serde_json::Value>,
}

/// The document in a file, if it is of this schema; `origin` is the command that writes such.
pub fn read<T: DeserializeOwned>(path: &Path, schema: &str, origin: &str) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let not_one = || format!("{} is not a document written by `{origin}`", path.display());
    let header: Header = serde_json::from_str(&text).with_context(not_one)?;
    match header.schema.as_ref().and_then(|schema| schema.as_str()) {
        Some(found) if found == schema => serde_json::from_str(&text).with_context(not_one),
        Some(found) => bail!("{} has schema {found:?}; this version reads {schema:?}", path.display()),
        None => bail!("{}: it names no schema", not_one()),
    }
}
