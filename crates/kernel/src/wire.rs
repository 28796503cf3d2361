//! The types that the gate and user space share, generated from `bpf/wire/`.
// The generated types have the names of the C types, which are documented in `bpf/wire/`.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    missing_docs,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/wire.rs"));

/// The text of a character array, up to its NUL. Bytes that are not UTF-8 are replaced.
pub fn text(letters: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = letters.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Decodes an IP address. The kernel side writes IPv4 as IPv4-mapped IPv6.
pub fn ip_address(words: [u64; 2]) -> std::net::IpAddr {
    let octets: [u8; 16] = zerocopy::transmute!(words);
    std::net::IpAddr::from(octets).to_canonical()
}

/// Digest of the sources of the gate and of its tables (`build/digest.rs`): processes of different
/// builds do not share a gate.
pub const BUILD: u32 = include!(concat!(env!("OUT_DIR"), "/build.rs"));
