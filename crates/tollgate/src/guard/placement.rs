//! The systemd unit or the container of a process, found by its cgroup.

/// Kinds of systemd units that have processes.
const UNITS: [&str; 2] = [".service", ".scope"];
/// Container engines name a container's cgroup by 64 hexadecimal digits, with words around them.
const CONTAINER_DIGITS: usize = 64;
/// Length of an ID in the engines' own lists.
const SHOWN_DIGITS: usize = 12;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnitAndContainer {
    pub unit: Option<String>,
    pub container: Option<String>,
}

impl UnitAndContainer {
    /// The placement of a process that still runs.
    pub fn of(pid: u32) -> Self {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default())
    }

    /// `cgroups` is /proc/PID/cgroup: "hierarchy:controllers:path" lines.
    fn parse(cgroups: &str) -> Self {
        let parts = || {
            cgroups
                .lines()
                .filter_map(|line| line.splitn(3, ':').nth(2))
                .flat_map(|path| path.split('/').rev())
        };
        let container =
            parts().find_map(container_of).map(|digits| digits[..SHOWN_DIGITS].to_owned());
        let unit = parts().find(|part| {
            UNITS.iter().any(|kind| part.ends_with(kind)) && container_of(part).is_none()
        });
        Self { unit: unit.map(str::to_owned), container }
    }
}

/// The full ID of the container whose cgroup has this name, if it is a container's.
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

    #[test]
    fn units_and_containers_are_parts_of_the_path() {
        let digits = "3f2a".repeat(16);
        let found = |cgroups: &str| {
            let UnitAndContainer { unit, container } = UnitAndContainer::parse(cgroups);
            (unit.unwrap_or_default(), container.unwrap_or_default())
        };
        let expect = |unit: &str, container: &str| (unit.to_owned(), container.to_owned());
        assert_eq!(found("0::/system.slice/nginx.service\n"), expect("nginx.service", ""));
        assert_eq!(
            found("4:memory:/\n1:name=systemd:/user.slice/user-0.slice/session-3.scope\n0::/\n"),
            expect("session-3.scope", "")
        );
        assert_eq!(
            found(&format!("0::/system.slice/docker-{digits}.scope\n")),
            expect("", "3f2a3f2a3f2a")
        );
        assert_eq!(
            found(&format!("0::/kubepods.slice/pod1.slice/cri-containerd-{digits}.scope\n")),
            expect("", "3f2a3f2a3f2a")
        );
        assert_eq!(found("0::/\n"), expect("", ""));
        assert_eq!(found(""), expect("", ""));
    }
}
