//! Where the members of a control group came from is in its name, so that they can be put back whatever became of
//! Tollgate, and so that children go where their parents would.

/// Below each hierarchy's root.
pub const TOP: &str = "tollgate";
/// A group beside that, of the second version, without members: the mount's option is to be taken back.
pub const FAVOURED: &str = "tollgate%favordynmods";
/// NAME_MAX: include/uapi/linux/limits.h
const LONGEST: usize = 255;

/// kernel/cgroup/cgroup-v1.c, cgroup1_base_files; the others have their subsystem's name before a dot.
const FILES: [&str; 3] = ["tasks", "notify_on_release", "release_agent"];
/// include/linux/cgroup_subsys.h of v6.18, and what every group has besides (kernel/cgroup/cgroup.c).
const SUBSYSTEMS: [&str; 19] = [
    "cgroup",
    "irq",
    "cpuset",
    "cpu",
    "cpuacct",
    "io",
    "blkio",
    "memory",
    "devices",
    "freezer",
    "net_cls",
    "perf_event",
    "net_prio",
    "hugetlb",
    "pids",
    "rdma",
    "misc",
    "dmem",
    "debug",
];

/// A service's folder. None of a group's own files has its name.
pub fn service_folder(name: &str) -> String {
    let subsystem = name.split_once('.').map(|(subsystem, _)| subsystem);
    let is_file = FILES.contains(&name) || subsystem.is_some_and(|name| SUBSYSTEMS.contains(&name));
    if is_file { format!("%{}", folder(name)) } else { folder(name) }
}

/// The folder, below its service's, for those who came from `origin`. Too long a name stands for a group above it.
pub fn folder(origin: &str) -> String {
    let mut origin = origin;
    loop {
        let name = origin.replace('%', "%25").replace('/', "%2F");
        if name.len() <= LONGEST {
            return name;
        }
        origin = origin.rfind('/').filter(|slash| *slash > 0).map_or("/", |slash| &origin[..slash]);
    }
}

/// Where a group's members came from; itself, if it is none of Tollgate's.
pub fn origin(group: &str) -> String {
    let is_ours = group
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(TOP))
        .is_some_and(|rest| rest.starts_with('/'));
    match group.rsplit_once('/') {
        Some((_, name)) if is_ours && name.starts_with("%2F") => name.replace("%2F", "/").replace("%25", "%"),
        _ => group.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_in_the_name() {
        for path in ["/", "/system.slice/php8.2-fpm.service", "/a%2Fb/100%", "/user.slice/x@y\\x2d:z"] {
            let name = folder(path);
            assert!(!name.contains('/'));
            assert_eq!(origin(&format!("/{TOP}/shop/{name}")), path);
        }
        assert_eq!(origin("/system.slice/%2Fodd"), "/system.slice/%2Fodd");
        assert_eq!(origin("/tollgates/a/%2F"), "/tollgates/a/%2F");
    }

    #[test]
    fn no_service_has_the_name_of_a_groups_file() {
        for (name, folder) in [("shop", "shop"), ("shop.de", "shop.de"), ("of:/a", "of:%2Fa")] {
            assert_eq!(service_folder(name), folder);
        }
        for name in ["tasks", "cpu.max", "cgroup.procs", "memory.limit_in_bytes"] {
            assert_eq!(service_folder(name), format!("%{name}"));
        }
    }

    #[test]
    fn too_long_names_stand_for_those_above() {
        let long = format!("/a/{}", "b".repeat(255));
        assert_eq!(origin(&format!("/{TOP}/x/{}", folder(&long))), "/a");
        assert_eq!(folder(&format!("/{}", "b".repeat(300))), folder("/"));
    }
}
