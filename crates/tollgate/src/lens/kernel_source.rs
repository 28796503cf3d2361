//! Where in the kernel's source an address is, where the kernel's debug information is installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use blazesym::inspect::{self, Inspector};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use kernel::probe;
use kernel::symbols::KernelSymbols;

/// A function of every kernel, in one file of its source. The rest of the path of that file is the
/// beginning of all paths.
const FIRST: (&str, &str) = ("start_kernel", "init/main.c");
/// A function of every kernel that is not freed after the start, so that /proc/kallsyms has it.
const REFERENCE: &str = "schedule";

/// The lines of addresses of the running kernel. A line that was found once is kept, because
/// finding it reads an index of the debug information, which may take a second.
#[derive(Default)]
pub struct KernelLines(Mutex<BTreeMap<u64, Option<String>>>);

impl KernelLines {
    /// The file and line of the call that returns to an address, such as "fs/pipe.c:325". `None`:
    /// they are not known. The address may be in a module, whose debug information is not read.
    pub fn of_call(&self, return_address: u64) -> Option<String> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || KernelImage::of_running_kernel()?.line(return_address);
        lines.entry(return_address).or_insert_with(find).clone()
    }
}

/// A kernel's ELF file with debug information.
struct KernelImage {
    file: PathBuf,
    /// What is added to the file's addresses when the kernel runs.
    offset: u64,
}

/// Where distributions, and the builders of kernels, install it.
fn files(release: &str) -> [PathBuf; 3] {
    [
        format!("/usr/lib/debug/boot/vmlinux-{release}"),
        format!("/usr/lib/debug/lib/modules/{release}/vmlinux"),
        format!("/lib/modules/{release}/build/vmlinux"),
    ]
    .map(PathBuf::from)
}

/// The address of a function in an ELF file.
fn address_in(file: &Path, function: &str) -> Option<u64> {
    let mut elf = inspect::source::Elf::new(file);
    elf.debug_syms = false;
    let inspector = Inspector::new();
    let found = inspector.lookup(&inspect::source::Source::Elf(elf), &[function]).ok()?;
    Some(found.first()?.first()?.addr)
}

impl KernelImage {
    fn of_running_kernel() -> Option<Self> {
        let reference = KernelSymbols::get().address(REFERENCE)?;
        let (release, _) = probe::release();
        files(&release).iter().find_map(|file| Self::at(file, REFERENCE, reference))
    }

    /// The file of a kernel whose function `reference` is at this address now.
    fn at(file: &Path, reference: &str, address: u64) -> Option<Self> {
        let offset = address.wrapping_sub(address_in(file, reference)?);
        Some(Self { file: file.to_owned(), offset })
    }

    fn line(&self, return_address: u64) -> Option<String> {
        let symbolizer = Symbolizer::new();
        let address = return_address.wrapping_sub(self.offset);
        // The call is the instruction before. Its last byte is within it.
        let (path, line) = self.source(&symbolizer, address.wrapping_sub(1))?;
        let folder = || {
            let (first, _) = self.source(&symbolizer, address_in(&self.file, FIRST.0)?)?;
            first.strip_suffix(FIRST.1).map(str::to_owned)
        };
        let folder = folder().unwrap_or_default();
        Some(format!("{}:{line}", path.strip_prefix(&folder).unwrap_or(&path)))
    }

    /// The file and line of an address of the file. In an inlined function, it is that function's.
    fn source(&self, symbolizer: &Symbolizer, address: u64) -> Option<(String, u32)> {
        let source = Source::Elf(Elf::new(&self.file));
        let found = symbolizer.symbolize_single(&source, Input::VirtOffset(address)).ok()?;
        let Symbolized::Sym(symbol) = found else { return None };
        let place = match symbol.inlined.last() {
            Some(innermost) => innermost.code_info.as_ref()?,
            None => symbol.code_info.as_deref()?,
        };
        Some((place.to_path().to_string_lossy().into_owned(), place.line?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    const PROGRAM: &str = "\
#include <unistd.h>
static inline __attribute__((always_inline)) int inner(int fd)
{
	char byte;

	return read(fd, &byte, 1) == 1;
}

__attribute__((noinline)) int outer(int fd)
{
	int first = inner(fd);

	return first + inner(fd);
}

int main(void)
{
	return outer(0);
}
";

    fn output(program: &str, arguments: &[&str]) -> String {
        let ran = Command::new(program).args(arguments).output().expect("it is installed");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("UTF-8")
    }

    #[test]
    fn lines_are_those_of_addr2line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name| folder.path().join(name).to_str().expect("UTF-8").to_owned();
        let (source, file) = (path("program.c"), path("program"));
        fs::write(&source, PROGRAM).expect("it is written");
        output("gcc", &["-O2", "-g", "-o", &file, &source]);
        // The program is loaded elsewhere, as a kernel with KASLR is.
        let (start, shift) = (address_in(file.as_ref(), "outer").expect("a function"), 0x2a00_0000);
        let image = KernelImage::at(file.as_ref(), "outer", start + shift).expect("a symbol");
        let mut lines = Vec::new();
        for address in start..start + 32 {
            let expected = output("addr2line", &["-e", &file, &format!("{address:#x}")]);
            // addr2line may add "(discriminator 2)".
            let expected = expected.split_whitespace().next().expect("a line").to_owned();
            // The address is that of the last byte of a call.
            let found = image.line(address + shift + 1);
            assert_eq!(found.unwrap_or_else(|| "??:?".into()), expected, "{address:#x}");
            lines.push(expected);
        }
        assert!(lines.iter().any(|line| line.ends_with("program.c:6")), "{lines:?}");
        assert!(image.line(shift + 1).is_none());
        assert!(KernelImage::at(file.as_ref(), "no_function", start).is_none());
    }
}
