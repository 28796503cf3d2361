//! Queries the running kernel about itself, by system calls.

use std::ffi::CStr;
use std::mem;

/// The kernel's release and the machine's architecture: "6.12.1", "x86_64".
pub fn release() -> (String, String) {
    // SAFETY: a structure of character arrays, for which zeros are empty strings.
    let mut names: libc::utsname = unsafe { mem::zeroed() };
    // SAFETY: writes to `names`, which it terminates with zeros.
    unsafe { libc::uname(&mut names) };
    let text = |field: &[libc::c_char]| {
        // SAFETY: uname ends each field with a NUL.
        unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
    };
    (text(&names.release), text(&names.machine))
}

/// The names of the IDs in include/uapi/linux/lsm.h, from 100 on.
const SECURITY_MODULES: [&str; 14] = [
    "capability",
    "selinux",
    "smack",
    "tomoyo",
    "apparmor",
    "yama",
    "loadpin",
    "safesetid",
    "lockdown",
    "bpf",
    "landlock",
    "ima",
    "evm",
    "ipe",
];

/// The active security modules in the kernel's order; `None` before Linux 6.8. This needs no
/// privileges and no mounted securityfs.
pub fn security_modules() -> Option<Vec<String>> {
    const LSM_LIST_MODULES: libc::c_long = 461;
    let mut ids = [0u64; 64];
    let mut size = size_of_val(&ids) as u32;
    // SAFETY: writes at most `size` bytes to `ids`.
    let count = unsafe { libc::syscall(LSM_LIST_MODULES, ids.as_mut_ptr(), &mut size, 0) };
    let ids = ids.get(..usize::try_from(count).ok()?)?;
    Some(ids.iter().map(|id| security_module(*id)).collect())
}

fn security_module(id: u64) -> String {
    let index = id.checked_sub(100).and_then(|index| usize::try_from(index).ok());
    let known = index.and_then(|index| SECURITY_MODULES.get(index));
    known.map_or_else(|| format!("module {id}"), |name| (*name).into())
}
