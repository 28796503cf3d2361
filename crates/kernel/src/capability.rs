//! The capabilities of this process (capabilities(7)).

use std::fs;

/// include/uapi/linux/capability.h
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Whether this process has CAP_SYS_ADMIN, as far as this can be read.
pub(crate) fn has_sys_admin() -> bool {
    fs::read_to_string("/proc/self/status").map_or(true, |status| is_in_status(&status))
}

fn is_in_status(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_none_or(|bits| bits & CAP_SYS_ADMIN != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_containers_are_read() {
        assert!(is_in_status("Name:\tcat\nCapEff:\t000001ffffffffff\n"));
        // Docker's default, with BPF and PERFMON.
        assert!(!is_in_status("CapInh:\t0000000000000000\nCapEff:\t000000c0a80425fb\n"));
        assert!(is_in_status(""));
    }
}
