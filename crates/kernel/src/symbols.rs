//! Kernel functions by address, from /proc/kallsyms.

use std::fs;
use std::sync::OnceLock;

/// Text symbols in order of address.
#[derive(Default)]
pub struct KernelSymbols {
    symbols: Vec<(u64, Box<str>)>,
}

impl KernelSymbols {
    /// Read once a process: the kernel takes some 50 ms to print them. Empty where it hides them.
    pub fn get() -> &'static Self {
        static SYMBOLS: OnceLock<KernelSymbols> = OnceLock::new();
        SYMBOLS.get_or_init(|| Self::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default()))
    }

    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    fn parse(text: &str) -> Self {
        let mut symbols: Vec<_> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_ascii_whitespace();
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                let kind = words.next()?;
                let name = words.next()?;
                // Text, weak text, and the section markers, which some kernels call data.
                (matches!(kind, "t" | "T" | "w" | "W") || name.starts_with("__sched_text_"))
                    .then(|| (address, name.into()))
            })
            .filter(|(address, _)| *address != 0)
            .collect();
        symbols.sort_by_key(|(address, _)| *address);
        Self { symbols }
    }

    pub fn address(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(_, symbol)| &**symbol == name).map(|(address, _)| *address)
    }

    /// The function that has `address`, without the suffixes that compilers add to clones.
    pub fn function(&self, address: u64) -> Option<&str> {
        let index = self.symbols.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
        let name = &*self.symbols[index].1;
        Some(name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_functions_between_their_bounds() {
        let symbols = KernelSymbols::parse(
            "ffffffff81000010 T first\nffffffff81000000 T _text\nffffffff81000020 t second.isra.0\n\
             ffffffff82000000 D data\n",
        );
        assert_eq!(symbols.function(0xffffffff8100001f), Some("first"));
        assert_eq!(symbols.function(0xffffffff81000020), Some("second"));
        assert_eq!(symbols.function(0xffffffff80ffffff), None);
        assert_eq!(symbols.address("second.isra.0"), Some(0xffffffff81000020));
    }

    #[test]
    fn hidden_addresses_are_no_symbols() {
        let symbols = KernelSymbols::parse("0000000000000000 T first\n");
        assert_eq!(symbols.function(0xffffffff81000000), None);
    }
}
