//! The services' kernel side: rules, bindings and usage, limits of sockets, and migrations.

pub mod migrations;
pub mod service_maps;
pub mod socket_limits;
