//! redis-server; the attacker loads a malicious module.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::client::{ClientConnection, Rng, free_port, many};
use crate::experiment::{AttackedServer, Experiment, Training};
use crate::harness::eventually;
use crate::harness::job::folder;
use crate::harness::web_stack::redis;
use crate::source;
use crate::up::{RunningServers, ServerProgram};

pub struct Redis {
    folder: TempDir,
    port: u16,
}

impl Redis {
    pub fn new() -> Self {
        let it = Self { folder: folder(), port: free_port() };
        std::os::unix::fs::symlink(redis(), it.path("redis-server")).expect("a link can be made");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        gcc.arg(format!("-DCOMMAND=\"echo pwned>{}\"", it.effect().display()));
        let done = gcc.arg(source("module.c")).arg("-o").arg(it.path("module.so")).output();
        let done = done.expect("gcc is missing: 'make setup' installs it");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn connect(&self) -> io::Result<ClientConnection> {
        ClientConnection::to(self.port)
    }

    /// Sends one command over a new connection and returns the reply.
    fn send_command(&self, words: &[&str]) -> io::Result<String> {
        send_command(
            &mut self.connect()?,
            &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>(),
        )
    }

    fn request(&self, connection: &mut ClientConnection, dice: &mut Rng) {
        let key = format!("key:{}", dice.below(500));
        let value = vec![b'v'; 1 + dice.below(100)];
        let words: &[&[u8]] = match dice.below(20) {
            0..=5 => &[b"GET", key.as_bytes()],
            6..=10 => &[b"SET", key.as_bytes(), &value],
            11 => &[b"INCR", b"counter"],
            12 => &[b"LPUSH", b"list", &value],
            13 => &[b"LRANGE", b"list", b"0", b"100"],
            14 => &[b"SET", key.as_bytes(), &value, b"EX", b"1"],
            15 => &[b"HSET", b"hash", key.as_bytes(), &value],
            16 => &[b"DEL", key.as_bytes(), b"list"],
            // Uploads.
            17 => &[b"SET", b"large", &vec![b'L'; 1 + dice.below(300_000)]],
            18 => &[b"GET", b"large"],
            // Errors.
            _ => &[b"NONSENSE", key.as_bytes()],
        };
        send_command(connection, words).expect("a reply");
    }

    /// The server opens its log for each line.
    fn rotate_log(&self) {
        fs::rename(self.path("log"), self.path("log.1")).expect("there is a log");
    }

    /// A child of the server writes all data to a file.
    fn save(&self, command: &str) {
        self.send_command(&[command]).expect("a reply");
        eventually("the file", || {
            let about = self.send_command(&["INFO", "persistence"]).expect("a reply");
            about.contains("rdb_bgsave_in_progress:0")
                && about.contains("aof_rewrite_in_progress:0")
        });
    }
}

fn send_command(connection: &mut ClientConnection, words: &[&[u8]]) -> io::Result<String> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    connection.send(&bytes)?;
    read_reply(connection)
}

fn read_reply(connection: &mut ClientConnection) -> io::Result<String> {
    let line = connection.line()?;
    let number = || line[1..].parse::<i64>().expect("a number");
    match line.as_bytes().first() {
        Some(b'$') if number() >= 0 => {
            let mut bytes = connection.bytes(number() as usize + 2)?;
            bytes.truncate(bytes.len() - 2);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Some(b'*') => (0..number()).map(|_| read_reply(connection)).collect(),
        _ => Ok(line),
    }
}

impl AttackedServer for Redis {
    const NAME: &'static str = "redis";
    const TRAINING: Training =
        Training { times: 12, rounds: 5, most_clients: 8, requests: 3000, longest: 100 };

    fn attack_description(&self) -> &'static str {
        "a module that calls system() while it is loaded"
    }

    fn programs(&self) -> Vec<ServerProgram> {
        let command = vec![self.path("redis-server").into(), self.path("config").into()];
        vec![ServerProgram {
            name: "redis-server",
            command,
            environment: Vec::new(),
            end: libc::SIGTERM,
        }]
    }

    fn is_ready(&self) -> bool {
        let reply = ClientConnection::with_short_timeout(self.port)
            .and_then(|mut connection| send_command(&mut connection, &[b"PING"]));
        reply.is_ok_and(|reply| reply == "+PONG")
    }

    /// Starts without data: the calls of a start with data depend on the data that the last run
    /// left, so the guard would hold them.
    fn prepare(&self) {
        let _ = fs::remove_dir_all(self.path("appendonlydir"));
        let text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\nsave \"\"\nappendonly yes\nlogfile \
            {}\nenable-module-command yes\n",
            self.port,
            self.folder.path().display(),
            self.path("log").display()
        );
        fs::write(self.path("config"), text).expect("it can be written");
    }

    fn requests(&self, dice: &mut Rng, count: usize, longest: usize) {
        let mut left = count;
        while left > 0 {
            let some = (1 + dice.below(longest)).min(left);
            let mut connection = self.connect().expect("it listens");
            (0..some).for_each(|_| self.request(&mut connection, dice));
            left -= some;
        }
    }

    fn event(&self, _up: &RunningServers, number: usize) {
        match number {
            0 => self.save("BGSAVE"),
            1 => {
                self.save("BGREWRITEAOF");
                self.rotate_log();
            }
            2 => drop(self.send_command(&["CONFIG", "REWRITE"]).expect("a reply")),
            _ => drop(self.send_command(&["INFO"]).expect("a reply")),
        }
    }

    fn use_normally(&self, up: &RunningServers) -> usize {
        many(10, 4000, 101, |dice, count| self.requests(dice, count, 1000), || ());
        self.save("BGSAVE");
        many(1, 1000, 102, |dice, count| self.requests(dice, count, 1), || ());
        self.rotate_log();
        many(
            3,
            3000,
            103,
            |dice, count| self.requests(dice, count, 30),
            || self.save("BGREWRITEAOF"),
        );
        self.event(up, 2);
        many(5, 2000, 104, |dice, count| self.requests(dice, count, 300), || ());
        4000 + 1000 + 3000 + 2000
    }

    fn attack(&self) {
        let module = self.path("module.so");
        let _ = self.send_command(&["MODULE", "LOAD", &module.to_string_lossy()]);
    }

    fn effect(&self) -> PathBuf {
        self.path("pwned")
    }
}

#[test]
fn malicious_module_is_held() {
    let it = Experiment::new(Redis::new());
    it.is_held();
}
