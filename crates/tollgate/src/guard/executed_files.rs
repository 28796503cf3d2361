//! The paths of the files that processes execute. They tell the copies of a program apart, which
//! have one baseline.

use std::collections::BTreeMap;
use std::path::Path;

use kernel::wire;

/// As many as the gate distinguishes (`guard_programs` of bpf/guard/profiles.bpf.h).
const MAX_FILES: usize = 4 * wire::GUARD_PROFILES as usize;

/// Paths by inode number and device, as the kernel numbers them.
#[derive(Debug, Default)]
pub struct ExecutedFiles(BTreeMap<(u64, u32), String>);

impl ExecutedFiles {
    /// Notes the path of a file. If there are too many files, new ones are left out.
    pub fn set(&mut self, file: &wire::guard_program, path: &Path) {
        let (key, is_full) = ((file.inode, file.device), self.0.len() == MAX_FILES);
        if !is_full || self.0.contains_key(&key) {
            self.0.insert(key, path.to_string_lossy().into_owned());
        }
    }

    /// The path of the file that the process of an event executed. `None`: it is not known.
    pub fn of_event(&self, event: &wire::guard_event) -> Option<&str> {
        self.0.get(&(event.inode, event.device)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    #[test]
    fn events_have_the_path_of_their_file() {
        let mut files = ExecutedFiles::default();
        let file =
            |inode| wire::guard_program { inode, device: 1, ..wire::guard_program::default() };
        let of = |files: &ExecutedFiles, inode| {
            let event = wire::guard_event { inode, device: 1, ..wire::guard_event::new_zeroed() };
            files.of_event(&event).map(str::to_owned)
        };
        files.set(&file(1), Path::new("/bin/a"));
        files.set(&file(2), Path::new("/tmp/a"));
        files.set(&file(1), Path::new("/bin/b"));
        assert_eq!(
            [1, 2, 3].map(|inode| of(&files, inode)),
            [Some("/bin/b".into()), Some("/tmp/a".into()), None]
        );
        for inode in 3..2 * MAX_FILES as u64 {
            files.set(&file(inode), Path::new("/x"));
        }
        assert_eq!(files.0.len(), MAX_FILES);
        assert_eq!(of(&files, 1).as_deref(), Some("/bin/b"));
    }
}
