//! Where control groups are, and in which version of the hierarchy each controller is.

use std::fs;
use std::path::Path;

use super::finding::Finding;

#[derive(Debug, Default, PartialEq, Eq)]
struct Mounts {
    v2: Option<String>,
    /// Controllers and where they are mounted.
    v1: Vec<(String, String)>,
}

impl Mounts {
    fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    fn parse(mountinfo: &str) -> Self {
        let mut mounts = Self::default();
        for line in mountinfo.lines() {
            let Some((place, file_system)) = line.split_once(" - ") else {
                continue;
            };
            let Some(place) = place.split(' ').nth(4) else {
                continue;
            };
            let mut words = file_system.split(' ');
            match words.next() {
                Some("cgroup2") if mounts.v2.is_none() => mounts.v2 = Some(place.into()),
                Some("cgroup") => {
                    let options = words.nth(1).unwrap_or_default().split(',');
                    mounts.v1.extend(options.map(|option| (option.into(), place.into())));
                }
                _ => {}
            }
        }
        mounts
    }

    fn v1_place(&self, controller: &str) -> Option<&str> {
        let name = if controller == "io" { "blkio" } else { controller };
        self.v1.iter().find(|(option, _)| option == name).map(|(_, place)| place.as_str())
    }
}

pub fn hierarchy() -> Finding {
    match Mounts::read().v2 {
        Some(place) => Finding::yes(place),
        None => Finding::no("not mounted"),
    }
}

pub fn controller(name: &str) -> Finding {
    let mounts = Mounts::read();
    let has = |place: &String| {
        let list = fs::read_to_string(Path::new(place).join("cgroup.controllers"));
        list.is_ok_and(|list| list.split_whitespace().any(|word| word == name))
    };
    found(name, &mounts, mounts.v2.as_ref().is_some_and(has))
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

fn v1_name(controller: &str) -> &str {
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
        assert_eq!(mounts.v1_place("cpu"), Some("/sys/fs/cgroup/cpu"));
        assert_eq!(mounts.v1_place("io"), Some("/sys/fs/cgroup/blkio"));
        assert_eq!(mounts.v1_place("pids"), None);
    }

    #[test]
    fn a_v1_controller_is_used_where_it_is() {
        let finding = found("io", &Mounts::parse(HYBRID), false);
        assert_eq!(finding.have, Some(false));
        assert_eq!(finding.instead.unwrap(), "the v1 hierarchy at /sys/fs/cgroup/blkio");
        assert_eq!(finding.how.unwrap(), "boot with cgroup_no_v1=blkio");
    }

    #[test]
    fn nothing_mounted_is_no_controller() {
        assert_eq!(Mounts::parse("nonsense\n\n - \n"), Mounts::default());
        assert_eq!(found("cpu", &Mounts::default(), false).detail, "cgroup v2 is not mounted");
    }
}
