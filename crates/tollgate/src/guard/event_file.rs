//! The file of `daemon --events`, to which each event is appended as a line.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kernel::process::effective_user;
use kernel::standard_stream::StandardStream;

use crate::background_writer::{BackgroundWriter, WriteTarget};
use crate::format::{number_of, shown_path};
use crate::output::{is_stdio, log_message};
use crate::regular_file::descriptor_path;

/// How long the end of the daemon waits for what is not written yet.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The file of events, or stdout. Nobody waits until an event is written.
pub struct EventFile {
    writer: BackgroundWriter<Arc<str>>,
    lost: Arc<AtomicU64>,
    /// The latest event had no room among those that wait to be written.
    is_full: bool,
}

impl EventFile {
    /// Opens the file, or stdout for "-".
    pub fn open(path: &Path) -> Result<Self> {
        let target = EventTarget::open(path)?;
        let lost = Arc::clone(&target.lost);
        let writer = BackgroundWriter::start("events", target)
            .context("cannot start a thread that writes events")?;
        Ok(Self { writer, lost, is_full: false })
    }

    /// Appends a line, which has no newline at its end.
    pub fn append(&mut self, line: &Arc<str>) {
        let has_room = self.writer.send(Arc::clone(line), line.len());
        if !has_room {
            self.lost.fetch_add(1, Ordering::Relaxed);
            if !self.is_full {
                log_message(
                    "events come faster than the file of events takes them, or nothing reads it; \
                    events are missing in it until there is room",
                );
            }
        }
        self.is_full = !has_room;
    }

    /// The number of events that were not written.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        self.writer.wait_until_written(Some(END_TIMEOUT), || false);
    }
}

/// Where the lines go.
enum Sink {
    Stdout,
    File(TargetFile),
}

struct TargetFile {
    /// As the user has given it.
    path: PathBuf,
    /// Where the file is. `None`: nowhere, because a descriptor of a removed file was given
    /// (`/proc/self/fd/3`).
    place: Option<Place>,
    file: File,
    /// `file` only refers to a pipe. It is opened for its first event, because that waits for a
    /// reader.
    unopened: Option<UnopenedPipe>,
}

struct UnopenedPipe {
    /// If a process reads the pipe already, this keeps it from reading an end.
    _writer: Option<File>,
}

/// The name of a file in its folder. The folder stays the same if another user who may change one
/// above it replaces it by a link.
struct Place {
    folder: File,
    name: OsString,
}

impl Place {
    /// Where this file is. `None`: it is not at the path.
    fn of(path: &Path, file: &Metadata) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let options = OpenOptions::new().read(true).custom_flags(libc::O_PATH).clone();
        let folder = options.open(path.parent()?).ok()?;
        let place = Self { folder, name: path.file_name()?.to_owned() };
        place.has(file).then_some(place)
    }

    fn path(&self) -> PathBuf {
        descriptor_path(&self.folder).join(&self.name)
    }

    /// Whether this file is there.
    fn has(&self, file: &Metadata) -> bool {
        fs::symlink_metadata(self.path())
            .is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    }

    /// Opens what is there after the file was renamed or removed, or creates it. `owner`: that of
    /// the file.
    ///
    /// # Errors
    /// Also if it is a link or a pipe; and, in a folder that other users may change, if it belongs
    /// to another user than this process and `owner`, or has a hard link.
    fn open_successor(&self, owner: u32) -> io::Result<File> {
        // O_NONBLOCK: the open of a pipe does not wait for its reader.
        let file = open_file(&self.path(), libc::O_NOFOLLOW | libc::O_NONBLOCK)?;
        let (found, folder) = (file.metadata()?, self.folder.metadata()?);
        let own = effective_user();
        let is_private = folder.uid() == own && folder.mode() & OTHERS_WRITE == 0;
        if !found.is_file() {
            return Err(io::Error::other("what is there now is not a file"));
        }
        if !is_private && (found.nlink() > 1 || ![own, owner].contains(&found.uid())) {
            return Err(io::Error::other(
                "what is there now may belong to another user, who can change the folder",
            ));
        }
        Ok(file)
    }
}

/// The permissions of a group and of others to write (inode(7)).
const OTHERS_WRITE: u32 = 0o022;

