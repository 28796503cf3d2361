//! Where control groups are, and in which version of the hierarchy each controller is.

use super::finding::Finding;
use crate::cgroups::{Mounts, v1_name};

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
    match (mounts.v1_place(name), &mounts.v2) {
        (Some(place), _) => Finding::no(format!("cgroup v1: {place}"))
            .instead(format!("the v1 hierarchy at {place}"))
            .how(format!("boot with cgroup_no_v1={}", v1_name(name))),
        (None, None) => Finding::no("cgroup v2 is not mounted").how("cgroup v2, as above"),
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
        assert_eq!(finding.instead.unwrap(), "the v1 hierarchy at /sys/fs/cgroup/blkio");
        assert_eq!(finding.how.unwrap(), "boot with cgroup_no_v1=blkio");
    }

    #[test]
    fn nothing_mounted_is_no_controller() {
        assert_eq!(found("cpu", &Mounts::default(), false).detail, "cgroup v2 is not mounted");
    }
}
