//! Texts and paths in records of the kernel side.

use kernel::wire;

/// Whether a text fills its buffer, so that a part may be missing.
pub fn is_truncated(bytes: &[std::ffi::c_char]) -> bool {
    bytes.iter().position(|c| *c == 0).is_none_or(|length| length == bytes.len() - 1)
}

/// The name of a file, as /proc/PID/fd shows it.
pub fn path(fd: &wire::fd_path) -> String {
    match u32::from(fd.mode) & libc::S_IFMT {
        libc::S_IFSOCK => return format!("socket:[{}]", fd.inode),
        libc::S_IFIFO if fd.parts <= 1 => return format!("pipe:[{}]", fd.inode),
        0 => return format!("anon_inode:{}", wire::text(&fd.part[0])),
        _ => {}
    }
    let parts = &fd.part[..usize::from(fd.parts)];
    let name = |part: &[std::ffi::c_char; wire::PATH_PART_LEN as usize]| {
        wire::text(part) + if is_truncated(part) { "…" } else { "" }
    };
    let names: Vec<_> = parts.iter().rev().map(name).collect();
    let begin = if fd.complete == 0 { "…/" } else { "/" };
    format!("{begin}{}", names.join("/").trim_start_matches('/'))
}
