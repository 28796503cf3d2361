//! Which content a program has. Anybody may execute a file of a terabyte, most of which takes no room on any disk, so what
//! takes long is read beside the guard's work, and what takes too long is not.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read as _, Result};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;

use kernel::wire;

use super::baseline::Digest;
use crate::slow;

/// `dev_t` in the kernel has 20 bits for the minor number (include/linux/kdev_t.h).
const MINOR_BITS: u32 = 20;

/// Read at once, in some hundredths of a second.
pub const SHORT: u64 = 16 << 20;
/// What is longer has no baseline.
const LONGEST: u64 = 1 << 30;

/// A program that began.
pub struct Met {
    pub place: u32,
    pub key: wire::guard_program,
    pub file: File,
    pub path: PathBuf,
    pub metadata: Metadata,
}

/// The digest, unless the file cannot be read, or is too long.
type Known = (Met, Option<Digest>);

/// With a thread, once one is needed.
#[derive(Default)]
pub struct Reader(Option<(Sender<Met>, Receiver<Known>)>);

fn start() -> (Sender<Met>, Receiver<Known>) {
    let (to, asked) = channel();
    let (answer, from) = channel();
    let read = move || {
        for met in asked {
            let digest = digest(&met);
            if answer.send((met, digest)).is_err() {
                break;
            }
        }
    };
    // If there can be none, it cannot be sent anything.
    let _ = thread::Builder::new().spawn(read);
    (to, from)
}

impl Reader {
    /// At once if it is short; otherwise it is among those that are [`Reader::done`] later.
    pub fn read(&mut self, met: Met) -> Option<Known> {
        let length = met.metadata.len();
        if length > LONGEST {
            return Some((met, None));
        }
        if length > SHORT {
            let (to, _) = self.0.get_or_insert_with(start);
            return to.send(met).err().map(|SendError(met)| (met, None));
        }
        let digest = digest(&met);
        Some((met, digest))
    }

    pub fn done(&self) -> Vec<Known> {
        self.0.iter().flat_map(|(_, from)| from.try_iter()).collect()
    }
}

/// Once it has ended, its file may grow.
fn digest(met: &Met) -> Option<Digest> {
    Digest::of_all((&met.file).take(met.metadata.len())).ok()
}

/// What the gate knows a file by. The device's number is not the kernel's own where a file system has several
/// (btrfs); then a program is met when it begins.
pub fn key(metadata: &Metadata, session: u32) -> wire::guard_program {
    let device = metadata.dev();
    wire::guard_program {
        inode: metadata.ino(),
        ctime_ns: metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec(),
        size: metadata.size(),
        device: libc::major(device) << MINOR_BITS | libc::minor(device),
        session,
    }
}

fn is_same_file(metadata: &Metadata, key: &wire::guard_program) -> bool {
    let wire::guard_program { inode, ctime_ns, size, .. } = self::key(metadata, key.session);
    (inode, ctime_ns, size) == (key.inode, key.ctime_ns, key.size)
}

/// The interpreter of a script is the program that runs.
pub fn executed(path: &Path) -> PathBuf {
    /// BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h
    const LONGEST: u64 = 256;
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut first));
    let line = first.split(|byte| *byte == b'\n').next().unwrap_or_default();
    match line.strip_prefix(b"#!") {
        Some(rest) if read.is_ok() => {
            let interpreter = rest.trim_ascii().split(u8::is_ascii_whitespace).next().unwrap_or_default();
            PathBuf::from(OsStr::from_bytes(interpreter))
        }
        _ => path.to_owned(),
    }
}

/// The file that began: of the process, if it still runs, or by its path. Opened, as what either stands for may
/// change at any time.
pub fn open_program(record: &wire::guard_program_record) -> Option<File> {
    let same = |file: &File| file.metadata().is_ok_and(|metadata| is_same_file(&metadata, &record.program));
    let ways = [format!("/proc/{}/exe", record.pid), slow::path(&record.path)];
    ways.iter().find_map(|way| File::open(way).ok().filter(same))
}

/// Whatever is at the path by now, it is not waited for.
pub fn open_file(path: &Path) -> Result<(File, Metadata)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(ErrorKind::InvalidInput.into()) }
}

fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The kernel says so of a file whose name is another one's by now.
const DELETED: &[u8] = b" (deleted)";

pub fn opened_path(file: &File) -> Option<PathBuf> {
    let path = fs::read_link(descriptor_path(file)).ok()?;
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(DELETED).unwrap_or(bytes).to_vec();
    Some(OsString::from_vec(bytes).into())
}
