//! The services' kernel side: rules, bindings and usage, limits of sockets, and migrations.

mod dynamic_services;
mod kernel_side;
mod members;
pub mod migrations;
mod rulesets;
mod service_maps;
pub mod socket_limits;
mod usage;

pub use dynamic_services::{DynamicKey, DynamicService};
pub use kernel_side::ServicesKernelSide;
pub use members::Member;
pub use rulesets::KernelRuleset;
pub use service_maps::{KernelServices, salt};
pub use usage::ServiceUsage;
