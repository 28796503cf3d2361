//! The file of `daemon --events`, to which each event is appended as a line.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::format::{number_of, shown_path};
use crate::output::{is_stdio, line, log_message};

/// Where the lines go.
enum Sink {
    Stdout,
    File(File),
}

/// The file of events, or stdout. An event that cannot be written is counted, and the next one is
/// tried again: there may be room by then.
pub struct EventFile {
    sink: Sink,
    /// The file ends with a part of a line.
    ends_in_line: bool,
    /// Events that were not written.
    lost: u64,
    /// Events that were lost since one was last written.
    lost_since_written: usize,
}

impl EventFile {
    /// Opens the file, or stdout for "-".
    pub fn open(path: &Path) -> Result<Self> {
        let sink = if is_stdio(path) {
            Sink::Stdout
        } else {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let cannot_write = || format!("cannot write events to {}", shown_path(path));
            Sink::File(file.with_context(cannot_write)?)
        };
        Ok(Self { sink, ends_in_line: false, lost: 0, lost_since_written: 0 })
    }

    /// Appends a line, which has no newline at its end.
    pub fn append(&mut self, text: &str) {
        match self.try_append(text) {
            Ok(()) => {
                let lost = std::mem::take(&mut self.lost_since_written);
                if lost > 0 {
                    log_message(&format!(
                        "the file of events is written again; {} not in it",
                        match lost {
                            1 => "1 event is".into(),
                            lost => format!("{} are", number_of(lost, "event")),
                        }
                    ));
                }
            }
            Err(error) => {
                if self.lost_since_written == 0 {
                    log_message(&format!(
                        "cannot write to the file of events: {error:#}; events are missing in it \
                        until it can be written"
                    ));
                }
                self.lost += 1;
                self.lost_since_written += 1;
            }
        }
    }

    /// The number of events that were not written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn try_append(&mut self, text: &str) -> Result<()> {
        let file = match &mut self.sink {
            Sink::Stdout if line(text)? => return Ok(()),
            Sink::Stdout => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
            Sink::File(file) => file,
        };
        let separator = if self.ends_in_line { "\n" } else { "" };
        let whole = format!("{separator}{text}\n");
        let mut rest = whole.as_bytes();
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let written = whole.len() - rest.len();
                    if written > 0 {
                        self.ends_in_line = !remove_end(file, written as u64);
                    }
                    return Err(error.into());
                }
            }
        }
        self.ends_in_line = false;
        Ok(())
    }
}

/// Removes what was written last, if nobody has appended to the file or truncated it since. Returns
/// whether it was removed.
fn remove_end(file: &mut File, written: u64) -> bool {
    let removed = file.stream_position().and_then(|end| {
        let metadata = file.metadata()?;
        match end.checked_sub(written) {
            Some(before) if metadata.is_file() && metadata.len() == end => file.set_len(before),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    });
    removed.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_without_room_is_lost_and_the_next_is_tried() {
        let mut events = EventFile::open(Path::new("/dev/full")).expect("it can be opened");
        events.append("{}");
        events.append("{}");
        assert_eq!(events.lost(), 2);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events");
        events.sink = Sink::File(File::create(&path).expect("a file"));
        events.append("{}");
        assert_eq!((events.lost(), events.lost_since_written), (2, 0));
        assert_eq!(std::fs::read_to_string(path).expect("the file"), "{}\n");
    }

    #[test]
    fn part_of_a_line_is_removed_or_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events");
        let mut events = EventFile::open(&path).expect("it can be opened");
        events.append("first");
        let Sink::File(file) = &mut events.sink else { panic!("a file") };
        file.write_all(b"{\"ti").expect("room");
        assert!(remove_end(file, 4));
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "first\n");
        // Another process has appended to the file.
        file.write_all(b"{\"ti").expect("room");
        std::fs::write(&path, "first\n{\"ti, other").expect("room");
        assert!(!remove_end(file, 4));
        events.ends_in_line = true;
        events.append("second");
        let text = std::fs::read_to_string(&path).expect("the file");
        assert_eq!(text, "first\n{\"ti, other\nsecond\n");
    }
}
