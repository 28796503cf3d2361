//! Tests of the daemon that need strace, servers, shells or much time.

mod control_socket;
