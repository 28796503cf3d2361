//! Debian's web servers, php-fpm and PostgreSQL, which work for two tenants, each at a port of its own. The files by which
//! they are configured are in tests/servers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use tempfile::TempDir;

use super::job::{children, folder};
use super::{Job, NOBODY, Running, eventually, words, workload};

pub const TENANTS: [&str; 2] = ["a", "b"];

/// Of each tenant: nanoseconds, or how many.
pub type Each = [u64; 2];

#[derive(Clone, Copy, PartialEq)]
pub enum Web {
    Nginx,
    Apache,
}

/// Over which the programs ask each other.
#[derive(Clone, Copy, PartialEq)]
pub enum Sockets {
    Tcp,
    Unix,
}

/// What a tenant's clients ask for.
pub struct Load {
    pub connections: usize,
    pub ms: u64,
    /// What a request works in PHP, in milliseconds, and in the database, in rows that it counts.
    pub work: [u64; 2],
}

/// What the programs have used since they were started, by their own accounts.
pub struct Used {
    pub requests: Each,
    pub php: Each,
    pub database: Each,
    /// For all: it does not tell for whom.
    pub web: u64,
}

pub struct Site {
    folder: TempDir,
    /// The words in the files, and what they stand for.
    values: BTreeMap<&'static str, String>,
    ports: [u16; 2],
    web: Running,
    php: Running,
    database: Running,
}

const PAGE: &str = "page.txt";

/// Of those that the kernel does not give to who connects (Documentation/networking/ip-sysctl.rst, ip_local_port_range).
const PORTS: Range<u16> = 10_000..32_768;

