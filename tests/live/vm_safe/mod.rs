//! Tests that need only a kernel, `tollgate` and `workloads`.

mod attach;
mod compare;
mod counts;
mod details;
mod endings;
mod groups;
mod guard;
mod plugin_examples;
mod plugin_hooks;
mod plugin_refusals;
mod plugins;
mod refusals;
mod scopes;
mod service_accounts;
mod service_datagrams;
mod service_files;
mod service_limits;
mod service_limits_end;
mod service_limits_tree;
mod service_rules;
mod service_sockets;
mod service_workers;
mod services;
mod sharing;
