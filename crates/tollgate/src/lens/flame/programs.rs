//! The memory of programs, as far as it takes to unwind their stacks. What was read of a process is
//! kept, because records arrive when it may have ended.

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blazesym::symbolize::Symbolizer;
use framehop::x86_64::{CacheX86_64, Reg, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Error, FrameAddress, Unwinder as _};
use kernel::process::read_text;
use kernel::wire;

use super::code_file::{CodeFile, vdso};
use super::mappings::{lines, program_of};

/// The files that stay open at most. Most systems let a process have 1,024.
const MAX_FILES: usize = 400;
/// The programs that are kept at most; one takes some kilobytes.
const MAX_PROGRAMS: usize = 1024;
/// Deeper stacks are cut. A copy of 16 KiB has at most 2,048.
const MAX_FRAMES: usize = 512;
/// A process's mappings are not read again before.
const REREAD_INTERVAL: Duration = Duration::from_millis(100);

/// A frame of a user stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UserFrame {
    /// The index of a file, and the offset of the call in it.
    Code(u32, u64),
    /// Code that is in no file, or that has no tables to unwind it.
    Unknown,
    /// The copy of the stack ends here.
    Truncated,
}

/// A part of a file, as a program has mapped it.
#[derive(Clone)]
struct CodeMapping {
    addresses: Range<u64>,
    offset: u64,
    /// `None`: it is of no file that could be opened.
    file: Option<u32>,
    /// Of the program's own file, which moves with the program's code, not with the libraries.
    is_own: bool,
}

/// What identifies the memory of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ProgramKey {
    tgid: u32,
    start_code: u64,
    start_stack: u64,
}

impl ProgramKey {
    fn new(sample: &wire::flame_sample) -> Self {
        let wire::flame_sample { tgid, start_code, start_stack, .. } = *sample;
        Self { tgid, start_code, start_stack }
    }

    /// Whether the process still runs this program.
    fn lives(self) -> bool {
        let stat = read_text(format!("/proc/{}/stat", self.tgid)).ok();
        stat.and_then(|stat| program_of(&stat)) == Some((self.start_code, self.start_stack))
    }
}

/// The memory of a program at one time.
struct ProgramMemory {
    start_code: u64,
    mmap_base: u64,
    mappings: Vec<CodeMapping>,
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    read: Instant,
}

impl ProgramMemory {
    fn new(
        start_code: u64,
        mmap_base: u64,
        mappings: Vec<CodeMapping>,
        files: &[CodeFile],
    ) -> Self {
        let mut unwinder = UnwinderX86_64::new();
        for mapping in &mappings {
            let Some(file) = mapping.file.map(|index| &files[index as usize]) else { continue };
            if let Some(base) = file.base(mapping.addresses.start, mapping.offset) {
                unwinder.add_module(file.module(mapping.addresses.clone(), base));
            }
        }
        Self { start_code, mmap_base, mappings, unwinder, read: Instant::now() }
    }

    /// The executable mapping with this address.
    fn at(&self, address: u64) -> Option<&CodeMapping> {
        self.mappings.iter().find(|mapping| mapping.addresses.contains(&address))
    }

    /// The memory of another process with the same program, whose code and libraries are elsewhere.
    fn moved_to(&self, start_code: u64, mmap_base: u64, files: &[CodeFile]) -> Self {
        let code = start_code.wrapping_sub(self.start_code);
        let libraries = mmap_base.wrapping_sub(self.mmap_base);
        let moved = |mapping: &CodeMapping| {
            let by = if mapping.is_own { code } else { libraries };
            let Range { start, end } = mapping.addresses;
            CodeMapping {
                addresses: start.wrapping_add(by)..end.wrapping_add(by),
                ..mapping.clone()
            }
        };
        Self::new(start_code, mmap_base, self.mappings.iter().map(moved).collect(), files)
    }
}

/// The programs that samples came from.
pub struct Programs {
    files: Vec<CodeFile>,
    /// By device and inode, and the time of the last change.
    file_index: HashMap<(u64, u64, i64), u32>,
    vdso: Option<u32>,
    programs: HashMap<ProgramKey, Rc<ProgramMemory>>,
    /// The latest program of an executable, by its inode.
    templates: HashMap<u64, Rc<ProgramMemory>>,
    cache: CacheX86_64,
}

