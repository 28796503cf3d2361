//! The control groups of a process: /proc/PID/cgroup (cgroups(7)), and the unit and the container
//! that they name. The queries differ in which hierarchy they prefer.

/// Kinds of systemd units that have processes.
const UNITS: [&str; 2] = [".service", ".scope"];
/// The length of a container's ID, in hexadecimal digits. Container engines put the ID into the
/// name of the container's control group, with words around it.
const CONTAINER_DIGITS: usize = 64;
/// The length of the IDs that the engines print in their lists.
const SHOWN_DIGITS: usize = 12;

/// The control groups of a process, one for each hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups<'a> {
    lines: Vec<CgroupLine<'a>>,
}

/// "hierarchy:controllers:path"; the hierarchy's number is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CgroupLine<'a> {
    /// Comma-separated; empty for cgroup v2.
    controllers: &'a str,
    path: &'a str,
}

impl<'a> CgroupLine<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':').skip(1);
        Some(Self { controllers: fields.next()?, path: fields.next()? })
    }

    fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }

    fn has_controller(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|one| one == controller)
    }
}

impl<'a> Cgroups<'a> {
    /// Parses the text of /proc/PID/cgroup.
    pub fn parse(text: &'a str) -> Self {
        Self { lines: text.lines().filter_map(CgroupLine::parse).collect() }
    }

    /// The service that the kernel side finds: the innermost one in cgroup v2 or, if there is none,
    /// in the v1 hierarchy of the pids controller.
    pub fn kernel_service(&self) -> Option<&'a str> {
        self.kernel_part(|part| part.len() > ".service".len() && part.ends_with(".service"))
    }

    /// The container that the kernel side finds, as the whole name of its control group. The
    /// hierarchies are those of [`Cgroups::kernel_service`].
    pub fn kernel_container(&self) -> Option<&'a str> {
        self.kernel_part(|part| part.len() >= CONTAINER_DIGITS)
    }

    fn kernel_part(&self, fits: impl Fn(&str) -> bool) -> Option<&'a str> {
        let v2 = self.lines.iter().find(|line| line.is_v2());
        let pids = self.lines.iter().find(|line| line.has_controller("pids"));
        let mut lines = v2.into_iter().chain(pids);
        lines.find_map(|line| line.path.rsplit('/').find(|part| fits(part)))
    }

    /// The unit and the container, each from the first hierarchy that has one. The container is
    /// named by the start of its ID. A container's control group does not count as a unit.
    pub fn unit_and_container(&self) -> (Option<&'a str>, Option<&'a str>) {
        let parts = || self.lines.iter().flat_map(|line| line.path.split('/').rev());
        let container = parts().find_map(container_of).map(|digits| &digits[..SHOWN_DIGITS]);
        (parts().find(|part| is_unit(part) && container_of(part).is_none()), container)
    }

    /// The innermost unit, from the last hierarchy that has one.
    pub fn innermost_unit(&self) -> Option<&'a str> {
        let mut paths = self.lines.iter().rev().map(|line| line.path);
        paths.find_map(|path| path.rsplit('/').find(|part| is_unit(part)))
    }

    /// Whether a control group of any hierarchy is this folder or is below it. The folder is named
    /// by its path below /sys/fs/cgroup, with or without the hierarchy's own folder.
    pub fn is_within(&self, folder: &str) -> bool {
        self.lines.iter().any(|line| {
            let path = line.path.trim_matches('/');
            let hierarchy = match line.controllers.strip_prefix("name=").unwrap_or(line.controllers)
            {
                "" => "unified",
                name => name,
            };
            is_below(path, folder) || is_below(&format!("{hierarchy}/{path}"), folder)
        })
    }

    /// Whether the process is in the unit's control group or in one below it. Only the part of a
    /// path after its last colon is considered.
    pub fn has_unit(&self, unit: &str) -> bool {
        let mut paths = self.lines.iter().filter_map(|line| line.path.rsplit(':').next());
        paths.any(|path| path.split('/').any(|part| part == unit))
    }

    /// The path in cgroup v2.
    pub fn path_in_v2(&self) -> Option<&'a str> {
        self.lines.iter().find(|line| line.is_v2()).map(|line| line.path)
    }

    /// The path in the hierarchy of v1 that has this controller.
    pub fn path_of(&self, controller: &str) -> Option<&'a str> {
        self.lines.iter().find(|line| line.has_controller(controller)).map(|line| line.path)
    }
}

fn is_unit(part: &str) -> bool {
    UNITS.iter().any(|kind| part.ends_with(kind))
}

