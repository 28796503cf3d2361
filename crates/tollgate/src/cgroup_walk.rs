//! Finds the selected control groups in the mounted hierarchies.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Result;
use kernel::mounts::{self, Mount};
use kernel::process::read_text;
use kernel::{AwaitedCgroup, CgroupId};

use crate::process_selection::{Select, unit_name, without_mount_point};

/// A hierarchy: a line of /proc/PID/cgroup without the path.
struct CgroupHierarchy {
    number: u32,
    /// Comma-separated; empty for cgroup v2.
    controllers: String,
}

impl CgroupHierarchy {
    fn parse(line: &str) -> Option<Self> {
        let (number, rest) = line.split_once(':')?;
        let (controllers, _) = rest.split_once(':')?;
        Some(Self { number: number.parse().ok()?, controllers: controllers.into() })
    }

    fn all() -> Vec<Self> {
        let text = read_text("/proc/self/cgroup").unwrap_or_default();
        text.lines().filter_map(Self::parse).collect()
    }

    fn is_mounted_by(&self, mount: &Mount) -> bool {
        let is_option = |name: &str| mount.options.iter().any(|option| option == name);
        match mount.kind.as_str() {
            "cgroup2" => self.controllers.is_empty(),
            "cgroup" => self.controllers.split(',').all(is_option),
            _ => false,
        }
    }

    /// The name of its folder below /sys/fs/cgroup.
    fn folder(&self) -> &str {
        match self.controllers.strip_prefix("name=").unwrap_or(&self.controllers) {
            "" => "unified",
            name => name,
        }
    }
}

/// Calls `visit` with each selected control group that exists, before its inner ones are read.
pub fn visit_selected(
    select: &Select,
    mut visit: impl FnMut(CgroupId) -> Result<()>,
) -> Result<()> {
    let mounts = mounts::mounted();
    for hierarchy in CgroupHierarchy::all() {
        let Some(mount) = mounts.iter().find(|mount| hierarchy.is_mounted_by(mount)) else {
            continue;
        };
        let root = mount.root.trim_end_matches('/');
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let path = format!("{}{folder}", mount.mount_point);
            let line = format!("{}:{}:{root}{folder}", hierarchy.number, hierarchy.controllers);
            if select.matches_cgroups(&line)
                && let Ok(metadata) = fs::metadata(&path)
            {
                visit(CgroupId { hierarchy: hierarchy.number, inode: metadata.ino() })?;
            }
            folders.extend(inner_folders(Path::new(&path)).map(|name| format!("{folder}/{name}")));
        }
    }
    Ok(())
}

fn inner_folders(path: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok())
}

/// The selected control groups, whether they exist or not. In a cgroup namespace, the paths from
/// the real root are not known: there, a search finds those that are created later.
pub fn awaited(select: &Select) -> Vec<AwaitedCgroup> {
    let hierarchies = CgroupHierarchy::all();
    let mut awaited: Vec<_> =
        select.unit.iter().map(|unit| AwaitedCgroup::Name(unit_name(unit))).collect();
    for path in select.cgroup.iter().map(|path| without_mount_point(path)) {
        awaited.push(AwaitedCgroup::Path(None, format!("/{path}")));
        for hierarchy in &hierarchies {
            let rest = path.strip_prefix(hierarchy.folder());
            let rest = rest.filter(|rest| rest.starts_with('/'));
            let of = |rest: &str| AwaitedCgroup::Path(Some(hierarchy.number), rest.into());
            awaited.extend(rest.map(of));
        }
    }
    awaited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_among_mounts() {
        let [v1, v2, named] = ["4:cpu,cpuacct:/a:b", "0::/", "1:name=systemd:/init"]
            .map(|line| CgroupHierarchy::parse(line).expect("a line of /proc/PID/cgroup"));
        assert_eq!((v1.number, v1.controllers.as_str()), (4, "cpu,cpuacct"));
        assert_eq!(
            [v1.folder(), v2.folder(), named.folder()],
            ["cpu,cpuacct", "unified", "systemd"]
        );
        let mounts = mounts::parse(
            "41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
            33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n",
        );
        let of = |hierarchy: &CgroupHierarchy| {
            mounts.iter().position(|mount| hierarchy.is_mounted_by(mount))
        };
        assert_eq!([of(&v1), of(&v2), of(&named)], [Some(1), Some(0), Some(2)]);
    }
}
