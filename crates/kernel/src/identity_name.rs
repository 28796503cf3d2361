//! Encodes the names of identities and the list of interpreters for the kernel side.

use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use identity::hash;
use identity::script::INTERPRETERS;

use crate::wire;

/// The letters of a text as a bit set, in which bit 0 stands for A.
fn letters(text: &str) -> u64 {
    text.bytes().fold(0, |letters, letter| letters | 1 << (letter - b'A'))
}

/// Copies as many bytes as fit before a NUL.
fn copy_c_chars<const N: usize>(to: &mut [c_char; N], from: &[u8]) {
    for (to, byte) in to[..N - 1].iter_mut().zip(from) {
        *to = *byte as c_char;
    }
}

/// The known interpreters, for the gate's configuration.
pub fn interpreters() -> [wire::interpreter; wire::INTERPRETERS as usize] {
    let mut all = [wire::interpreter::default(); wire::INTERPRETERS as usize];
    for (entry, known) in all.iter_mut().zip(INTERPRETERS) {
        copy_c_chars(&mut entry.name, known.name.as_bytes());
        entry.code = letters(known.code_options);
        entry.value = letters(known.value_options);
    }
    all
}

/// Encodes the name of an identity. `folder` is the working directory to which a script's relative
/// path refers.
pub fn encode_identity(text: &[u8], folder: Option<&Path>) -> Box<wire::identity_name> {
    let mut name = Box::<wire::identity_name>::default();
    copy_c_chars(&mut name.text, text);
    let Some(folder) = folder else { return name };
    let parts: Vec<_> =
        folder.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    for (to, part) in name.folder.part.iter_mut().zip(parts.iter().rev()) {
        copy_c_chars(to, part.as_os_str().as_bytes());
    }
    name.folder.parts = parts.len().min(name.folder.part.len()) as u16;
    // If the parts fill the array, the kernel side does not get as far as the root.
    name.folder.complete = (parts.len() < name.folder.part.len()).into();
    name
}

/// The hash by which the kernel side knows an identity. It is above [`wire::IDENTITY_ANY`].
pub fn identity_hash(name: &wire::identity_name) -> u64 {
    let bytes = name.text.iter().chain(name.folder.part.iter().flatten()).map(|byte| *byte as u8);
    let bytes: Vec<_> = bytes.collect();
    hash::buffer(&bytes).max(u64::from(wire::IDENTITY_ANY) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As append_path_part() in bpf/lib/path.bpf.h.
    #[test]
    fn path_of_twelve_parts_is_incomplete() {
        let complete = |depth: usize| {
            encode_identity(b"app.py", Some(Path::new(&"/in".repeat(depth)))).folder.complete
        };
        assert_eq!([11, 12, 13].map(complete), [1, 0, 0]);
    }

    #[test]
    fn scope_hash_depends_on_name_and_folder() {
        let number = |text: &str, folder: Option<&str>| {
            super::identity_hash(&encode_identity(text.as_bytes(), folder.map(Path::new)))
        };
        let all = [
            number("app.py", None),
            number("app.py", Some("/srv/a")),
            number("app.py", Some("/srv/b")),
            number("app.p", Some("/srv/a")),
            number(&"x".repeat(255), None),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        // The kernel side stores this many bytes.
        assert_eq!(number(&"x".repeat(300), None), all[4]);
        assert_eq!(number("app.py", Some("/")), all[0]);
    }
}
