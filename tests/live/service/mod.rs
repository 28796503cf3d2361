//! Tests of services.

mod accounts;
mod classification;
mod datagrams;
mod explain_sockets;
mod files;
mod host;
mod limits;
mod limits_teardown;
mod limits_tree;
mod rules_reference;
mod signal_workers;
mod watches;
