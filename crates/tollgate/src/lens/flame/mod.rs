//! Flame graphs: which functions of a program, and of the kernel, the time of calls was spent in.

mod code_file;
mod folded;
mod function_table;
mod graphs;
mod layout;
mod mappings;
mod programs;
mod samples;
mod svg;

pub use graphs::{FlameGraphs, FlameRequest, FlameTime};
