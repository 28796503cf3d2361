//! The types that cross the border, generated from `bpf/wire.h`.
#![allow(non_camel_case_types, non_upper_case_globals, dead_code, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/wire.rs"));
