//! A file with code that programs have mapped: what it takes to unwind its functions, and their
//! names.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use framehop::{ExplicitModuleSectionInfo, Module};
use object::elf::{PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ReadCache, ReadRef};

use super::super::demangle::demangled;
use super::function_table::function_start;

/// Tables that are larger are not read. Those of the largest browsers have 20 MiB.
const MAX_TABLE_LEN: u64 = 64 << 20;

/// A part of the file that is mapped as one, with code.
struct Segment {
    offsets: Range<u64>,
    address: u64,
}

/// A section, and the addresses that the file has for it.
#[derive(Default)]
struct UnwindSection {
    addresses: Option<Range<u64>>,
    data: Option<Arc<[u8]>>,
}

/// What the file says about unwinding.
#[derive(Default)]
struct UnwindTables {
    segments: Vec<Segment>,
    text: Option<Range<u64>>,
    got: Option<Range<u64>>,
    eh_frame: UnwindSection,
    eh_frame_hdr: UnwindSection,
}

impl UnwindTables {
    /// Reads them. `None` if the data are no ELF file of 64 bits.
    fn read<'data>(data: impl ReadRef<'data>) -> Option<Self> {
        let elf = ElfFile64::<Endianness, _>::parse(data).ok()?;
        let endian = elf.endian();
        let has_code = |header: &&ProgramHeader64<Endianness>| {
            header.p_type(endian) == PT_LOAD && header.p_flags(endian) & PF_X == PF_X
        };
        let segments = elf.elf_program_headers().iter().filter(has_code).map(|header| {
            let begin = header.p_offset(endian);
            let end = begin.saturating_add(header.p_filesz(endian));
            Segment { offsets: begin..end, address: header.p_vaddr(endian) }
        });
        let addresses = |name: &str| {
            let section = elf.section_by_name(name)?;
            Some(section.address()..section.address().checked_add(section.size())?)
        };
        let table = |name: &str| {
            let section = elf.section_by_name(name).filter(|found| found.size() <= MAX_TABLE_LEN);
            let data = section.and_then(|section| section.data().ok()).map(Arc::from);
            UnwindSection { addresses: addresses(name), data }
        };
        Some(Self {
            segments: segments.collect(),
            text: addresses(".text"),
            got: addresses(".got"),
            eh_frame: table(".eh_frame"),
            eh_frame_hdr: table(".eh_frame_hdr"),
        })
    }
}

pub struct CodeFile {
    /// The last component of its path.
    name: String,
    /// `None`: the vdso, which is in memory only.
    file: Option<File>,
    tables: UnwindTables,
}

impl CodeFile {
    pub fn new(name: String, file: File) -> Self {
        let tables = UnwindTables::read(&ReadCache::new(&file)).unwrap_or_default();
        Self { name, file: Some(file), tables }
    }

    /// Code in memory that the kernel maps into every process.
    pub fn in_memory(name: &str, bytes: &[u8]) -> Self {
        let tables = UnwindTables::read(bytes).unwrap_or_default();
        Self { name: name.into(), file: None, tables }
    }

    /// The address of the beginning of the file's addresses, if the part from `offset` on is mapped
    /// at `address`.
    pub fn base(&self, address: u64, offset: u64) -> Option<u64> {
        // A mapping begins at a page, which may begin in the segment before, without code.
        let is_mapped = |segment: &&Segment| segment.offsets.end > offset;
        let segment = self.tables.segments.iter().find(is_mapped)?;
        let of_file = segment.address.wrapping_sub(segment.offsets.start).wrapping_add(offset);
        Some(address.wrapping_sub(of_file))
    }