impl TargetFile {
    fn open(path: &Path) -> io::Result<Self> {
        let (file, unopened) = match refer_to_pipe(path)? {
            Some((pipe, unopened)) => (pipe, Some(unopened)),
            None => (open_file(path, 0)?, None),
        };
        let place = Place::of(path, &file.metadata()?);
        Ok(Self { path: path.to_owned(), place, file, unopened })
    }

    /// The open file. Returns whether this is another file than before, because that was renamed
    /// or removed, as by a rotation.
    fn current(&mut self) -> Result<(&mut File, bool)> {
        let (before, name) = (self.file.metadata()?, shown_path(&self.path));
        let is_there = self.place.as_ref().is_none_or(|place| place.has(&before));
        if self.unopened.is_some() {
            if !is_there {
                bail!("the pipe {name} was renamed or removed");
            }
            self.file = OpenOptions::new().write(true).open(descriptor_path(&self.file))?;
            self.unopened = None;
            return Ok((&mut self.file, false));
        }
        let Some(place) = self.place.as_ref().filter(|_| before.is_file() && !is_there) else {
            return Ok((&mut self.file, false));
        };
        self.file = place.open_successor(before.uid()).with_context(|| {
            format!("the file at {name} was renamed or removed, and cannot be created again")
        })?;
        log_message(&format!(
            "the file of events at {name} was renamed or removed; the next events are in a new one"
        ));
        Ok((&mut self.file, true))
    }
}

/// What the writer's thread writes to. An event that cannot be written is counted, and the next one
/// is tried again: there may be room by then.
struct EventTarget {
    sink: Sink,
    /// The file ends with a part of a line.
    ends_in_line: bool,
    /// Events that were not written.
    lost: Arc<AtomicU64>,
    /// Events that were lost since one was last written.
    lost_since_written: u64,
    has_failed: bool,
}

/// The flags are those of open(2), besides its usual ones.
fn open_file(path: &Path, flags: i32) -> io::Result<File> {
    // As the files of auditd: the events say what all users run.
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)
}

/// Refers to the pipe at the path. `None`: no pipe is there. Says if no process reads the pipe.
fn refer_to_pipe(path: &Path) -> io::Result<Option<(File, UnopenedPipe)>> {
    let Ok(pipe) = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path) else {
        return Ok(None);
    };
    if !pipe.metadata()?.file_type().is_fifo() {
        return Ok(None);
    }
    let itself = descriptor_path(&pipe);
    match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(itself) {
        Ok(writer) => Ok(Some((pipe, UnopenedPipe { _writer: Some(writer) }))),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            log_message(&format!(
                "no process reads the pipe {}; events wait until one does",
                shown_path(path)
            ));
            Ok(Some((pipe, UnopenedPipe { _writer: None })))
        }
        Err(error) => Err(error),
    }
}

impl EventTarget {
    fn open(path: &Path) -> Result<Self> {
        let sink = if is_stdio(path) {
            if StandardStream::STDOUT.was_closed() {
                bail!("cannot write events to stdout: it is closed");
            }
            Sink::Stdout
        } else {
            let cannot_write = || format!("cannot write events to {}", shown_path(path));
            Sink::File(TargetFile::open(path).with_context(cannot_write)?)
        };
        Ok(Self {
            sink,
            ends_in_line: false,
            lost: Arc::default(),
            lost_since_written: 0,
            has_failed: false,
        })
    }

    fn append(&mut self, text: &str) {
        match self.try_append(text) {
            Ok(()) => {
                self.has_failed = false;
                let lost = std::mem::take(&mut self.lost_since_written);
                if lost > 0 {
                    log_message(&format!(
                        "the file of events is written again; {} not in it",
                        match lost {
                            1 => "1 event is".into(),
                            lost => format!("{} are", number_of(lost as usize, "event")),
                        }
                    ));
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    log_message(&format!(
                        "cannot write to the file of events: {error:#}; events are missing in it \
                        until it can be written"
                    ));
                }
                self.lost.fetch_add(1, Ordering::Relaxed);
                self.lost_since_written += 1;
            }
        }
    }

