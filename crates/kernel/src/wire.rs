//! The types that the gate and user space share, generated from `bpf/wire/`.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/wire.rs"));

/// The text of a character array, up to its NUL.
pub fn text(letters: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = letters.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An address: IPv4 is written as IPv4-mapped IPv6.
pub fn ip_address(words: [u64; 2]) -> std::net::IpAddr {
    let octets: [u8; 16] = zerocopy::transmute!(words);
    std::net::IpAddr::from(octets).to_canonical()
}

/// Digest of the kernel side's sources: processes of different builds do not share a gate.
pub const BUILD: u32 = include!(concat!(env!("OUT_DIR"), "/build.rs"));
