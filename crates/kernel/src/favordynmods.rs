//! The mount option `favordynmods` of cgroups. With it, migrations do not wait until all processors
//! pass a quiescent state (some ms when they are busy), but forks and exits take a little longer.
//! It exists since v6.0: 6a010a49b63a ("cgroup: Make !percpu threadgroup_rwsem operations
//! optional"). All hierarchies share one lock, so that the mount of v2 sets the option for the
//! hierarchies of v1 as well.

use std::ffi::CString;
use std::io;

use crate::error::{ErrorContext as _, Result};
use crate::mounts::{self, Mount};

const OPTION: &str = "favordynmods";

/// The mount point of cgroup v2, and its options.
fn mounted() -> Option<(String, Vec<String>)> {
    options_of(mounts::mounted())
}

fn options_of(mounts: Vec<Mount>) -> Option<(String, Vec<String>)> {
    let mut mount = mounts.into_iter().find(|mount| mount.kind == "cgroup2")?;
    mount.options.retain(|option| !matches!(option.as_str(), "rw" | "ro"));
    Some((mount.mount_point, mount.options))
}

/// Whether the option is set; false if cgroup v2 is not mounted.
pub fn has_favordynmods() -> bool {
    mounted().is_some_and(|(_, options)| options.iter().any(|option| option == OPTION))
}

/// Sets or clears the option, and leaves the others as they are. Does nothing if cgroup v2 is not
/// mounted.
pub fn set_favordynmods(wanted: bool) -> Result<()> {
    const WHAT: &str = "set the option favordynmods of control groups";
    let Some((mount_point, mut options)) = mounted() else { return Ok(()) };
    options.retain(|option| option != OPTION);
    if wanted {
        options.push(OPTION.into());
    }
    reconfigure(&mount_point, &options).doing(WHAT)
}

fn reconfigure(mount_point: &str, options: &[String]) -> io::Result<()> {
    let text = |text: &str| CString::new(text).map_err(io::Error::from);
    let checked = |result: libc::c_long| match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    };
    let mount_point = text(mount_point)?;
    // SAFETY: a NUL-terminated string.
    let context = checked(unsafe {
        libc::syscall(libc::SYS_fspick, libc::AT_FDCWD, mount_point.as_ptr(), FSPICK_CLOEXEC)
    })?;
    let configure = |command: libc::c_long, key: *const libc::c_char| {
        // SAFETY: NUL-terminated, or null where the command takes none.
        checked(unsafe {
            libc::syscall(libc::SYS_fsconfig, context, command, key, 0_usize, 0_usize)
        })
    };
    let done = options
        .iter()
        .try_for_each(|option| configure(FSCONFIG_SET_FLAG, text(option)?.as_ptr()).map(drop))
        .and_then(|()| configure(FSCONFIG_CMD_RECONFIGURE, std::ptr::null()).map(drop));
    // SAFETY: a descriptor of our own.
    unsafe { libc::close(context as i32) };
    done
}

/// include/uapi/linux/mount.h
const FSPICK_CLOEXEC: libc::c_long = 1;
const FSCONFIG_SET_FLAG: libc::c_long = 0;
const FSCONFIG_CMD_RECONFIGURE: libc::c_long = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_of_the_hierarchy() {
        let mounts = "31 27 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 \
                      rw,nsdelegate,favordynmods\n";
        let (mount_point, options) = options_of(mounts::parse(mounts)).expect("it is mounted");
        assert_eq!(
            (mount_point.as_str(), options),
            ("/sys/fs/cgroup/unified", vec!["nsdelegate".into(), OPTION.into()])
        );
        assert_eq!(options_of(Vec::new()), None);
    }
}
