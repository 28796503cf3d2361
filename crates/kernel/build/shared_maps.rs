//! The maps that all generations of the gate and all processes share.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use libbpf_rs::ObjectBuilder;

/// Writes the names of an object's shared maps to `out`, as an expression. These are all maps
/// except the constants and the memory that is used only during one run of a program. The names are
/// sorted, because the order in the object depends on the compiler, which `digest` does not see.
pub fn generate(object: &Path, out: &Path) -> Result<()> {
    let object = ObjectBuilder::default()
        .open_file(object)
        .with_context(|| format!("reading {}", object.display()))?;
    let mut names: Vec<_> = object
        .maps()
        .map(|map| map.name().to_string_lossy().into_owned())
        .filter(|name| !name.ends_with(".rodata") && !name.ends_with("_scratch"))
        .collect();
    names.sort();
    fs::write(out, format!("{names:?}")).context("writing the names of the shared maps")
}
