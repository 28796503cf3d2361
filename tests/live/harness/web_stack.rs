//! Debian's web servers, php-fpm and PostgreSQL, which work for two tenants, each at its own port.
//! Their configuration files are in tests/servers.

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

/// Nanoseconds or a count for each tenant.
pub type PerTenant = [u64; 2];

#[derive(Clone, Copy, PartialEq)]
pub enum WebServer {
    Nginx,
    Apache,
}

/// The sockets between the programs.
#[derive(Clone, Copy, PartialEq)]
pub enum Sockets {
    Tcp,
    Unix,
}

/// The requests of a tenant's clients.
pub struct Load {
    pub connections: usize,
    pub ms: u64,
    /// The work of a request in PHP, in milliseconds, and in the database, in rows that it counts.
    pub work: [u64; 2],
}

/// What the programs have used since their start, by their own accounts.
pub struct StackUsage {
    pub requests: PerTenant,
    pub php: PerTenant,
    pub database: PerTenant,
    /// For both tenants: the web server does not distinguish them.
    pub web: u64,
}

pub struct WebStack {
    folder: TempDir,
    /// The placeholders in the files, and their values.
    values: BTreeMap<&'static str, String>,
    ports: [u16; 2],
    web: Running,
    php: Running,
    database: Running,
}

const PAGE: &str = "page.txt";

/// Ports outside of the range from which the kernel takes those of clients
/// (Documentation/networking/ip-sysctl.rst, ip_local_port_range).
const PORTS: Range<u16> = 10_000..32_768;

/// Returns a free port of loopback, a different one each time.
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

/// The folder into which Debian's servers were unpacked.
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

/// Path of redis-server. Debian's package redis-server contains only a service and a link; the
/// program is in redis-tools as redis-check-rdb, and acts according to the name by which it is
/// called.
pub fn redis() -> PathBuf {
    let found =
        ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"].into_iter().map(PathBuf::from);
    found
        .into_iter()
        .find(|path| path.exists())
        .expect("redis-check-rdb is missing: 'make setup' installs it")
}

/// Path of one of the servers' programs.
pub fn program(name: &str) -> PathBuf {
    servers().join("programs").join(name).canonicalize().expect("scripts/servers links it")
}

/// Lets a job find the libraries that were unpacked with the servers.
pub fn with_libraries(mut job: Job) -> Job {
    job.command.env("LD_LIBRARY_PATH", servers().join("usr/lib/x86_64-linux-gnu"));
    job
}

pub fn job(options: &str, program: impl Into<OsString>, arguments: &str) -> Job {
    let command = words(options).into_iter().chain([program.into()]).chain(words(arguments));
    with_libraries(Job::of(command.collect()))
}

/// PostgreSQL refuses to run as root, and the user nobody needs a capability to read root's home,
/// where the files may be.
pub const AS_NOBODY: &str = "setpriv --reuid nobody --regid nogroup --clear-groups \
    --inh-caps +dac_read_search \
                         --ambient-caps +dac_read_search";

