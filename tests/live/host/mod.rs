//! Tests that need more of a machine: strace, tar, sh, bash and the like, or much of its time.

mod asked;
mod before;
mod cost;
mod daemon;
mod evasion;
mod followed;
mod guard;
mod held;
mod killed;
mod library;
mod neighbours;
mod off;
mod operated;
mod plugins;
mod pooler;
mod programs;
mod scale;
mod scopes;
mod second_source;
mod servers;
mod service_cost;
mod service_faults;
mod service_full;
mod service_shown;
mod store;
mod tenants;
