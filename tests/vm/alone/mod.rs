//! The whole machine is these tests' own, one after the other: all of it is watched or guarded, its clock
//! changes, or another version's gate is there.

mod clock;
mod daemon;
mod everything;
mod versions;
