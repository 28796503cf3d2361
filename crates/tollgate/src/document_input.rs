//! Reads documents that Tollgate has written.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::format::shown_path;
use crate::limited_input::LimitedInput;

/// The field that is read first, because the others may be anything in a document with another
/// schema.
#[derive(Deserialize)]
struct SchemaHeader {
    schema: Option<serde_json::Value>,
}

/// Reads the document in a file, or on stdin for the name "-". Fails if the document has another
/// schema. `origin` is the command that writes such documents.
pub fn read<T: DeserializeOwned>(path: &Path, schema: &str, origin: &str) -> Result<T> {
    let (name, text) = match path.to_str() {
        Some("-") => ("stdin".into(), io::read_to_string(LimitedInput::new(io::stdin()))),
        _ => {
            let file = File::open(path).map(LimitedInput::new);
            (shown_path(path), file.and_then(io::read_to_string))
        }
    };
    let text = text.with_context(|| format!("cannot read {name}"))?;
    let not_one = || format!("{name} is not a document written by `{origin}`");
    let header: SchemaHeader = serde_json::from_str(&text).with_context(not_one)?;
    match header.schema.as_ref().and_then(|schema| schema.as_str()) {
        Some(found) if found == schema => serde_json::from_str(&text).with_context(not_one),
        Some(found) => bail!("{name} has schema {found:?}; this version reads {schema:?}"),
        None => bail!("{}: it has no field `schema`", not_one()),
    }
}
