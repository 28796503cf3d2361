//! Where cgroups are mounted, and which hierarchy has each controller.

use super::finding::Finding;
use crate::cgroup_mounts::{Mounts, v1_name};

pub fn hierarchy() -> Finding {
    match Mounts::read().v2 {
        Some(place) => Finding::yes(place),
        None => Finding::no("not mounted"),
    }
}

pub fn controller(name: &str) -> Finding {
    let mounts = Mounts::read();
    found(name, &mounts, mounts.is_in_v2(name))
}

fn found(name: &str, mounts: &Mounts, in_v2: bool) -> Finding {
    if in_v2 {
        return Finding::yes("");
    }
    match (mounts.v1_mount_point(name), &mounts.v2) {
        (Some(place), _) => Finding::no(format!("cgroup v1: {place}"))
            .fallback(format!("the v1 hierarchy at {place}"))
            .remedy(format!("boot with cgroup_no_v1={}", v1_name(name))),
        (None, None) => Finding::no("cgroup v2 is not mounted").remedy("cgroup v2, as above"),
        (None, Some(_)) => Finding::no("not among the controllers of cgroup v2"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_v1_controller_is_used_where_it_is() {
        let finding = found("io", &Mounts::parse(HYBRID), false);
        assert_eq!(finding.have, Some(false));
        assert_eq!(finding.fallback.unwrap(), "the v1 hierarchy at /sys/fs/cgroup/blkio");
        assert_eq!(finding.remedy.unwrap(), "boot with cgroup_no_v1=blkio");
    }

    #[test]
    fn nothing_mounted_is_no_controller() {
        assert_eq!(found("cpu", &Mounts::default(), false).detail, "cgroup v2 is not mounted");
    }
}
