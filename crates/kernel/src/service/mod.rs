//! The services' kernel side: rules, bindings and usage, limits of sockets, and migrations.

mod kernel_side;
pub mod migrations;
pub mod service_maps;
pub mod socket_limits;

pub use kernel_side::ServicesKernelSide;