fn is_below(path: &str, folder: &str) -> bool {
    !folder.is_empty()
        && (path == folder || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
}

/// The full ID of the container whose control group has this name. `None` if the control group is
/// not a container's.
pub fn container_of(part: &str) -> Option<&str> {
    let words = part.strip_suffix(".scope").unwrap_or(part).split(['-', ':']);
    let is_digits = |word: &str| {
        word.len() == CONTAINER_DIGITS && word.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    words.into_iter().find(|word| is_digits(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with v1 and v2, whose hierarchies name different units.
    const BOTH: &str = "9:pids:/system.slice/old.service\n4:memory,cpu:/jobs/a\n\
        1:name=systemd:/system.slice/no.service/worker\n0::/user.slice/session-3.scope\n";

    fn digits() -> String {
        "3f2a".repeat(16)
    }

    #[test]
    fn the_kernel_side_prefers_v2() {
        let v2 = "0::/user.slice/user@1.service/app.slice/db.service/worker\n";
        assert_eq!(Cgroups::parse(v2).kernel_service(), Some("db.service"));
        assert_eq!(Cgroups::parse(v2).kernel_container(), None);
        assert_eq!(Cgroups::parse(BOTH).kernel_service(), Some("old.service"));
        let scope = format!("docker-{}.scope", digits());
        let text = format!("0::/system.slice/{scope}/init\n");
        assert_eq!(Cgroups::parse(&text).kernel_container(), Some(scope.as_str()));
        let text = format!("3:pids:/{scope}\n0::/{}\n", digits());
        assert_eq!(Cgroups::parse(&text).kernel_container(), Some(digits().as_str()));
        assert_eq!(Cgroups::parse("0::/a/.service\n").kernel_service(), None);
    }

    #[test]
    fn units_and_containers_are_parts_of_the_path() {
        let of = |text: &'static str| Cgroups::parse(text).unit_and_container();
        assert_eq!(of("0::/system.slice/nginx.service\n"), (Some("nginx.service"), None));
        let v1 = "4:memory:/\n1:name=systemd:/user.slice/user-0.slice/session-3.scope\n0::/\n";
        assert_eq!(of(v1), (Some("session-3.scope"), None));
        assert_eq!(of(BOTH), (Some("old.service"), None));
        assert_eq!(of("0::/\n"), (None, None));
        assert_eq!(of(""), (None, None));
        for folder in ["docker-", "kubepods.slice/pod1.slice/cri-containerd-"] {
            let text = format!("0::/system.slice/{folder}{}.scope\n", digits());
            let found = Cgroups::parse(&text).unit_and_container();
            assert_eq!(found, (None, Some("3f2a3f2a3f2a")));
        }
    }

    #[test]
    fn the_innermost_unit_is_of_the_last_hierarchy() {
        let of = |text: &'static str| Cgroups::parse(text).innermost_unit();
        assert_eq!(of("0::/system.slice/nginx.service/worker\n"), Some("nginx.service"));
        let v1 = "4:pids:/user.slice/user-0.slice/session-1.scope\n0::/\n";
        assert_eq!(of(v1), Some("session-1.scope"));
        assert_eq!(of(BOTH), Some("session-3.scope"));
        assert_eq!(of("0::/a\n"), None);
    }

    #[test]
    fn a_control_group_has_what_is_below_it() {
        let both = Cgroups::parse(BOTH);
        for folder in ["jobs/a", "jobs", "memory,cpu/jobs", "systemd/system.slice/no.service"] {
            assert!(both.is_within(folder), "{folder}");
        }
        for folder in ["unified/user.slice", "user.slice/session-3.scope", "pids/system.slice"] {
            assert!(both.is_within(folder), "{folder}");
        }
        for folder in ["", "job", "memory/jobs", "cpu/jobs", "unified/jobs", "user.slice/session"] {
            assert!(!both.is_within(folder), "{folder}");
        }
    }

    #[test]
    fn a_unit_is_found_in_any_hierarchy() {
        let both = Cgroups::parse(BOTH);
        for unit in ["old.service", "no.service", "session-3.scope"] {
            assert!(both.has_unit(unit), "{unit}");
        }
        assert!(!both.has_unit("ol.service") && !both.has_unit("service"));
        let colon = Cgroups::parse("0::/system.slice/a:b.service\n");
        assert!(colon.has_unit("b.service") && !colon.has_unit("a:b.service"));
    }

    #[test]
    fn the_path_of_a_hierarchy() {
        let both = Cgroups::parse(BOTH);
        assert_eq!(both.path_in_v2(), Some("/user.slice/session-3.scope"));
        assert_eq!(both.path_of("cpu"), Some("/jobs/a"));
        assert_eq!(both.path_of("memory"), Some("/jobs/a"));
        assert_eq!(both.path_of("freezer"), None);
        assert_eq!(Cgroups::parse("0::/a:b/c\n").path_in_v2(), Some("/a:b/c"));
    }

    #[test]
    fn incomplete_lines_are_ignored() {
        assert_eq!(Cgroups::parse("\n0\n0:\n"), Cgroups::parse(""));
    }
}