    fn try_append(&mut self, text: &str) -> Result<()> {
        let Sink::File(target) = &mut self.sink else {
            let line = format!("{text}\n");
            return Ok({ StandardStream::STDOUT }.write_all(line.as_bytes())?);
        };
        let (file, is_new) = target.current()?;
        self.ends_in_line &= !is_new;
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

impl WriteTarget<Arc<str>> for EventTarget {
    fn write(&mut self, line: Arc<str>) {
        self.append(&line);
    }

    fn note_lost(&mut self, lost: u64) {
        self.lost_since_written += lost;
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
    use std::fs::Permissions;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn event_without_room_is_lost_and_the_next_is_tried() {
        let mut events = EventTarget::open(Path::new("/dev/full")).expect("it can be opened");
        events.append("{}");
        events.append("{}");
        assert_eq!(events.lost.load(Ordering::Relaxed), 2);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events");
        events.sink = Sink::File(TargetFile::open(&path).expect("a new file"));
        events.append("{}");
        assert_eq!((events.lost.load(Ordering::Relaxed), events.lost_since_written), (2, 0));
        assert_eq!(fs::read_to_string(path).expect("the file"), "{}\n");
    }

    #[test]
    fn part_of_a_line_is_removed_or_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events");
        let mut events = EventTarget::open(&path).expect("it can be opened");
        events.append("first");
        let Sink::File(TargetFile { file, .. }) = &mut events.sink else { panic!("a file") };
        file.write_all(b"{\"ti").expect("room");
        assert!(remove_end(file, 4));
        assert_eq!(fs::read_to_string(&path).expect("the file"), "first\n");
        // Another process has appended to the file.
        file.write_all(b"{\"ti").expect("room");
        fs::write(&path, "first\n{\"ti, other").expect("room");
        assert!(!remove_end(file, 4));
        events.ends_in_line = true;
        events.append("second");
        let text = fs::read_to_string(&path).expect("the file");
        assert_eq!(text, "first\n{\"ti, other\nsecond\n");
    }

    #[test]
    fn renamed_or_removed_file_is_opened_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("events"), folder.path().join("events.1"));
        let mut events = EventTarget::open(&path).expect("it can be opened");
        events.append("first");
        fs::rename(&path, &old).expect("it is ours");
        events.append("second");
        assert_eq!(fs::read_to_string(&old).expect("the old file"), "first\n");
        assert_eq!(fs::read_to_string(&path).expect("a new file"), "second\n");
        fs::remove_file(&path).expect("it is ours");
        events.append("third");
        assert_eq!(fs::read_to_string(&path).expect("a new file"), "third\n");
        assert_eq!(events.lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn link_in_place_of_the_file_is_not_followed() {
        let folder = tempfile::tempdir().expect("there is room");
        let [path, other] = ["events", "other"].map(|name| folder.path().join(name));
        fs::write(&other, "").expect("the folder is ours");
        let mut target = EventTarget::open(&path).expect("a new file");
        target.append("one");
        fs::remove_file(&path).expect("it is there");
        std::os::unix::fs::symlink(&other, &path).expect("the folder is ours");
        target.append("two");
        assert_eq!(target.lost.load(Ordering::Relaxed), 1);
        assert_eq!(fs::read_to_string(&other).expect("it is there"), "");
        // A link that was there from the beginning is the operator's.
        let mut target = EventTarget::open(&path).expect("the file that it leads to");
        target.append("three");
        assert_eq!(fs::read_to_string(&other).expect("it is there"), "three\n");
    }

    #[test]
    fn pipe_in_place_of_the_file_gets_no_events() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("events");
        let mut target = EventTarget::open(&path).expect("a new file");
        fs::remove_file(&path).expect("it is there");
        fs::rename(make_pipe(folder.path()), &path).expect("the folder is ours");
        // It has no reader, and then one.
        target.append("one");
        let reader = OpenOptions::new().read(true).write(true).open(&path).expect("it is ours");
        target.append("two");
        drop(reader);
        assert_eq!(target.lost.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn removed_file_behind_a_descriptor_has_the_events() {
        let mut removed = tempfile::tempfile().expect("there is room");
        let path = format!("/proc/self/fd/{}", removed.as_raw_fd());
        let mut target = EventTarget::open(Path::new(&path)).expect("the file is open");
        target.append("one");
        target.append("two");
        let mut text = String::new();
        removed.read_to_string(&mut text).expect("text");
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn what_is_in_place_of_a_pipe_gets_no_events() {
        let folder = tempfile::tempdir().expect("there is room");
        let (path, other) = (make_pipe(folder.path()), folder.path().join("other"));
        let reader = OpenOptions::new().read(true).write(true).open(&path);
        let mut target = EventTarget::open(&path).expect("it has a reader");
        fs::rename(&path, &other).expect("the folder is ours");
        fs::write(&path, "").expect("the folder is ours");
        target.append("one");
        assert_eq!(target.lost.load(Ordering::Relaxed), 1);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "");
        // The pipe is back.
        fs::rename(&other, &path).expect("the folder is ours");
        target.append("two");
        assert_eq!(target.lost.load(Ordering::Relaxed), 1);
        let mut read = [0; 4];
        reader.expect("a pipe").read_exact(&mut read).expect("the event");
        assert_eq!(&read, b"two\n");
    }

    #[test]
    fn reader_of_a_pipe_sees_no_end_before_the_first_event() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = make_pipe(folder.path());
        let nonblocking = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).clone();
        let mut reader = nonblocking.open(&path).expect("a pipe");
        let events = EventFile::open(&path).expect("it has a reader");
        // 0 bytes would be an end.
        let waits = reader.read(&mut [0; 4]).expect_err("no event has occurred");
        assert_eq!(waits.kind(), io::ErrorKind::WouldBlock);
        drop(events);
    }

    #[test]
    fn foreign_file_in_place_of_the_file_gets_no_events() {
        let folder = tempfile::tempdir().expect("there is room");
        let [path, other] = ["events", "other"].map(|name| folder.path().join(name));
        let mut target = EventTarget::open(&path).expect("a new file");
        let others_may = |mode| {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("it is ours");
        };
        let link_in_place = || {
            fs::write(&other, "").expect("the folder is ours");
            fs::remove_file(&path).expect("it is there");
            fs::hard_link(&other, &path).expect("the folder is ours");
        };
        others_may(0o777);
        link_in_place();
        target.append("one");
        assert_eq!(target.lost.load(Ordering::Relaxed), 1);
        // Without the other name, it is a file that a rotation has created.
        fs::remove_file(&other).expect("it is there");
        target.append("two");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "two\n");
        // Nobody else may change the folder.
        others_may(0o755);
        link_in_place();
        target.append("three");
        assert_eq!(fs::read_to_string(&other).expect("it is there"), "three\n");
    }

