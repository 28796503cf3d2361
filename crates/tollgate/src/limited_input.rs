//! Inputs that a user has given, up to a size: an endless one such as /dev/zero must not use up the
//! memory.

use std::io::{self, Read};

/// The largest of them are exports of all baselines of a large store, which are also sent to the
/// daemon as one request, and recordings of hours.
pub const MAX_INPUT_BYTES: u64 = 1 << 30;

/// An input of which at most [`MAX_INPUT_BYTES`] can be read. More is an error.
pub struct LimitedInput<R> {
    input: R,
    left: u64,
}

impl<R> LimitedInput<R> {
    pub fn new(input: R) -> Self {
        Self { input, left: MAX_INPUT_BYTES }
    }
}

impl<R: Read> Read for LimitedInput<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(bytes)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it has more than {} MiB, the limit", MAX_INPUT_BYTES >> 20),
            )
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_end_at_the_limit() {
        let read = |left| io::read_to_string(LimitedInput { input: &b"four"[..], left });
        assert_eq!(read(4).expect("it is small enough"), "four");
        let error = read(3).expect_err("it is too large");
        assert_eq!(error.to_string(), "it has more than 1024 MiB, the limit");
    }
}
