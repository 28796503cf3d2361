//! Saves the origin of a cgroup's members in the cgroup's name. The members can thus be migrated
//! back whatever happens to Tollgate, and children return to the origin of their parents.

/// The folder of all service cgroups, below each hierarchy's root.
pub const TOP: &str = "tollgate";
/// A v2 cgroup beside `TOP`, without members. It exists as long as Tollgate has to restore the
/// mount option.
pub const FAVORDYNMODS_MARKER: &str = "tollgate%favordynmods";
/// A cgroup beside `TOP`, without members. It exists as long as the service cgroups are to stay
/// when their process ends.
pub const KEEP_MARKER: &str = "tollgate%keep";
/// NAME_MAX: include/uapi/linux/limits.h
const MAX_NAME_LEN: usize = 255;

/// The files of v1 without a prefix (kernel/cgroup/cgroup-v1.c, cgroup1_base_files). The names of
/// all other files begin with their subsystem and a dot.
const FILES: [&str; 3] = ["tasks", "notify_on_release", "release_agent"];
/// The subsystems (include/linux/cgroup_subsys.h of v6.18), and the prefixes of the files that
/// every cgroup has (kernel/cgroup/cgroup.c).
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

/// The folder of a service, with a name that no file of a cgroup has.
pub fn service_folder(name: &str) -> String {
    let subsystem = name.split_once('.').map(|(subsystem, _)| subsystem);
    let is_file = FILES.contains(&name) || subsystem.is_some_and(|name| SUBSYSTEMS.contains(&name));
    if is_file { format!("%{}", folder(name)) } else { folder(name) }
}

/// The folder for threads from `origin`, within the service's folder. If its name would be too
/// long, it is named after an ancestor of `origin`.
pub fn folder(origin: &str) -> String {
    let mut origin = origin;
    loop {
        let name = origin.replace('%', "%25").replace('/', "%2F");
        if name.len() <= MAX_NAME_LEN {
            return name;
        }
        origin = origin.rfind('/').filter(|slash| *slash > 0).map_or("/", |slash| &origin[..slash]);
    }
}

/// The origin of a cgroup's members: the cgroup itself, unless it is one of Tollgate's.
pub fn origin(cgroup: &str) -> String {
    let is_ours = cgroup
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(TOP))
        .is_some_and(|rest| rest.starts_with('/'));
    match cgroup.rsplit_once('/') {
        Some((_, name)) if is_ours && name.starts_with("%2F") => {
            name.replace("%2F", "/").replace("%25", "%")
        }
        _ => cgroup.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_round_trips() {
        for path in
            ["/", "/system.slice/php8.2-fpm.service", "/a%2Fb/100%", "/user.slice/x@y\\x2d:z"]
        {
            let name = folder(path);
            assert!(!name.contains('/'));
            assert_eq!(origin(&format!("/{TOP}/shop/{name}")), path);
        }
        assert_eq!(origin("/system.slice/%2Fodd"), "/system.slice/%2Fodd");
        assert_eq!(origin("/tollgates/a/%2F"), "/tollgates/a/%2F");
    }

    #[test]
    fn service_names_avoid_cgroup_files() {
        for (name, folder) in [("shop", "shop"), ("shop.de", "shop.de"), ("of:/a", "of:%2Fa")] {
            assert_eq!(service_folder(name), folder);
        }
        for name in ["tasks", "cpu.max", "cgroup.procs", "memory.limit_in_bytes"] {
            assert_eq!(service_folder(name), format!("%{name}"));
        }
    }

    #[test]
    fn too_long_origins_use_an_ancestor() {
        let long = format!("/a/{}", "b".repeat(255));
        assert_eq!(origin(&format!("/{TOP}/x/{}", folder(&long))), "/a");
        assert_eq!(folder(&format!("/{}", "b".repeat(300))), folder("/"));
    }
}
