//! Tests of plugins that need strace, servers, shells or much time.

mod cost;
mod devices;
mod library;
