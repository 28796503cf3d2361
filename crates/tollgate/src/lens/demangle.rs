//! The names of functions of C++ and Rust as their programs have them.

/// The name that a symbol stands for: that of a function of C++ (Itanium C++ ABI, 5.1) or Rust (RFC
/// 2603, or as C++ before), or otherwise the symbol itself. Only a symbol with their prefixes is
/// demangled. `rd`, the name of a C function, would otherwise become the type `double restrict`.
pub fn demangled(symbol: &str) -> String {
    if !symbol.starts_with("_Z") && !symbol.starts_with("_R") {
        return symbol.to_owned();
    }
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return format!("{name:#}");
    }
    let name = cpp_demangle::Symbol::new(symbol).ok().and_then(|name| name.demangle().ok());
    name.unwrap_or_else(|| symbol.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_prefix_are_demangled() {
        for name in ["rd", "f", "v", "n", "Pc", "St", "read", "", "_Z", "_Zx", "_R"] {
            assert_eq!(demangled(name), name);
        }
        assert_eq!(demangled("_ZN4file4readEPci"), "file::read(char*, int)");
        assert_eq!(demangled("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangled("_RNvC7mycrate3foo"), "mycrate::foo");
    }
}
