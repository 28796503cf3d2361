//! Rust tables of the same lines as the C ones: the C preprocessor expands the tables of
//! `bpf/wire/` in a template of this folder. A parameter of a template's macro must not have the
//! name of a field that the macro writes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Writes `out/<table>.rs`, an expression, from `templates/<table>.rs.in` with the macros of
/// `bpf/wire/gate.h`.
pub fn generate(clang: &str, bpf: &Path, templates: &Path, table: &str, out: &Path) -> Result<()> {
    let template = templates.join(format!("{table}.rs.in"));
    let output = Command::new(clang)
        .args(["-E", "-P", "-x", "c", "-imacros", "wire/gate.h"])
        .arg("-I")
        .arg(bpf)
        .arg(&template)
        .output()
        .with_context(|| format!("starting {clang}"))?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "expanding {}: {complaints}", template.display());
    fs::write(out.join(format!("{table}.rs")), output.stdout)
        .with_context(|| format!("writing the table {table}"))
}
