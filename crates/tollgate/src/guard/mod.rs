//! `tollgate guard`: programs that leave their normal call sequences are slowed down (docs/decisions/0003-guard.md).

mod replay;
mod report;
mod traces;

pub use replay::{Model, replay};
