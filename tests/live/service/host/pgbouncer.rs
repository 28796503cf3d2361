//! A connection pooler: one thread passes the requests of many clients to a database over few
//! connections. While these suffice, each request is followed; a request that has to wait for a
//! connection is reported as shared.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use crate::harness::job::{self, children, cpu_ns};
use crate::harness::postgres::{self, Postgres};
use crate::harness::report::none_lost;
use crate::harness::service_limits::rules;
use crate::harness::services::{ActiveServices, assert_charged, finish_tenant, program, programs};
use crate::harness::web_stack::{self, AS_NOBODY, free_port, listens, with_libraries};
use crate::harness::{Running, eventually};

const TENANTS: [&str; 2] = ["shop", "blog"];
const QUERY: &str = "select sum(sqrt(n)) from generate_series(1, 200000) n;";

/// Sessions of tenants with a database through a pooler.
struct PoolerUsage {
    sessions: [Running; 2],
    sent: [usize; 2],
    pooler: Running,
    database: Postgres,
    services: ActiveServices,
}

impl PoolerUsage {
    fn start(connections: usize) -> Self {
        let folder = programs(&[]);
        let postgres_folder = postgres::programs();
        TENANTS
            .iter()
            .for_each(|name| job::copy(&postgres_folder.join("psql"), &folder.path().join(name)));
        let pooler = web_stack::program("pgbouncer");
        let adopts =
            |path: &Path| format!("[[rule]]\nexe = \"{}\"\nadopts-peer = true\n", path.display());
        let own = rules(&TENANTS.map(|name| (name, "")));
        let rules = [own, adopts(&pooler), adopts(&postgres_folder.join("postgres"))].concat();
        let services = ActiveServices::start(folder, &rules);
        let database = Postgres::start("");
        let port = free_port();
        let settings = services.path("pgbouncer.ini");
        let lines = format!(
            "[databases]\npostgres = host={} user=owner\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = \
             {connections}\n",
            database.host().display()
        );
        fs::write(&settings, lines).expect("a file");
        let pooler = web_stack::job(AS_NOBODY, pooler, settings.to_str().expect("text")).start();
        eventually("the pooler", || {
            assert!(!pooler.is_over(), "{}", pooler.read("err"));
            listens(port)
        });
        let sessions = TENANTS.map(|name| {
            let command = format!("{name} -h 127.0.0.1 -p {port} -U owner -d postgres -X -At");
            with_libraries(program(services.folder.path(), &command)).start()
        });
        let mut pooled = Self { sessions, sent: [0; 2], pooler, database, services };
        // Waits until all connections exist.
        eventually("its connections", || {
            pooled.query_both("select pg_sleep(0.1);");
            pooled.connections() == connections
        });
        // Both tenants may have waited for a connection, and the pooler works for `shared` then;
        // this request ends that.
        pooled.begin(0, QUERY);
        pooled.wait_for_reply(0);
        pooled
    }

    /// Counts the database's processes that have a client.
    fn connections(&self) -> usize {
        let processes = children(self.database.running.pid()).into_iter();
        let titles =
            processes.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
        titles.filter(|title| title.starts_with("postgres: owner ")).count()
    }

    fn begin(&mut self, tenant: usize, query: &str) {
        writeln!(self.sessions[tenant].input(), "{query}").expect("it reads");
        self.sent[tenant] += 1;
    }

    fn wait_for_reply(&self, tenant: usize) {
        let session = &self.sessions[tenant];
        eventually("a reply", || session.read("out").lines().count() == self.sent[tenant]);
    }

    fn query_both(&mut self, query: &str) {
        (0..2).for_each(|tenant| self.begin(tenant, query));
        (0..2).for_each(|tenant| self.wait_for_reply(tenant));
    }

    /// What the two tenants and `shared` are charged.
    fn charged(&self) -> [u64; 3] {
        let charged = self.services.usage_by_service("cpu_ns");
        ["shop", "blog", "shared"].map(|name| charged[name])
    }

    /// Processor time of the pooler and of the database.
    fn worked(&self) -> u64 {
        let database = children(self.database.running.pid());
        cpu_ns(self.pooler.pid()) + database.into_iter().map(cpu_ns).sum::<u64>()
    }

    fn own(&self, tenant: usize) -> u64 {
        cpu_ns(self.sessions[tenant].pid())
    }

    fn shared_replies(&self) -> u64 {
        self.services.usage_by_service("overlaps").values().sum()
    }

    fn end(self) {
        none_lost(&self.services.report());
        self.sessions.into_iter().for_each(finish_tenant);
        self.pooler.signal(libc::SIGINT);
        self.pooler.finish();
        self.database.end();
    }
}

fn difference(after: [u64; 3], before: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|index| after[index] - before[index])
}

#[test]
fn requests_are_followed_through_the_pooler() {
    let mut pooled = PoolerUsage::start(2);
    let (before, shared_replies, mut worked) = (pooled.charged(), pooled.shared_replies(), [0; 2]);
    for round in 0..40 {
        // One tenant sends three times as many requests.
        let tenant = usize::from(round % 4 == 0);
        let began = pooled.worked() + pooled.own(tenant);
        pooled.begin(tenant, QUERY);
        pooled.wait_for_reply(tenant);
        worked[tenant] += pooled.worked() + pooled.own(tenant) - began;
    }
    let [shop, blog, shared] = difference(pooled.charged(), before);
    for (name, charged, work) in [("shop", shop, worked[0]), ("blog", blog, worked[1])] {
        assert_charged(name, charged, work, worked.iter().sum());
    }
    assert_eq!((shared, pooled.shared_replies()), (0, shared_replies));
    pooled.end();
}

/// After a reply, only the pooler knows to which client its next request belongs.
#[test]
fn queued_requests_are_reported_as_shared() {
    let mut pooled = PoolerUsage::start(1);
    let work = |pooled: &PoolerUsage| pooled.worked() + pooled.own(0) + pooled.own(1);
    let (before, began) = (pooled.charged(), work(&pooled));
    (0..40).for_each(|_| pooled.query_both(QUERY));
    let worked = work(&pooled) - began;
    let charged = difference(pooled.charged(), before);
    assert_charged("all", charged.iter().sum(), worked, worked);
    assert!(pooled.shared_replies() > 0, "{charged:?}");
    let said = pooled.services.request("report").text();
    assert!(said.contains("part of its usage may belong to those services"), "{said}");
    pooled.end();
}
