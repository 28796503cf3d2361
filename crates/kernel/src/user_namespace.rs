//! The user namespace of this process (user_namespaces(7)).

use std::fs;

/// Whether this process is in a user namespace other than the initial one, as far as this can be
/// read.
pub fn is_in_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !maps_all_users(&map))
}

/// Whether all users have their own numbers, as in the initial user namespace.
fn maps_all_users(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_namespace_maps_all_users() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(!maps_all_users("         0       1000          1\n"));
        assert!(!maps_all_users("0 0 1000\n1000 100000 65536\n"));
        assert!(!maps_all_users(""));
    }
}
