//! Where cgroups are mounted, and which hierarchy has each controller.

use std::fs;
use std::path::Path;

use kernel::mounts::{self, Mount};

/// The mount points of cgroup hierarchies.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    /// The v2 hierarchy.
    pub v2: Option<String>,
    /// Controllers and their mount points.
    v1: Vec<(String, String)>,
}

impl Mounts {
    /// The mounts of this process's mount namespace.
    pub fn read() -> Self {
        Self::of(mounts::mounted())
    }

    #[cfg(test)]
    pub fn parse(mountinfo: &str) -> Self {
        Self::of(mounts::parse(mountinfo))
    }

    fn of(all: Vec<Mount>) -> Self {
        let mut mounts = Self::default();
        for Mount { mount_point, kind, options, .. } in all {
            match kind.as_str() {
                "cgroup2" if mounts.v2.is_none() => mounts.v2 = Some(mount_point),
                "cgroup" => mounts
                    .v1
                    .extend(options.into_iter().map(|option| (option, mount_point.clone()))),
                _ => {}
            }
        }
        mounts
    }

    /// The mount point of a controller's v1 hierarchy. The controller is given by its v2 name.
    pub fn v1_mount_point(&self, controller: &str) -> Option<&str> {
        let name = v1_name(controller);
        self.v1
            .iter()
            .find(|(option, _)| option == name)
            .map(|(_, mount_point)| mount_point.as_str())
    }

    /// Whether the v2 hierarchy has the controller.
    pub fn is_in_v2(&self, controller: &str) -> bool {
        let has = |mount_point: &String| {
            let list = fs::read_to_string(Path::new(mount_point).join("cgroup.controllers"));
            list.is_ok_and(|list| list.split_whitespace().any(|word| word == controller))
        };
        self.v2.as_ref().is_some_and(has)
    }
}

/// The v1 name of the controller with this v2 name.
pub fn v1_name(controller: &str) -> &str {
    if controller == "io" { "blkio" } else { controller }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
99 31 0:38 / /mnt rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn both_versions_are_found() {
        let mounts = Mounts::parse(HYBRID);
        assert_eq!(mounts.v2.as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(mounts.v1_mount_point("cpu"), Some("/sys/fs/cgroup/cpu"));
        assert_eq!(mounts.v1_mount_point("io"), Some("/sys/fs/cgroup/blkio"));
        assert_eq!(mounts.v1_mount_point("pids"), None);
    }

    #[test]
    fn nothing_mounted_is_nothing() {
        assert_eq!(Mounts::of(Vec::new()), Mounts::default());
    }
}
