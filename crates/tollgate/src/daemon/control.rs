//! The control socket: a request a connection, as a line of JSON; the answer is a line, and for events more of them.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SocketOption;
use crate::output::say;
use crate::{guard, plugin, service};

/// Only root asks, at most for a document of all baselines of a large store.
const LONGEST_REQUEST: u64 = 1 << 30;
/// Who connects and says nothing is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time: each is an open file, of which the daemon needs some for itself.
const MOST: usize = 400;
/// Threads that wait for connections when all is quiet: to start one takes longer than most answers, and who comes first leaves
/// one for the next.
const WAITING: usize = 2;
/// It does one thing after the other, such as storing all it knows.
const ANSWER: Duration = Duration::from_secs(60);
/// Whoever waits for longer is told so.
const SOON: Duration = Duration::from_secs(3);
/// Who follows and does not read loses what comes then.
const BEHIND: usize = 10_000;
/// Who follows events may go while there are none.
const LOOK: Duration = Duration::from_secs(1);

pub const OTHER_VERSION: &str = "the daemon is of another version: its answer is not understood";

/// What an extension is asked.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Request {
    Guard(guard::Request),
    Service(service::Request),
    Plugin(plugin::Request),
}

/// What a request is answered with.
pub enum Response {
    Value(Value),
    /// Lines that are there, and lines to come.
    Lines(Vec<Arc<str>>, Option<Follower>),
}

/// Who reads events as they come.
pub struct Follower {
    lines: Receiver<Arc<str>>,
    /// As long as somebody reads.
    _reads: Arc<()>,
}

/// The other side of a [`Follower`].
pub struct Leader {
    lines: SyncSender<Arc<str>>,
    reads: Weak<()>,
}

impl Leader {
    /// Who does not read loses what comes after [`BEHIND`] lines.
    pub fn new() -> (Self, Follower) {
        let (to, lines) = sync_channel(BEHIND);
        let reads = Arc::new(());
        (Self { lines: to, reads: Arc::downgrade(&reads) }, Follower { lines, _reads: reads })
    }

    pub fn is_followed(&self) -> bool {
        self.reads.strong_count() > 0
    }

    /// Whether there was room for it.
    pub fn tell(&self, line: &Arc<str>) -> bool {
        self.lines.try_send(Arc::clone(line)).is_ok()
    }
}

/// A request, and where its answer goes.
pub struct Ask {
    /// Who asks.
    pub process: u32,
    pub request: Request,
    pub answer: Sender<Result<Response>>,
}

/// The first line of every answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok(Value),
    Error(String),
}

/// The socket's file is there as long as this.
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
}

impl Control {
    /// Only one daemon listens at a path; what a killed one left there is replaced.
    pub fn listen(path: &Path) -> Result<Self> {
        let context = || format!("cannot listen at {}", path.display());
        if UnixStream::connect(path).is_ok() {
            bail!(
                "a daemon listens at {} already: `tollgate guard status`, `service report` or `plugin list` tells of it",
                path.display()
            );
        }
        if let Some(folder) =
            path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            // Those of /run are gone after a start of the machine; any other path may be mistyped.
            ensure!(
                folder.parent() == Some(Path::new("/run")),
                "cannot listen at {}: there is no folder {}",
                path.display(),
                folder.display()
            );
            match fs::DirBuilder::new().mode(0o755).create(folder) {
                // By another daemon, at this moment.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made.with_context(|| format!("cannot make the folder {}", folder.display()))?,
            }
        }
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                bail!("{} is there, and no socket: it is left alone", path.display())
            }
            Ok(_) => fs::remove_file(path).with_context(context)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(context),
        }
        let listener = UnixListener::bind(path).with_context(context)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(context)?;
        Ok(Self { path: path.to_owned(), listener })
    }

    /// Requests come by the channel; the stream can be read when there is one.
    pub fn serve(&self) -> Result<(Receiver<Ask>, UnixStream)> {
        let (asks, asked) = channel();
        let (wake, awake) = UnixStream::pair()?;
        awake.set_nonblocking(true)?;
        let listener = self.listener.try_clone()?;
        let counts = Mutex::default();
        let desk = Arc::new(Desk { listener, asks, wake, counts });
        ensure!(desk.has_one_waiting(), "cannot start a thread for the control socket");
        Ok((asked, awake))
    }
}

/// What the threads have in common that answer connections.
struct Desk {
    listener: UnixListener,
    asks: Sender<Ask>,
    wake: UnixStream,
    counts: Mutex<Counts>,
}

/// Threads.
#[derive(Default)]
struct Counts {
    waiting: usize,
    serving: usize,
}

impl Desk {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where none could be started, those that serve wait again when they are through with it.
    fn has_one_waiting(self: &Arc<Self>) -> bool {
        let mut counts = self.counts();
        if counts.waiting == 0 {
            let desk = Arc::clone(self);
            let started = thread::Builder::new().spawn(move || desk.work());
            counts.waiting += usize::from(started.is_ok());
        }
        counts.waiting > 0
    }