/// A port of loopback that nobody listens on, another one each time.
pub fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16;
    loop {
        let next = first.wrapping_add(TRIED.fetch_add(1, Ordering::SeqCst));
        let port = PORTS.start + next % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Where Debian's servers were unpacked.
pub fn servers() -> PathBuf {
    static UNPACKED: OnceLock<PathBuf> = OnceLock::new();
    UNPACKED.get_or_init(unpacked).clone()
}

fn unpacked() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/servers");
    let output = Command::new(script).output().expect("scripts/servers starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("text").trim_end())
}

/// Debian's redis-server package is a service and a link; the program itself comes with redis-tools, under the name of its
/// checker, and goes by the name it is called by.
pub fn redis() -> PathBuf {
    let found = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"].into_iter().map(PathBuf::from);
    found
        .into_iter()
        .find(|path| path.exists())
        .expect("redis-check-rdb is missing: 'make setup' installs it")
}

/// One of them.
pub fn program(name: &str) -> PathBuf {
    servers().join("programs").join(name).canonicalize().expect("scripts/servers links it")
}

/// With libraries that were unpacked with them.
pub fn with_libraries(mut job: Job) -> Job {
    job.command.env("LD_LIBRARY_PATH", servers().join("usr/lib/x86_64-linux-gnu"));
    job
}

pub fn job(options: &str, program: impl Into<OsString>, arguments: &str) -> Job {
    let command = words(options).into_iter().chain([program.into()]).chain(words(arguments));
    with_libraries(Job::of(command.collect()))
}

/// PostgreSQL refuses root, and who is nobody cannot look into root's home, where its files may be, without a capability.
pub const AS_NOBODY: &str = "setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps +dac_read_search \
                         --ambient-caps +dac_read_search";

impl Site {
    /// With so many processes of PHP. `before` is called with the rules, before anything runs.
    #[track_caller]
    pub fn start(web: Web, sockets: Sockets, workers: usize, before: impl FnOnce(&str)) -> Self {
        let (root, folder) = (servers(), folder());
        for name in ["www", "work", "tmp"] {
            fs::create_dir(folder.path().join(name)).expect("a folder can be made");
            chown(folder.path().join(name), Some(NOBODY), Some(NOBODY)).expect("it is root's");
        }
        let program = |name: &str| program(name).into_os_string().into_string().expect("text");
        let (root, at) = (root.to_str().expect("text"), folder.path().to_str().expect("text"));
        let [port_a, port_b, fastcgi_port, database_port] = std::array::from_fn(|_| free_port());
        let (php, postgres) = (program("php-fpm"), program("postgres"));
        let web_program = program(if web == Web::Nginx { "nginx" } else { "apache2" });
        let (fastcgi, of_nginx, of_apache, database) = match sockets {
            Sockets::Tcp => {
                let place = format!("127.0.0.1:{fastcgi_port}");
                (place.clone(), place.clone(), format!("fcgi://{place}"), "127.0.0.1".into())
            }
            Sockets::Unix => {
                let place = format!("{at}/tmp/php-fpm");
                let [nginx, apache] = [format!("unix:{place}"), format!("unix:{place}|fcgi://localhost")];
                (place, nginx, apache, format!("{at}/tmp"))
            }
        };
        let values = BTreeMap::from([
            ("FOLDER", at.into()),
            ("ROOT", root.into()),
            ("PORT_A", port_a.to_string()),
            ("PORT_B", port_b.to_string()),
            ("FASTCGI", fastcgi),
            ("NGINX_FASTCGI", of_nginx),
            ("APACHE_FASTCGI", of_apache),
            ("DATABASE", format!("host={database} port={database_port} user=postgres dbname=postgres")),
            ("DATABASE_PORT", database_port.to_string()),
            ("WORKERS", workers.to_string()),
            ("WEB", web_program.clone()),
            ("PHP", php.clone()),
            ("POSTGRES", postgres.clone()),
        ]);
        for name in ["nginx.conf", "apache2.conf", "php-fpm.conf", "postgresql.conf"] {
            fs::write(folder.path().join(name), filled(name, &values)).expect("it can be written");
        }
        fs::write(folder.path().join("www/work.php"), filled("work.php", &values))
            .expect("it can be written");
        fs::write(folder.path().join("www").join(PAGE), [b' '; 1024]).expect("it can be written");
        before(&filled("services.toml", &values));

        let initdb = Path::new(&postgres).with_file_name("initdb");
        let options = format!("-D {at}/tmp/data -U postgres -A trust -E UTF8 --locale C --no-sync");
        job(AS_NOBODY, initdb, &options).finish().success();
        let options = format!("-D {at}/tmp/data -c config_file={at}/postgresql.conf");
        let database = job(AS_NOBODY, postgres, &options).start();
        let modules = format!("-d extension={}", pgsql(root).display());
        let php = job("", php, &format!("-n {modules} -F -y {at}/php-fpm.conf")).start();
        let options = match web {
            Web::Nginx => format!("-c {at}/nginx.conf"),
            Web::Apache => format!("-D FOREGROUND -f {at}/apache2.conf"),
        };
        let web = job("", web_program, &options).start();
        let site = Self { folder, values, ports: [port_a, port_b], web, php, database };
        site.is_up();
        site
    }

    #[track_caller]
    fn is_up(&self) {
        let says = |log: String, words: &str| log.contains(words);
        let php_log = || fs::read_to_string(self.folder.path().join("php-fpm.log")).unwrap_or_default();
        eventually("the servers", || {
            for server in [&self.database, &self.php, &self.web] {
                assert!(!server.is_over(), "{}", server.read("err"));
            }
            says(self.database.read("err"), "ready to accept connections")
                && says(php_log(), "ready to handle connections")
                && self.ports.into_iter().all(listens)
        });
    }

    /// Each tenant's port belongs to its service; who works for both follows.
    pub fn rules(&self) -> String {
        filled("services.toml", &self.values)
    }

    /// All of its processes now.
    pub fn processes(&self) -> Vec<u32> {
        let mut all: Vec<_> = [&self.web, &self.php, &self.database].map(Running::pid).into();
        let mut next = 0;
        while next < all.len() {
            all.extend(children(all[next]));
            next += 1;
        }
        all
    }

    /// What a tenant's clients say once they have asked.
    pub fn clients(&self, tenant: usize, load: &Load) -> Running {
        let Load { connections, ms, work: [php, rows] } = *load;
        let path = format!("/work.php?tenant={}&ms={php}&rows={rows}", TENANTS[tenant]);
        Job::of(workload(&format!("load {} {connections} {ms} {path}", self.ports[tenant]))).start()
    }

    /// How many pages of 1 KiB the web server alone gives the first tenant's clients.
    pub fn pages(&self, connections: usize, ms: u64) -> u64 {
        let clients = workload(&format!("load {} {connections} {ms} /{PAGE}", self.ports[0]));
        let said = Job::of(clients).finish().success().json();
        said["requests"].as_u64().expect("a number")
    }

    /// Both tenants' clients ask at the same time. What they say about it.
    #[track_caller]
    pub fn ask(&self, loads: &[Load; 2]) -> [serde_json::Value; 2] {
        let before = self.used().requests;
        let asking: [Running; 2] = std::array::from_fn(|tenant| self.clients(tenant, &loads[tenant]));
        let said = asking.map(|clients| clients.finish().success().json());
        let asked: Each = std::array::from_fn(|tenant| {
            before[tenant] + said[tenant]["requests"].as_u64().expect("a number")
        });
        // The notes of the last ones may be a moment late.
        eventually("the notes", || self.used().requests == asked);
        said
    }

    pub fn used(&self) -> Used {
        let (mut php, mut requests) = (Each::default(), Each::default());
        for file in fs::read_dir(self.folder.path().join("work")).expect("it is there").flatten() {
            let notes = fs::read_to_string(file.path()).unwrap_or_default();
            let mut meter = Meter::default();
            for note in notes.lines() {
                let Some([tenant, began, ended]) = fields(note) else { continue };
                meter.note(tenant_of(tenant), micros(began), micros(ended));
                requests[tenant_of(tenant)] += 1;
            }
            (0..2).for_each(|tenant| php[tenant] += meter.used[tenant]);
        }
        Used { requests, php, database: self.database_used(), web: tree_ns(self.web.pid()) }
    }

    /// As its log has it, of statements with the tenant's name.
    fn database_used(&self) -> Each {
        let log = self.database.read("err");
        let mut backends = BTreeMap::<&str, Meter>::new();
        // "PID LOG:  QUERY STATISTICS", "PID DETAIL:  ! system usage stats:", "! U s user, S s system, E s elapsed",
        // "! [U s user, S s system total]" and more of these, "PID STATEMENT:  ..."
        let (mut own, mut total) = (0, 0);
        for line in log.lines() {
            if let Some(line) = line.strip_prefix("\t!\t") {
                match line.strip_prefix('[') {
                    Some(line) if line.ends_with(" total]") => total = user_and_system(line),
                    None if line.ends_with(" elapsed") => own = user_and_system(line),
                    _ => {}
                }
            } else if let Some((backend, statement)) = line.split_once(" STATEMENT:  ")
                && let Some((_, tenant)) = statement.split_once("/* tenant ")
            {
                let meter = backends.entry(backend).or_default();
                meter.note(tenant_of(tenant.split(' ').next().expect("a name")), total - own, total);
            }
        }
        std::array::from_fn(|tenant| backends.values().map(|meter| meter.used[tenant]).sum())
    }
}

impl Drop for Site {
    /// Asked to end, they leave nobody behind, and PostgreSQL no shared memory.
    fn drop(&mut self) {
        self.web.signal(libc::SIGTERM);
        self.php.signal(libc::SIGTERM);
        self.database.signal(libc::SIGINT);
        eventually("the servers' end", || {
            [&self.web, &self.php, &self.database].into_iter().all(Running::is_over)
        });
    }
}

/// One process's work: from the end of one request to the end of the next, it is the next one's tenant's.
#[derive(Default)]
struct Meter {
    used: Each,
    at: Option<u64>,
}

impl Meter {
    fn note(&mut self, tenant: usize, began: u64, ended: u64) {
        self.used[tenant] += ended - self.at.unwrap_or(began);
        self.at = Some(ended);
    }
}

fn tenant_of(name: &str) -> usize {
    TENANTS.into_iter().position(|tenant| tenant == name).expect("a tenant's name")
}

fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    line.split(' ').collect::<Vec<_>>().try_into().ok()
}

