//! Tests of the guard that need strace, servers, shells or much time.

mod anomaly_limit;
mod daemon;
mod escapes;
mod evasion;
mod exemptions;
mod holds;
mod identification;
mod kill9;
mod left_stopped;
mod model;
mod parents;
mod precall_cgroup;
mod requests_to_end;
mod scopes;
mod store;
mod switch_off;
mod systemd_operator;
mod unseen_changes;
