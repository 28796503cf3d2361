//! The digest of the gate's sources. Only processes with the same digest share a gate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files and folders that determine what a gate does: its programs, and the tables in their
/// configuration, which user space fills.
pub const SOURCES: [&str; 8] = [
    "bpf",
    "crates/calls/src",
    "crates/identity/src",
    "crates/kernel/src/precall.rs",
    "crates/kernel/src/gate/call_flags.rs",
    "crates/kernel/src/gate/file_use.rs",
    "crates/kernel/src/identity_name.rs",
    "crates/stats/src/histogram.rs",
];

/// The FNV-1a hash (Fowler, Noll, Vo) of the given files and of all files below the given folders.
/// It covers their paths within `root` and their contents. Fails if one of the sources does not
/// exist.
pub fn digest(root: &Path, sources: &[&str]) -> io::Result<u32> {
    let mut paths = Vec::new();
    for source in sources {
        collect_files(root, Path::new(source), &mut paths)?;
    }
    paths.sort();
    let mut bytes = Vec::new();
    for path in paths {
        let text = fs::read(root.join(&path))?;
        for part in [path.as_os_str().as_encoded_bytes(), &text] {
            // With the lengths, no two sets of files give the same bytes.
            bytes.extend(part.len().to_le_bytes());
            bytes.extend(part);
        }
    }
    Ok(bytes
        .iter()
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)))
}

/// Adds a file, or all files below a folder, to `paths`, by their paths within `root`.
fn collect_files(root: &Path, source: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    if !fs::metadata(root.join(source))?.is_dir() {
        paths.push(source.into());
        return Ok(());
    }
    for entry in fs::read_dir(root.join(source))? {
        collect_files(root, &source.join(entry?.file_name()), paths)?;
    }
    Ok(())
}
