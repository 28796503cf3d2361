//! What is mounted where, from /proc/PID/mountinfo (Documentation/filesystems/proc.rst).

use crate::process::read_text;

/// A mounted file system. Texts have the escapes of the file: a space is `\040`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The part of the file system that is mounted; "/" is all of it.
    pub root: String,
    /// The path at which it is mounted, in this process's mount namespace.
    pub mount_point: String,
    /// The file system's type.
    pub kind: String,
    /// The options of the file system, not those of this mount.
    pub options: Vec<String>,
}

/// The mounts of this process's mount namespace, in the order in which they were mounted. Empty
/// if /proc is not mounted.
pub fn mounted() -> Vec<Mount> {
    parse(&read_text("/proc/self/mountinfo").unwrap_or_default())
}

/// Parses the text of a mountinfo file. Lines of another form are skipped.
pub fn parse(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let (mut mount, mut file_system) = (mount.split(' ').skip(3), file_system.split(' '));
    Some(Mount {
        root: mount.next()?.into(),
        mount_point: mount.next()?.into(),
        kind: file_system.next()?.into(),
        options: file_system.nth(1)?.split(',').map(Into::into).collect(),
    })
}

/// Where the root of cgroup v2 is mounted.
pub fn cgroup2_root() -> Option<String> {
    cgroup2_root_of(mounted())
}

fn cgroup2_root_of(mounts: Vec<Mount>) -> Option<String> {
    let root = mounts.into_iter().find(|mount| mount.kind == "cgroup2" && mount.root == "/");
    root.map(|mount| mount.mount_point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_mount() {
        let mounts = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 \
                      rw,nsdelegate\n\
                      42 41 0:38 /system.slice /mnt rw - cgroup2 cgroup2 ro\n";
        let words = |words: [&str; 3], options: &[&str]| {
            let [root, mount_point, kind] = words.map(Into::into);
            Mount {
                root,
                mount_point,
                kind,
                options: options.iter().copied().map(Into::into).collect(),
            }
        };
        assert_eq!(
            parse(mounts),
            [
                words(["/", "/sys/fs/cgroup/unified", "cgroup2"], &["rw", "nsdelegate"]),
                words(["/system.slice", "/mnt", "cgroup2"], &["ro"])
            ]
        );
        assert_eq!(parse("nonsense\n\n - \n41 31 0:38 / /mnt rw - cgroup2\n"), []);
    }

    #[test]
    fn root_of_cgroup2_is_no_bind_mount() {
        let mounts = "\
31 27 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
38 31 0:35 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu
41 31 0:38 /part /mnt/part rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        assert_eq!(cgroup2_root_of(parse(mounts)).as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(cgroup2_root_of(Vec::new()), None);
    }
}
