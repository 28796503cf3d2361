//! Makes Rust tables from the lines of the C tables: the C preprocessor expands the tables of
//! `bpf/wire/` in the templates of this folder. A parameter of a template's macro must not have the
//! name of a field that the macro writes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Writes an expression to `out`: a template, with the macros of a header in `bpf/wire/` expanded.
pub fn generate(clang: &str, bpf: &Path, header: &str, template: &Path, out: &Path) -> Result<()> {
    let output = Command::new(clang)
        .args(["-E", "-P", "-x", "c", "-imacros", &format!("wire/{header}"), "-I"])
        .args([bpf, template])
        .output()
        .with_context(|| format!("starting {clang}"))?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "expanding {}: {complaints}", template.display());
    fs::write(out, output.stdout).with_context(|| format!("writing {}", out.display()))
}
