//! Services, of a pooler: one thread passes on what many ask of a database over a few connections. As long as there are
//! enough of these it is followed; where a request has to wait for one, it is told of.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use crate::harness::job::{self, children, cpu_ns};
use crate::harness::limits::rules;
use crate::harness::postgres::{self, Postgres};
use crate::harness::report::none_lost;
use crate::harness::services::{InForce, is_charged, over, program, programs};
use crate::harness::site::{self, AS_NOBODY, free_port, listens, with_libraries};
use crate::harness::{Running, eventually};

const TENANTS: [&str; 2] = ["shop", "blog"];
const QUERY: &str = "select sum(sqrt(n)) from generate_series(1, 200000) n;";

/// Tenants' sessions with a database, by way of a pooler.
struct Pooled {
    sessions: [Running; 2],
    asked: [usize; 2],
    pooler: Running,
    database: Postgres,
    services: InForce,
}

impl Pooled {
    fn start(connections: usize) -> Self {
        let folder = programs(&[]);
        let place = postgres::programs();
        TENANTS.iter().for_each(|name| job::copy(&place.join("psql"), &folder.path().join(name)));
        let pooler = site::program("pgbouncer");
        let adopts = |path: &Path| format!("[[rule]]\nexe = \"{}\"\nadopts-peer = true\n", path.display());
        let own = rules(&TENANTS.map(|name| (name, "")));
        let rules = [own, adopts(&pooler), adopts(&place.join("postgres"))].concat();
        let services = InForce::start(folder, &rules);
        let database = Postgres::start("");
        let port = free_port();
        let settings = services.path("pgbouncer.ini");
        let lines = format!(
            "[databases]\npostgres = host={} user=owner\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n",
            database.host().display()
        );
        fs::write(&settings, lines).expect("a file");
        let pooler = site::job(AS_NOBODY, pooler, settings.to_str().expect("text")).start();
        eventually("the pooler", || {
            assert!(!pooler.is_over(), "{}", pooler.read("err"));
            listens(port)
        });
        let sessions = TENANTS.map(|name| {
            let command = format!("{name} -h 127.0.0.1 -p {port} -U owner -d postgres -X -At");
            with_libraries(program(services.folder.path(), &command)).start()
        });
        let mut pooled = Self { sessions, asked: [0; 2], pooler, database, services };
        // So that all connections are there.
        eventually("its connections", || {
            pooled.ask_both("select pg_sleep(0.1);");
            pooled.connections() == connections
        });
        // Both may have waited for one, and the pooler work for nobody of them.
        pooled.begin(0, QUERY);
        pooled.answer(0);
        pooled
    }

    /// Those processes of the database that have a client.
    fn connections(&self) -> usize {
        let processes = children(self.database.running.pid()).into_iter();
        let titles = processes.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
        titles.filter(|title| title.starts_with("postgres: owner ")).count()
    }

    fn begin(&mut self, tenant: usize, query: &str) {
        writeln!(self.sessions[tenant].input(), "{query}").expect("it reads");
        self.asked[tenant] += 1;
    }

    fn answer(&self, tenant: usize) {
        let session = &self.sessions[tenant];
        eventually("an answer", || session.read("out").lines().count() == self.asked[tenant]);
    }

    fn ask_both(&mut self, query: &str) {
        (0..2).for_each(|tenant| self.begin(tenant, query));
        (0..2).for_each(|tenant| self.answer(tenant));
    }

    /// To the tenants, and to nobody of them.
    fn charged(&self) -> [u64; 3] {
        let figures = self.services.figures("cpu_ns");
        ["shop", "blog", "shared"].map(|name| figures[name])
    }

    /// Of the pooler and of all that it asks.
    fn worked(&self) -> u64 {
        let database = children(self.database.running.pid());
        cpu_ns(self.pooler.pid()) + database.into_iter().map(cpu_ns).sum::<u64>()
    }

    fn own(&self, tenant: usize) -> u64 {
        cpu_ns(self.sessions[tenant].pid())
    }

    fn overlaps(&self) -> u64 {
        self.services.figures("overlaps").values().sum()
    }

    fn end(self) {
        none_lost(&self.services.report());
        self.sessions.into_iter().for_each(over);
        self.pooler.signal(libc::SIGINT);
        self.pooler.finish();
        self.database.end();
    }
}

fn difference(after: [u64; 3], before: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|place| after[place] - before[place])
}

#[test]
fn requests_are_followed_through_it() {
    let mut pooled = Pooled::start(2);
    let (before, overlaps, mut worked) = (pooled.charged(), pooled.overlaps(), [0; 2]);
    for round in 0..40 {
        // One asks three times as often.
        let tenant = usize::from(round % 4 == 0);
        let began = pooled.worked() + pooled.own(tenant);
        pooled.begin(tenant, QUERY);
        pooled.answer(tenant);
        worked[tenant] += pooled.worked() + pooled.own(tenant) - began;
    }
    let [shop, blog, shared] = difference(pooled.charged(), before);
    for (name, charged, work) in [("shop", shop, worked[0]), ("blog", blog, worked[1])] {
        is_charged(name, charged, work, worked.iter().sum());
    }
    assert_eq!((shared, pooled.overlaps()), (0, overlaps));
    pooled.end();
}

/// For whom the next request is that it sends after an answer, only the pooler knows.
#[test]
fn requests_that_wait_for_a_connection_are_told_of() {
    let mut pooled = Pooled::start(1);
    let work = |pooled: &Pooled| pooled.worked() + pooled.own(0) + pooled.own(1);
    let (before, began) = (pooled.charged(), work(&pooled));
    (0..40).for_each(|_| pooled.ask_both(QUERY));
    let worked = work(&pooled) - began;
    let charged = difference(pooled.charged(), before);
    is_charged("all", charged.iter().sum(), worked, worked);
    assert!(pooled.overlaps() > 0, "{charged:?}");
    let told = pooled.services.ask("report").text();
    assert!(told.contains("which serve several at once: some of its figures may be theirs"), "{told}");
    pooled.end();
}
