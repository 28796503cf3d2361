//! The names and C types of the parameters of calls, as the kernel has them, for plugins.

use crate::Abi;
use crate::arguments::differs_from_x86_64;

/// The signatures of calls, as Linux 6.18 itself describes them.
const SIGNATURES: &str = include_str!("signatures-x86_64.txt");

/// A parameter of a call, as the kernel declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallParameter {
    /// The name in the kernel's source.
    pub name: &'static str,
    /// The width; 64 for addresses.
    pub bits: u8,
    /// Whether the number is signed.
    pub is_signed: bool,
}

/// The parameters of a call in their order. Empty if the call takes none, if `SIGNATURES` does not
/// have the call, or if its parameters in this ABI differ from those in x86-64.
pub fn parameters(abi: Abi, name: &str) -> Vec<CallParameter> {
    if differs_from_x86_64(abi, name) {
        return Vec::new();
    }
    let line =
        SIGNATURES.lines().find(|line| line.split_once(':').is_some_and(|(call, _)| call == name));
    let Some((_, parameters)) = line.and_then(|line| line.split_once(": ")) else {
        return Vec::new();
    };
    parameters.split(", ").filter_map(parameter).collect()
}

fn parameter(text: &'static str) -> Option<CallParameter> {
    let (of, name) = text.rsplit_once([' ', '*'])?;
    let (bits, is_signed) =
        if text.contains('*') { (64, false) } else { number(of.trim_start_matches("const ")) };
    // Some names of the kernel begin with an underscore, such as `_type`.
    Some(CallParameter { name: name.trim_start_matches('_'), bits, is_signed })
}

/// The width of a type on x86-64, and whether it is signed.
fn number(of: &str) -> (u8, bool) {
    match of {
        "umode_t" => (16, false),
        "int" | "pid_t" | "clockid_t" | "timer_t" | "mqd_t" | "key_t" | "key_serial_t"
        | "rwf_t" | "__s32" => (32, true),
        "unsigned int" | "unsigned" | "u32" | "__u32" | "uid_t" | "gid_t" | "qid_t" => (32, false),
        "long" | "loff_t" | "off_t" => (64, true),
        of if of.starts_with("enum ") => (32, false),
        _ => (64, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{all, argument_count, name};

    #[test]
    fn names_and_types_are_the_kernels() {
        let parameter = |name, bits, is_signed| CallParameter { name, bits, is_signed };
        assert_eq!(
            parameters(Abi::X86_64, "openat"),
            [
                parameter("dfd", 32, true),
                parameter("filename", 64, false),
                parameter("flags", 32, true),
                parameter("mode", 16, false)
            ]
        );
        assert_eq!(parameters(Abi::X86_64, "getpid"), []);
        assert_eq!(parameters(Abi::I386, "fallocate"), []);
    }

    #[test]
    fn there_are_as_many_as_arguments() {
        for (number, call) in all(Abi::X86_64) {
            let known = parameters(Abi::X86_64, call);
            assert!(
                known.is_empty() || known.len() == argument_count(Abi::X86_64, number),
                "{call}"
            );
            assert_eq!(name(Abi::X86_64, number), Some(call));
        }
    }
}
