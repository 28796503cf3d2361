//! The functions on the user stack of a slow call.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use blazesym::Pid;
use blazesym::symbolize::source::{Elf, Process, Source};
use blazesym::symbolize::{Input, Symbolizer};
use kernel::wire;

use super::demangle::demangled;
use crate::kernel_text;
use crate::regular_file::{descriptor_path, open_regular_if};

/// The number of frames, without those at the end that are not code.
fn frames(record: &wire::slow_call) -> usize {
    let count = (record.user_frames as usize).min(record.user_stack.len());
    let is_mapped = |file: &u8| u32::from(*file) != wire::NO_STACK_MAPPING;
    record.user_file[..count].iter().rposition(is_mapped).map_or(0, |last| last + 1)
}

#[derive(Default)]
pub struct UserSymbols {
    symbolizer: Symbolizer,
}

impl UserSymbols {
    /// The user stack of a record, the innermost frame first. A frame without a symbol is shown by
    /// its file and the offset in it, which do not change from run to run, or by its address.
    pub fn stack(&self, record: &wire::slow_call) -> Vec<String> {
        let count = frames(record);
        let mut names = vec![None; count];
        for (index, file) in record.stack_file.iter().take(record.stack_files as usize).enumerate()
        {
            let is_there = |frame: &usize| usize::from(record.user_file[*frame]) == index;
            let frames: Vec<_> = (0..count).filter(is_there).collect();
            let offsets: Vec<_> = frames.iter().map(|frame| record.user_offset[*frame]).collect();
            for (frame, name) in frames.into_iter().zip(self.in_file(file, &offsets)) {
                names[frame] = name;
            }
        }
        if names.iter().any(Option::is_none) {
            let found = self.in_process(record.tgid, &record.user_stack[..count]);
            for (name, found) in names.iter_mut().zip(found) {
                *name = name.take().or(found);
            }
        }
        let plain = |frame: usize| plain(record, frame);
        names.into_iter().enumerate().map(|(at, name)| name.unwrap_or_else(|| plain(at))).collect()
    }

    /// The functions at offsets of a file. The process may have ended, so the file is found by its
    /// path; it must still be the same.
    fn in_file(&self, file: &wire::fd_path, offsets: &[u64]) -> Vec<Option<String>> {
        let path = kernel_text::path(file);
        let is_same = |found: &Metadata| found.ino() == file.inode;
        let Ok((opened, _)) = open_regular_if(Path::new(&path), is_same) else {
            return vec![None; offsets.len()];
        };
        // While the file is open, nobody can take a lease for which an open would have to wait.
        self.names(&Source::Elf(Elf::new(descriptor_path(&opened))), Input::FileOffset(offsets))
    }

    /// The functions at addresses of a process that lives.
    fn in_process(&self, pid: u32, addresses: &[u64]) -> Vec<Option<String>> {
        let mut process = Process::new(Pid::from(pid));
        // A process's own perf map may contain anything; only files that the kernel lists as mapped
        // are read.
        process.perf_map = false;
        self.names(&Source::Process(process), Input::AbsAddr(addresses))
    }

    fn names(&self, source: &Source<'_>, input: Input<&[u64]>) -> Vec<Option<String>> {
        let Ok(symbols) = self.symbolizer.symbolize(source, input) else {
            return vec![None; input.into_inner().len()];
        };
        let name = |symbol: &blazesym::symbolize::Symbolized<'_>| {
            symbol.as_sym().map(|symbol| demangled(&symbol.name))
        };
        symbols.iter().map(name).collect()
    }
}

fn plain(record: &wire::slow_call, frame: usize) -> String {
    match record.stack_file.get(usize::from(record.user_file[frame])) {
        Some(file) => {
            let path = kernel_text::path(file);
            let name = path.rsplit('/').next().unwrap_or_default();
            format!("{name}+{:#x}", record.user_offset[frame])
        }
        None => format!("{:#x}", record.user_stack[frame]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_code_at_the_end_of_a_stack_is_no_frame() {
        let mut record = wire::slow_call { user_frames: 4, ..wire::slow_call::default() };
        record.user_file[..4].copy_from_slice(&[0, wire::NO_STACK_MAPPING as u8, 0xff, 0xfe]);
        assert_eq!(frames(&record), 3);
        record.user_frames = 0;
        assert_eq!(frames(&record), 0);
    }
}