    /// The file as framehop knows it, mapped at these addresses.
    pub fn module(&self, mapped: Range<u64>, base: u64) -> Module<Arc<[u8]>> {
        let UnwindTables { text, got, eh_frame, eh_frame_hdr, .. } = &self.tables;
        let sections = ExplicitModuleSectionInfo {
            text_svma: text.clone(),
            got_svma: got.clone(),
            eh_frame_svma: eh_frame.addresses.clone(),
            eh_frame: eh_frame.data.clone(),
            eh_frame_hdr_svma: eh_frame_hdr.addresses.clone(),
            eh_frame_hdr: eh_frame_hdr.data.clone(),
            ..Default::default()
        };
        Module::new(self.name.clone(), mapped, base, sections)
    }

    /// Whether the instruction before this offset makes a system call.
    pub fn has_call_before(&self, offset: u64) -> bool {
        /// syscall, sysenter, and int $0x80
        const CALLS: [[u8; 2]; 3] = [[0x0f, 0x05], [0x0f, 0x34], [0xcd, 0x80]];
        let (mut bytes, Some(file)) = ([0; 2], &self.file) else { return true };
        let Some(at) = offset.checked_sub(bytes.len() as u64) else { return false };
        file.read_exact_at(&mut bytes, at).is_ok() && CALLS.contains(&bytes)
    }

    /// A name for a function without a symbol: the file, and the offset at which it begins.
    fn unnamed(&self, offset: u64) -> String {
        let start = || {
            let of_offset = |one: &&Segment| one.offsets.contains(&offset);
            let segment = self.tables.segments.iter().find(of_offset)?;
            let UnwindSection { addresses, data } = &self.tables.eh_frame_hdr;
            let address = offset - segment.offsets.start + segment.address;
            let start = function_start(data.as_ref()?, addresses.as_ref()?.start, address)?;
            start.checked_sub(segment.address)?.checked_add(segment.offsets.start)
        };
        match start() {
            Some(start) => format!("{}+{start:#x}", self.name),
            None => format!("[{}]", self.name),
        }
    }

    /// The functions at these offsets.
    pub fn functions(&self, symbolizer: &Symbolizer, offsets: &[u64]) -> Vec<String> {
        let unnamed = |offset: &u64| self.unnamed(*offset);
        let found = self.file.as_ref().and_then(|file| {
            // The path of the file may lead to another one by now.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let source = Source::Elf(Elf::new(path));
            symbolizer.symbolize(&source, Input::FileOffset(offsets)).ok()
        });
        let Some(found) = found else { return offsets.iter().map(unnamed).collect() };
        let name = |(symbol, offset): (&Symbolized<'_>, &u64)| match symbol.as_sym() {
            Some(symbol) => demangled(&symbol.name),
            None => self.unnamed(*offset),
        };
        found.iter().zip(offsets).map(name).collect()
    }
}

/// The vdso of this process, which is the same in all processes of 64 bits.
pub fn vdso(range: &Range<u64>) -> io::Result<CodeFile> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, range.start)?;
    Ok(CodeFile::in_memory("vdso", &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_file_has_tables_and_names() {
        let path = std::env::current_exe().expect("this program has a file");
        let file = CodeFile::new("test".into(), File::open(path).expect("it can be read"));
        assert!(file.tables.eh_frame.data.is_some() && !file.tables.segments.is_empty());
        let Segment { offsets, address } = &file.tables.segments[0];
        // Mapped at its own addresses, the base is 0, also from the beginning of its first page on.
        assert_eq!(file.base(*address, offsets.start), Some(0));
        assert_eq!(file.base(address & !0xfff, offsets.start & !0xfff), Some(0));
        assert_eq!(file.base(address + 0x7000_0000, offsets.start), Some(0x7000_0000));
        assert!(!file.has_call_before(0) && !file.has_call_before(4));
    }

    #[test]
    fn file_that_is_no_program_has_no_tables() {
        let file = CodeFile::new("x".into(), tempfile::tempfile().expect("there is room"));
        assert_eq!(file.base(0x1000, 0), None);
        assert_eq!(file.functions(&Symbolizer::new(), &[1, 2]), ["[x]", "[x]"]);
    }
}
