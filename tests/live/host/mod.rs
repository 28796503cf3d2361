//! Tests that need more of a machine: strace, tar, sh, bash and the like, or much of its time.

mod asked;
mod before;
mod daemon;
mod evasion;
mod followed;
mod guard;
mod held;
mod killed;
mod library;
mod off;
mod operated;
mod plugin_cost;
mod plugin_devices;
mod plugin_library;
mod pooler;
mod programs;
mod scopes;
mod second_source;
mod servers;
mod service_cost;
mod service_faults;
mod service_full;
mod service_shown;
mod store;
mod tenants;