impl Programs {
    pub fn new() -> Self {
        Self {
            files: Vec::new(),
            file_index: HashMap::new(),
            vdso: None,
            programs: HashMap::new(),
            templates: HashMap::new(),
            cache: CacheX86_64::new(),
        }
    }

    /// The user stack of a sample, the innermost frame first. `None`: its process has ended, and no
    /// other process of its program has been seen.
    pub fn unwind(&mut self, sample: &wire::flame_sample) -> Option<Vec<UserFrame>> {
        let program = self.program(sample)?;
        let frames = frames(&program, sample, &mut self.cache);
        let is_complete = !frames.contains(&UserFrame::Unknown);
        if is_complete || program.read.elapsed() < REREAD_INTERVAL {
            return Some(frames);
        }
        // It may have loaded a library since.
        match self.read(sample) {
            Some(program) => Some(self::frames(&program, sample, &mut self.cache)),
            None => Some(frames),
        }
    }

    /// The names of the functions of these frames.
    pub fn names(&self, frames: impl IntoIterator<Item = UserFrame>) -> HashMap<UserFrame, String> {
        let mut offsets: HashMap<u32, Vec<u64>> = HashMap::new();
        let mut names = HashMap::from([
            (UserFrame::Unknown, "[unknown]".to_owned()),
            (UserFrame::Truncated, "[truncated]".to_owned()),
        ]);
        for frame in frames {
            if let UserFrame::Code(file, offset) = frame
                && names.insert(frame, String::new()).is_none()
            {
                offsets.entry(file).or_default().push(offset);
            }
        }
        let symbolizer = Symbolizer::new();
        for (file, offsets) in offsets {
            let functions = self.files[file as usize].functions(&symbolizer, &offsets);
            for (offset, function) in offsets.into_iter().zip(functions) {
                names.insert(UserFrame::Code(file, offset), function);
            }
        }
        names
    }

    fn program(&mut self, sample: &wire::flame_sample) -> Option<Rc<ProgramMemory>> {
        match self.programs.get(&ProgramKey::new(sample)) {
            Some(program) => Some(Rc::clone(program)),
            None => self.read(sample).or_else(|| self.guess(sample)),
        }
    }

    /// Reads the memory of the sample's process, if it lives.
    fn read(&mut self, sample: &wire::flame_sample) -> Option<Rc<ProgramMemory>> {
        let key = ProgramKey::new(sample);
        let maps = read_text(format!("/proc/{}/maps", key.tgid)).ok()?;
        let mut mappings = Vec::new();
        for line in lines(&maps).filter(|line| line.is_executable) {
            let file = match (line.inode, line.name) {
                (0, "[vdso]") => self.vdso(),
                (0, _) => None,
                _ => self.file(key.tgid, &line.addresses, line.name),
            };
            let is_own = line.inode == sample.inode;
            let (addresses, offset) = (line.addresses, line.offset);
            mappings.push(CodeMapping { addresses, offset, file, is_own });
        }
        // Between the two readings, it may have executed another program.
        if mappings.is_empty() || !key.lives() {
            return None;
        }
        let program =
            ProgramMemory::new(sample.start_code, sample.mmap_base, mappings, &self.files);
        let program = Rc::new(program);
        self.keep(key, &program);
        if self.templates.len() >= MAX_PROGRAMS {
            self.templates.clear();
        }
        self.templates.insert(sample.inode, Rc::clone(&program));
        Some(program)
    }

    /// The memory of a process that has ended, from that of an earlier one with the same program.
    /// The kernel maps the same libraries at the same distances from a random address.
    fn guess(&mut self, sample: &wire::flame_sample) -> Option<Rc<ProgramMemory>> {
        let template = self.templates.get(&sample.inode)?;
        let program = template.moved_to(sample.start_code, sample.mmap_base, &self.files);
        let mapping = program.at(sample.registers.ip)?;
        let offset = sample.registers.ip - mapping.addresses.start + mapping.offset;
        if !self.files[mapping.file? as usize].has_call_before(offset) {
            return None;
        }
        let program = Rc::new(program);
        self.keep(ProgramKey::new(sample), &program);
        Some(program)
    }

