//! The types that the gate and user space share, generated from `bpf/wire/`.
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/wire.rs"));

/// Digest of the kernel side's sources: processes of different builds do not share a gate.
pub const BUILD: u32 = include!(concat!(env!("OUT_DIR"), "/build.rs"));
