//! Tests of services that need strace, servers, shells or much time.

mod cost;
mod faults;
mod library;
mod pgbouncer;
mod pipelines;
mod servers;
mod table_limits;
mod top_and_metrics;
mod web_tenants;
