//! The paths of sockets.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The most bytes of a path at which a socket can be (unix(7), sun_path, without the final NUL).
const MAX_LEN: usize = 107;

/// Fails if no socket can have the path, because it is too long.
pub fn check_socket_path(path: &Path) -> io::Result<()> {
    match path.as_os_str().len() {
        length if length > MAX_LEN => Err(io::Error::other(format!(
            "the path of a socket has at most {MAX_LEN} bytes, and this one has {length}"
        ))),
        _ => Ok(()),
    }
}

/// Connects to the socket at a path.
pub fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
    check_socket_path(path.as_ref())?;
    UnixStream::connect(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_is_too_long_is_explained() {
        let path = "x".repeat(MAX_LEN);
        let error = connect(&path).expect_err("it does not exist");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = connect(path + "x").expect_err("it is too long").to_string();
        assert_eq!(error, "the path of a socket has at most 107 bytes, and this one has 108");
    }
}