    #[test]
    fn link_in_place_of_the_folder_is_not_followed() {
        let above = tempfile::tempdir().expect("there is room");
        let [folder, moved, other] = ["logs", "moved", "other"].map(|name| above.path().join(name));
        fs::create_dir(&folder).expect("there is room");
        fs::create_dir(&other).expect("there is room");
        let mut target = EventTarget::open(&folder.join("events")).expect("a new file");
        fs::rename(&folder, &moved).expect("the folder is ours");
        std::os::unix::fs::symlink(&other, &folder).expect("the folder is ours");
        fs::remove_file(moved.join("events")).expect("it is there");
        target.append("one");
        assert!(!other.join("events").exists());
        assert_eq!(fs::read_to_string(moved.join("events")).expect("it is there"), "one\n");
    }

    fn make_pipe(folder: &Path) -> PathBuf {
        let path = folder.join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
        path
    }

    #[test]
    fn events_wait_for_the_first_reader_of_a_pipe() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = make_pipe(folder.path());
        let mut events = EventFile::open(&path).expect("nobody waits for a reader");
        events.append(&"{}".into());
        let mut reader = File::open(&path).expect("its writer comes");
        drop(events);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        assert_eq!(text, "{}\n");
    }

    #[test]
    fn pipe_that_is_not_read_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = make_pipe(folder.path());
        let reader = OpenOptions::new().read(true).write(true).open(&path);
        let mut reader = reader.expect("a pipe that is never without a writer");
        let mut events = EventFile::open(&path).expect("it has a reader");
        let line: Arc<str> = "x".repeat(1 << 16).into();
        // The loop would not end if an append waited for the reader.
        let mut appended = 0;
        while events.lost() == 0 {
            events.append(&line);
            appended += 1;
        }
        let mut rest = (appended - events.lost()) * (line.len() as u64 + 1);
        let mut bytes = vec![0; line.len()];
        while rest > 0 {
            rest -= reader.read(&mut bytes).expect("what was written") as u64;
        }
    }
}
