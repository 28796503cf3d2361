//! The digest of the kernel side's sources, by which only processes of the same build share a gate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// FNV-1a (Fowler, Noll, Vo) over all files below a folder: their paths within it, and their texts.
pub fn digest(folder: &Path) -> io::Result<u32> {
    let mut paths = Vec::new();
    collect_files(folder, Path::new(""), &mut paths)?;
    paths.sort();
    let mut bytes = Vec::new();
    for path in paths {
        let text = fs::read(folder.join(&path))?;
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

/// Adds the files in `folder/below` to `paths`, each by its path within `folder`.
fn collect_files(folder: &Path, below: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect_files(folder, &path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}
