//! The selected programs (`--exe`): the kernel side gives profiles to no others, and their
//! baselines are loaded before they start.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use anyhow::Result;
use kernel::gate::Gate;
use kernel::guard::selected_files::SelectedFiles;
use kernel::wire;

use super::program_file::key;
use super::program_table::ProgramTable;
use crate::helper_thread::results_within;

/// For how long at most the guard waits for the files at the start.
const LONGEST_WAIT_AT_START: Duration = Duration::from_secs(60);
/// The same while it is at work.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

impl ProgramTable {
    /// Selects the programs before any task joins.
    pub fn prepare_selected(&mut self, gate: &Gate) -> Result<()> {
        self.select(gate, LONGEST_WAIT_AT_START)
    }

    /// Notices that the files at the selected paths were replaced.
    pub fn refresh_selected(&mut self, gate: &Gate) -> Result<()> {
        self.select(gate, LONGEST_WAIT)
    }

    fn select(&mut self, gate: &Gate, longest_wait: Duration) -> Result<()> {
        let paths = self.policy.selection.selected.clone();
        if paths.is_empty() {
            return Ok(());
        }
        let (asked, session) = (paths.clone(), self.session);
        let files: Vec<wire::guard_program> = results_within(longest_wait, move |to| {
            let files = asked.iter().filter_map(|path| fs::metadata(path).ok());
            let _ = files.map(|file| key(&file, session, 0)).try_for_each(|file| to.send(file));
        });
        let content =
            |file: &wire::guard_program| (file.device, file.inode, file.size, file.ctime_ns);
        if files.iter().map(content).eq(self.selected_files.iter().map(content)) {
            return Ok(());
        }
        let names: Vec<_> =
            paths.iter().filter_map(|path| Some(path.file_name()?.as_bytes())).collect();
        SelectedFiles::new(gate, self.session).set(&names, &files)?;
        self.selected_files = files;
        self.preload_selected(gate, longest_wait)
    }
}
