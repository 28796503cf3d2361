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
            Ok(file) => Self::parse(BufReader::new(file), text_symbol),
            Err(_) => Self::default(),
        })
    }

    /// The variables of the running kernel, without those of its modules; none if it hides them or
    /// was built without CONFIG_KALLSYMS_ALL.
    pub fn variables() -> &'static Self {
        static VARIABLES: OnceLock<KernelSymbols> = OnceLock::new();
        VARIABLES.get_or_init(|| match File::open("/proc/kallsyms") {
            Ok(file) => Self::parse(BufReader::new(file), variable),
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

    fn parse(lines: impl BufRead, symbol: fn(&str) -> Option<(u64, &str)>) -> Self {
        let mut all = Self::default();
        for line in lines.lines().map_while(Result::ok) {
            if let Some((address, name)) = symbol(&line) {
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

    /// The addresses of several symbols, as [`Self::address`]. One search needs some milliseconds,
    /// and so do all of these together.
    pub fn addresses<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let mut found = [None; N];
        for (index, (address, _)) in self.symbols.iter().enumerate() {
            let name = self.name(index);
            if let Some(which) = names.iter().position(|wanted| *wanted == name) {
                found[which].get_or_insert(*address);
            }
        }
        found
    }

    /// The addresses of a symbol, by its full name: the first one, and that of the next symbol.
    pub fn range(&self, name: &str) -> Option<(u64, u64)> {
        self.range_from(self.address(name)?)
    }

    /// The same for the symbol at this address.
    pub fn range_from(&self, start: u64) -> Option<(u64, u64)> {
        let next = self.symbols.partition_point(|(address, _)| *address <= start);
        Some((start, self.symbols.get(next)?.0))
    }

    /// The addresses of the first and the last symbol. `None` if there are none.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        Some((self.symbols.first()?.0, self.symbols.last()?.0))
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

/// arch/x86/include/asm/page_64_types.h, __START_KERNEL_map: the kernel's own code and variables
/// are above it, and the offsets of variables of each processor are far below.
const START_OF_KERNEL: u64 = 0xffff_ffff_8000_0000;

/// The address and the name in a line such as "ffffffff82c0a2c0 D rtnl_mutex".
fn variable(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let name = words.next()?;
    // A fourth word is the module.
    let is_variable = matches!(kind, "d" | "D" | "b" | "B") && words.next().is_none();
    (is_variable && address >= START_OF_KERNEL).then_some((address, name))
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
            text_symbol,
        );
        assert_eq!(symbols.range("first"), Some((0xffffffff81000010, 0xffffffff81000020)));
        assert_eq!(symbols.range("second.isra.0"), None);
        assert_eq!(symbols.function(0xffffffff8100001f), Some("first"));
        assert_eq!(symbols.function(0xffffffff81000020), Some("second"));
        assert_eq!(symbols.function(0xffffffff80ffffff), None);
        assert_eq!(symbols.address("second.isra.0"), Some(0xffffffff81000020));
        assert_eq!(symbols.addresses(["first", "third"]), [Some(0xffffffff81000010), None]);
    }

    #[test]
    fn hidden_addresses_are_no_symbols() {
        let symbols = KernelSymbols::parse(&b"0000000000000000 T first\n"[..], text_symbol);
        assert_eq!(symbols.function(0xffffffff81000000), None);
    }

    #[test]
    fn variables_are_those_of_the_kernel_itself() {
        let symbols = KernelSymbols::parse(
            &b"0000000000012340 d of_each_processor\nffffffff81000000 T _text\n\
             ffffffff82000000 D rtnl_mutex\nffffffff82000040 b tables\n\
             ffffffffc0000000 d of_a_module\t[module]\n"[..],
            variable,
        );
        assert_eq!(symbols.bounds(), Some((0xffffffff82000000, 0xffffffff82000040)));
        assert_eq!(symbols.function(0xffffffff82000008), Some("rtnl_mutex"));
        assert_eq!(symbols.function(0xffffffff81ffffff), None);
    }
}
