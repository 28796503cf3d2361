//! Tests that need only a kernel, `tollgate` and `workloads`.

mod attach;
mod compare;
mod counts;
mod details;
mod endings;
mod groups;
mod guard;
mod refusals;
mod scopes;
mod services;
mod sharing;
mod split;