impl WebStack {
    /// Starts the servers with this many processes of PHP. `before` is called with the rules before
    /// any server starts.
    #[track_caller]
    pub fn start(
        web: WebServer,
        sockets: Sockets,
        workers: usize,
        before: impl FnOnce(&str),
    ) -> Self {
        let (root, folder) = (servers(), folder());
        for name in ["www", "work", "tmp"] {
            fs::create_dir(folder.path().join(name)).expect("a folder can be made");
            chown(folder.path().join(name), Some(NOBODY), Some(NOBODY)).expect("it is root's");
        }
        let program = |name: &str| program(name).into_os_string().into_string().expect("text");
        let (root, at) = (root.to_str().expect("text"), folder.path().to_str().expect("text"));
        let [port_a, port_b, fastcgi_port, database_port] = std::array::from_fn(|_| free_port());
        let (php, postgres) = (program("php-fpm"), program("postgres"));
        let web_program = program(if web == WebServer::Nginx { "nginx" } else { "apache2" });
        let (fastcgi, of_nginx, of_apache, database) = match sockets {
            Sockets::Tcp => {
                let fastcgi = format!("127.0.0.1:{fastcgi_port}");
                (fastcgi.clone(), fastcgi.clone(), format!("fcgi://{fastcgi}"), "127.0.0.1".into())
            }
            Sockets::Unix => {
                let fastcgi = format!("{at}/tmp/php-fpm");
                let [nginx, apache] =
                    [format!("unix:{fastcgi}"), format!("unix:{fastcgi}|fcgi://localhost")];
                (fastcgi, nginx, apache, format!("{at}/tmp"))
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
            (
                "DATABASE",
                format!("host={database} port={database_port} user=postgres dbname=postgres"),
            ),
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
            WebServer::Nginx => format!("-c {at}/nginx.conf"),
            WebServer::Apache => format!("-D FOREGROUND -f {at}/apache2.conf"),
        };
        let web = job("", web_program, &options).start();
        let site = Self { folder, values, ports: [port_a, port_b], web, php, database };
        site.is_up();
        site
    }

    #[track_caller]
    fn is_up(&self) {
        let says = |log: String, words: &str| log.contains(words);
        let php_log =
            || fs::read_to_string(self.folder.path().join("php-fpm.log")).unwrap_or_default();
        eventually("the servers", || {
            for server in [&self.database, &self.php, &self.web] {
                assert!(!server.is_over(), "{}", server.read("err"));
            }
            says(self.database.read("err"), "ready to accept connections")
                && says(php_log(), "ready to handle connections")
                && self.ports.into_iter().all(listens)
        });
    }

    /// Rules by which each tenant's port belongs to its service; programs that work for both adopt
    /// their peer's service.
    pub fn rules(&self) -> String {
        filled("services.toml", &self.values)
    }

    /// All current processes of the servers.
    pub fn processes(&self) -> Vec<u32> {
        let mut all: Vec<_> = [&self.web, &self.php, &self.database].map(Running::pid).into();
        let mut next = 0;
        while next < all.len() {
            all.extend(children(all[next]));
            next += 1;
        }
        all
    }

    /// Starts a tenant's clients, which print a summary at their end.
    pub fn clients(&self, tenant: usize, load: &Load) -> Running {
        let Load { connections, ms, work: [php, rows] } = *load;
        let path = format!("/work.php?tenant={}&ms={php}&rows={rows}", TENANTS[tenant]);
        Job::of(workload(&format!("load {} {connections} {ms} {path}", self.ports[tenant]))).start()
    }

    /// Returns how many pages of 1 KiB the web server alone serves to the first tenant's clients.
    pub fn pages(&self, connections: usize, ms: u64) -> u64 {
        let clients = workload(&format!("load {} {connections} {ms} /{PAGE}", self.ports[0]));
        let said = Job::of(clients).finish().success().json();
        said["requests"].as_u64().expect("a number")
    }

    /// Runs both tenants' clients at the same time, and returns their summaries.
    #[track_caller]
    pub fn run_clients(&self, loads: &[Load; 2]) -> [serde_json::Value; 2] {
        let before = self.usage().requests;
        let asking: [Running; 2] =
            std::array::from_fn(|tenant| self.clients(tenant, &loads[tenant]));
        let said = asking.map(|clients| clients.finish().success().json());
        let requests: PerTenant = std::array::from_fn(|tenant| {
            before[tenant] + said[tenant]["requests"].as_u64().expect("a number")
        });
        // PHP writes its account after the reply, so the last ones may come a moment later.
        eventually("the notes", || self.usage().requests == requests);
        said
    }

    pub fn usage(&self) -> StackUsage {
        let (mut php, mut requests) = (PerTenant::default(), PerTenant::default());
        for file in fs::read_dir(self.folder.path().join("work")).expect("it is there").flatten() {
            let notes = fs::read_to_string(file.path()).unwrap_or_default();
            let mut meter = ProcessUsage::default();
            for note in notes.lines() {
                let Some([tenant, began, ended]) = fields(note) else { continue };
                meter.add_span(tenant_of(tenant), micros(began), micros(ended));
                requests[tenant_of(tenant)] += 1;
            }
            (0..2).for_each(|tenant| php[tenant] += meter.used[tenant]);
        }
        StackUsage { requests, php, database: self.database_used(), web: tree_ns(self.web.pid()) }
    }

    /// What the database used for each tenant, from its log of statements with the tenants' names.
    fn database_used(&self) -> PerTenant {
        let log = self.database.read("err");
        let mut backends = BTreeMap::<&str, ProcessUsage>::new();
        // "PID LOG:  QUERY STATISTICS", "PID DETAIL:  ! system usage stats:", "! U s user, S s
        // system, E s elapsed", "! [U s user, S s system total]" and more of these, "PID STATEMENT:
        // ..."
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
                meter.add_span(
                    tenant_of(tenant.split(' ').next().expect("a name")),
                    total - own,
                    total,
                );
            }
        }
        std::array::from_fn(|tenant| backends.values().map(|meter| meter.used[tenant]).sum())
    }
}

impl Drop for WebStack {
    /// Ends the servers by a signal, so that they leave no processes and PostgreSQL no shared
    /// memory.
    fn drop(&mut self) {
        self.web.signal(libc::SIGTERM);
        self.php.signal(libc::SIGTERM);
        self.database.signal(libc::SIGINT);
        eventually("the servers' end", || {
            [&self.web, &self.php, &self.database].into_iter().all(Running::is_over)
        });
    }
}

/// The work of one process: the time from the end of one request to the end of the next belongs to
/// the tenant of the latter.
#[derive(Default)]
struct ProcessUsage {
    used: PerTenant,
    at: Option<u64>,
}

impl ProcessUsage {
    fn add_span(&mut self, tenant: usize, began: u64, ended: u64) {
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

/// Parses "0.012345 s user, 0.000123 s system".
fn user_and_system(text: &str) -> u64 {
    let seconds = |text: &str| (text.parse::<f64>().expect("a time") * 1e9).round() as u64;
    text.split(", ").take(2).map(|part| seconds(part.split(' ').next().expect("a time"))).sum()
}

fn filled(name: &str, values: &BTreeMap<&str, String>) -> String {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/servers")).join(name);
    let text = fs::read_to_string(source).expect("it is there");
    values.iter().fold(text, |text, (word, value)| text.replace(&format!("@{word}@"), value))
}

/// Finds PHP's module for PostgreSQL, in a folder that is named by the version of PHP's interface.
fn pgsql(root: &str) -> PathBuf {
    let folders =
        [root, ""].map(|root| fs::read_dir(format!("{root}/usr/lib/php"))).into_iter().flatten();
    let modules = folders.flatten().flatten().map(|folder| folder.path().join("pgsql.so"));
    modules.into_iter().find(|path| path.exists()).expect("php-pgsql has it")
}

/// Processor time of a process and its descendants while they run: the first number in schedstat.
fn tree_ns(process: u32) -> u64 {
    let own = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    let own: u64 = own.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    own + children(process).into_iter().map(tree_ns).sum::<u64>()
}
