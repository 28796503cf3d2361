//! Content digests of program files.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::format::shown_path;

/// A SHA-256 digest, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of a file. It is an error if the file is not a regular one.
    pub fn of_file(path: &Path) -> Result<Self> {
        let context = || format!("cannot read {}", shown_path(path));
        // Opening a pipe would block.
        if !path.metadata().with_context(context)?.is_file() {
            bail!("{} is not a program: it is not a regular file", shown_path(path));
        }
        File::open(path).and_then(Self::of_all).with_context(context)
    }

    /// The digest of everything that can be read.
    pub fn of_all(mut content: impl io::Read) -> io::Result<Self> {
        let mut hash = Sha256::new();
        io::copy(&mut content, &mut hash)?;
        Ok(Self(hash.finalize().into()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let not_one =
            || format!("{text:?} is not a SHA-256 digest of 64 lower-case hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(not_one());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..][..2], 16).map_err(|_| not_one())?;
        }
        Ok(Self(bytes))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of FIPS 180-4 for one block.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digests_are_read_as_they_are_written() {
        assert_eq!(Digest::of(b"abc").to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(Digest::of(b"abc")));
        for wrong in
            [&ABC[1..], &ABC.to_uppercase(), &ABC.replace('b', "g"), &ABC.replacen("ba", "é", 1)]
        {
            assert!(Digest::from_str(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_digested_by_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("program");
        std::fs::write(&path, "abc").expect("written");
        assert_eq!(Digest::of_file(&path).expect("a file"), Digest::of(b"abc"));
        assert!(
            Digest::of_file(folder.path()).unwrap_err().to_string().contains("not a regular file")
        );
    }
}
