//! The names and addresses of the kernel's functions, from /proc/kallsyms.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::OnceLock;

/// The kernel's functions in order of address. Their names are in one string, because there are a
/// hundred thousand of them.
#[derive(Default)]
pub struct KernelSymbols {
    /// The address, and the offset of the name in `names`.
    symbols: Vec<(u64, u32)>,
    names: String,
}

impl KernelSymbols {
    /// The functions of the running kernel; none if it hides them. They are read once for each
    /// process, because the kernel takes some 50 ms to print them.
    pub fn get() -> &'static Self {
        static SYMBOLS: OnceLock<KernelSymbols> = OnceLock::new();
        SYMBOLS.get_or_init(|| match File::open("/proc/kallsyms") {
            Ok(file) => Self::parse(BufReader::new(file)),
            Err(_) => Self::default(),
        })
    }

    /// An empty table, for reports without blocking sites.
    pub fn none() -> &'static Self {
        static NONE: KernelSymbols = KernelSymbols { symbols: Vec::new(), names: String::new() };
        &NONE
    }

    /// Whether there are no functions, for example because the kernel hides them.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    fn parse(lines: impl BufRead) -> Self {
        let mut all = Self::default();
        for line in lines.lines().map_while(Result::ok) {
            if let Some((address, name)) = text_symbol(&line) {
                all.symbols.push((address, all.names.len() as u32));
                all.names.push_str(name);
                all.names.push('\n');
            }
        }
        all.symbols.sort_by_key(|(address, _)| *address);
        all
    }

    fn name(&self, index: usize) -> &str {
        let rest = &self.names[self.symbols[index].1 as usize..];
        rest.split('\n').next().unwrap_or(rest)
    }

    /// The address of a symbol, by its full name.
    pub fn address(&self, name: &str) -> Option<u64> {
        (0..self.symbols.len())
            .find(|index| self.name(*index) == name)
            .map(|index| self.symbols[index].0)
    }

    /// The name of the function that contains `address`, without the suffixes that compilers add to
    /// clones. `None` if the address is below all functions.
    pub fn function(&self, address: u64) -> Option<&str> {
        let index = self.symbols.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
        let name = self.name(index);
        Some(name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or(name))
    }
}

/// The address and the name in a line such as "ffffffff81000000 T name".
fn text_symbol(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let name = words.next()?;
    // Text, weak text, and the markers of .sched.text, which some kernels list as data.
    let is_text = matches!(kind, "t" | "T" | "w" | "W") || name.starts_with("__sched_text_");
    (is_text && address != 0).then_some((address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_functions_between_their_bounds() {
        let symbols = KernelSymbols::parse(
            &b"ffffffff81000010 T first\nffffffff81000000 T _text\n\
             ffffffff81000020 t second.isra.0\n\
             ffffffff82000000 D data\n"[..],
        );
        assert_eq!(symbols.function(0xffffffff8100001f), Some("first"));
        assert_eq!(symbols.function(0xffffffff81000020), Some("second"));
        assert_eq!(symbols.function(0xffffffff80ffffff), None);
        assert_eq!(symbols.address("second.isra.0"), Some(0xffffffff81000020));
    }

    #[test]
    fn hidden_addresses_are_no_symbols() {
        let symbols = KernelSymbols::parse(&b"0000000000000000 T first\n"[..]);
        assert_eq!(symbols.function(0xffffffff81000000), None);
    }
}