    /// One of those that waited serves; how many do so now.
    fn begins(&self) -> usize {
        let mut counts = self.counts();
        counts.waiting -= 1;
        counts.serving += 1;
        counts.serving
    }

    fn work(self: &Arc<Self>) {
        loop {
            let Ok((stream, _)) = self.listener.accept() else {
                // It may be possible again then.
                thread::sleep(LOOK);
                continue;
            };
            if self.begins() > MOST {
                let _ = put_error(&stream, &anyhow!("{MOST} others ask the daemon at this moment"));
            } else {
                self.has_one_waiting();
                // Whoever goes before the answer has nobody to tell of it.
                let _ = serve_one(&stream, &self.asks, &self.wake);
            }
            drop(stream);
            let mut counts = self.counts();
            counts.serving -= 1;
            if counts.waiting >= WAITING {
                return;
            }
            counts.waiting += 1;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn put(mut stream: &UnixStream, line: &str) -> Result<()> {
    Ok(stream.write_all(format!("{line}\n").as_bytes())?)
}

fn put_error(stream: &UnixStream, error: &anyhow::Error) -> Result<()> {
    put(stream, &serde_json::to_string(&Answer::Error(format!("{error:#}")))?)
}

fn respond(stream: &UnixStream, asks: &Sender<Ask>, mut wake: &UnixStream) -> Result<Response> {
    let process =
        kernel::process::root_peer(stream.as_raw_fd()).context("only root may control the daemon")?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST_REQUEST)).read_line(&mut line).context("this is no request")?;
    let request = serde_json::from_str(&line).context("the daemon does not understand this request")?;
    let (answer, answered) = channel();
    const ENDING: &str = "the daemon is ending";
    asks.send(Ask { process, request, answer }).ok().context(ENDING)?;
    wake.write_all(&[0])?;
    answered.recv().ok().context(ENDING)?
}

fn serve_one(stream: &UnixStream, asks: &Sender<Ask>, wake: &UnixStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (lines, follower) = match respond(stream, asks, wake) {
        Ok(Response::Value(value)) => return put(stream, &serde_json::to_string(&Answer::Ok(value))?),
        Err(error) => return put_error(stream, &error),
        Ok(Response::Lines(lines, follower)) => (lines, follower),
    };
    put(stream, &serde_json::to_string(&Answer::Ok(Value::Null))?)?;
    lines.iter().try_for_each(|line| put(stream, line))?;
    let Some(follower) = follower else { return Ok(()) };
    while !kernel::process::has_hung_up(stream.as_raw_fd()) {
        match follower.lines.recv_timeout(LOOK) {
            Ok(line) => put(stream, &line)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(())
}

/// The other side: a connection to the daemon, if one listens there.
pub fn connect(path: &Path) -> Result<Option<UnixStream>> {
    match UnixStream::connect(path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("only root may control the daemon that listens at {}", path.display())
        }
        Err(error) => Err(error).with_context(|| format!("cannot reach the daemon at {}", path.display())),
    }
}

/// What the daemon says to a request, and the lines after it.
pub fn ask<R: Serialize>(
    stream: &UnixStream,
    request: &R,
) -> Result<(Value, impl Iterator<Item = String> + use<R>)> {
    const GONE: &str = "the daemon has gone away";
    // Who is refused unheard is told so nevertheless.
    let written = put(stream, &serde_json::to_string(request)?);
    stream.set_read_timeout(Some(ANSWER))?;
    if !kernel::process::wait_readable(stream.as_raw_fd(), SOON) {
        tell("waiting for the daemon's answer");
    }
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let answer = match lines.next() {
        Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
            bail!("the daemon has not answered for {} s: is it stopped?", ANSWER.as_secs())
        }
        Some(Ok(answer)) => answer,
        _ => bail!(written.err().map_or(GONE.into(), |error| format!("{GONE}: {error}"))),
    };
    // Events may take their time.
    stream.set_read_timeout(None)?;
    let lines = lines.map_while(Result::ok);
    match serde_json::from_str(&answer)? {
        Answer::Ok(value) => Ok((value, lines)),
        Answer::Error(sentence) => bail!(sentence),
    }
}

/// For commands that nobody but a daemon can carry out.
pub fn running(path: &Path) -> Result<UnixStream> {
    connect(path)?.with_context(|| {
        format!(
            "no daemon listens at {}: `tollgate daemon --help` says how to start one, or name its --socket",
            path.display()
        )
    })
}

/// The daemon's answer, where one has to be there.
pub fn answer<T: DeserializeOwned>(socket: &SocketOption, request: &impl Serialize) -> Result<T> {
    let (value, _) = ask(&running(&socket.path)?, request)?;
    serde_json::from_value(value).context(OTHER_VERSION)
}

/// Nobody may be left to tell.
pub fn tell(message: &str) {
    let _ = say(&format!("tollgate: {message}"));
}