    fn keep(&mut self, key: ProgramKey, program: &Rc<ProgramMemory>) {
        if self.programs.len() >= MAX_PROGRAMS {
            self.programs.clear();
            // It distinguishes programs by numbers of 16 bits.
            self.cache = CacheX86_64::new();
        }
        self.programs.insert(key, Rc::clone(program));
    }

    fn vdso(&mut self) -> Option<u32> {
        if self.vdso.is_none() {
            let own = read_text("/proc/self/maps").ok()?;
            let line = lines(&own).find(|line| line.name == "[vdso]")?;
            self.vdso = Some(self.add(vdso(&line.addresses).ok()?));
        }
        self.vdso
    }

    /// The file that a process has mapped at these addresses. It may have been replaced since, so
    /// its path is used only for its name.
    fn file(&mut self, tgid: u32, addresses: &Range<u64>, path: &str) -> Option<u32> {
        let Range { start, end } = addresses;
        let link = format!("/proc/{tgid}/map_files/{start:x}-{end:x}");
        // Devices are not opened.
        let found = fs::metadata(&link).ok().filter(fs::Metadata::is_file)?;
        let identity = (found.dev(), found.ino(), found.mtime_nsec() ^ found.mtime());
        if let Some(index) = self.file_index.get(&identity) {
            return Some(*index);
        }
        if self.files.len() >= MAX_FILES {
            return None;
        }
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let index = self.add(CodeFile::new(name, File::open(link).ok()?));
        self.file_index.insert(identity, index);
        Some(index)
    }

    fn add(&mut self, file: CodeFile) -> u32 {
        self.files.push(file);
        self.files.len() as u32 - 1
    }
}

/// Unwinds the copy of a stack.
fn frames(
    program: &ProgramMemory,
    sample: &wire::flame_sample,
    cache: &mut CacheX86_64,
) -> Vec<UserFrame> {
    let wire::flame_registers { ip, sp, bp, bx, r12, r13, r14, r15 } = sample.registers;
    let mut registers = UnwindRegsX86_64::new(ip, sp, bp);
    for (register, value) in
        [(Reg::RBX, bx), (Reg::R12, r12), (Reg::R13, r13), (Reg::R14, r14), (Reg::R15, r15)]
    {
        registers.set(register, value);
    }
    let stack = &sample.user_stack[..(sample.stack_bytes as usize).min(sample.user_stack.len())];
    let (mut is_beyond, mut is_at_end) = (false, false);
    let mut read = |address: u64| {
        // The kernel has written what is there, before the program began.
        is_at_end |= address >= sample.start_stack;
        let at = usize::try_from(address.wrapping_sub(sp)).map_err(drop)?;
        let word = stack.get(at..).and_then(|rest| rest.first_chunk());
        is_beyond |= word.is_none();
        word.map(|word| u64::from_ne_bytes(*word)).ok_or(())
    };
    let mut iterator = program.unwinder.iter_frames(ip, registers, cache, &mut read);
    let (mut frames, mut end) = (Vec::new(), Some(UserFrame::Truncated));
    while frames.len() < MAX_FRAMES {
        match iterator.next() {
            Ok(Some(address)) => match frame(program, address) {
                Some(frame) => {
                    if frame != UserFrame::Unknown || frames.last() != Some(&frame) {
                        frames.push(frame);
                    }
                }
                None => {
                    end = (!is_at_end).then_some(UserFrame::Unknown);
                    break;
                }
            },
            Ok(None) | Err(Error::ReturnAddressIsNull) => {
                end = None;
                break;
            }
            Err(_) => {
                end = match (is_at_end, is_beyond) {
                    (true, _) => None,
                    (_, true) => Some(UserFrame::Truncated),
                    _ => Some(UserFrame::Unknown),
                };
                break;
            }
        }
    }
    frames.extend(end.filter(|end| frames.last() != Some(end)));
    frames
}

/// The frame of an address. `None`: there is no code.
fn frame(program: &ProgramMemory, address: FrameAddress) -> Option<UserFrame> {
    let address = address.address_for_lookup();
    let mapping = program.at(address)?;
    let offset = address - mapping.addresses.start + mapping.offset;
    Some(mapping.file.map_or(UserFrame::Unknown, |file| UserFrame::Code(file, offset)))
}