fn micros(text: &str) -> u64 {
    text.parse::<u64>().expect("a time") * 1000
}

/// Of "0.012345 s user, 0.000123 s system".
fn user_and_system(text: &str) -> u64 {
    let seconds = |text: &str| (text.parse::<f64>().expect("a time") * 1e9).round() as u64;
    text.split(", ").take(2).map(|part| seconds(part.split(' ').next().expect("a time"))).sum()
}

fn filled(name: &str, values: &BTreeMap<&str, String>) -> String {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/servers")).join(name);
    let text = fs::read_to_string(source).expect("it is there");
    values.iter().fold(text, |text, (word, value)| text.replace(&format!("@{word}@"), value))
}

/// PHP's module for PostgreSQL, whose folder has the version of PHP's interface in its name.
fn pgsql(root: &str) -> PathBuf {
    let folders = [root, ""].map(|root| fs::read_dir(format!("{root}/usr/lib/php"))).into_iter().flatten();
    let modules = folders.flatten().flatten().map(|folder| folder.path().join("pgsql.so"));
    modules.into_iter().find(|path| path.exists()).expect("php-pgsql has it")
}

/// Processor time of a process and of all that it has started, while they run: the first figure of schedstat.
fn tree_ns(process: u32) -> u64 {
    let own = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    let own: u64 = own.split(' ').next().and_then(|figure| figure.parse().ok()).unwrap_or(0);
    own + children(process).into_iter().map(tree_ns).sum::<u64>()
}
