//! Real servers that work for two tenants.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::path::Path;

use crate::harness::job::cpu_ns;
use crate::harness::postgres::{self, Postgres};
use crate::harness::report::none_lost;
use crate::harness::service_limits::rules;
use crate::harness::services::{
    ActiveServices, assert_charged, begin, finish_tenant, own_work, program, programs,
};
use crate::harness::web_stack::with_libraries;
use crate::harness::{Running, eventually, job};

/// Rules for two tenants, by their programs, and for a server.
fn of_tenants(server: &str) -> String {
    rules(&[("shop", ""), ("blog", "")]) + "[[rule]]\n" + server
}

/// Returns a port that is free for UDP and TCP.
fn free_port() -> u16 {
    let free = (0..100).find_map(|_| {
        let datagrams = UdpSocket::bind("127.0.0.1:0").ok()?;
        let port = datagrams.local_addr().ok()?.port();
        TcpListener::bind(("127.0.0.1", port)).ok()?;
        Some(port)
    });
    free.expect("a free port")
}

/// Starts a name server that replies for shop.test itself or from the server at the port
/// `upstream`.
fn name_server(folder: &Path, upstream: Option<u16>) -> (Running, u16) {
    for _ in 0..5 {
        let port = free_port();
        let source = upstream.map_or("--address=/shop.test/192.0.2.1".into(), |port| {
            format!("--server=127.0.0.1#{port}")
        });
        let mut command = program(
            folder,
            &format!(
                "dnsmasq --no-daemon --conf-file=/dev/null --no-resolv --no-hosts --user=root \
                --pid-file= --cache-size=0 --listen-address=127.0.0.1 --bind-interfaces \
                --port={port} {source}"
            ),
        );
        command.command.env("LC_ALL", "C");
        let server = command.start();
        eventually("the name server", || {
            server.is_over() || server.read("err").contains("started")
        });
        if !server.is_over() {
            return (server, port);
        }
    }
    panic!("dnsmasq does not start");
}

#[test]
fn dnsmasq_works_for_the_requester() {
    let folder = programs(&["shop", "blog"]);
    job::copy(Path::new("/usr/sbin/dnsmasq"), &folder.path().join("dnsmasq"));
    let services = ActiveServices::start(
        folder,
        &of_tenants("exe = \"FOLDER/dnsmasq\"\nadopts-peer = true\n"),
    );
    let folder = services.folder.path();
    let (upstream, its_port) = name_server(folder, None);
    let (server, port) = name_server(folder, Some(its_port));
    let servers = || cpu_ns(upstream.pid()) + cpu_ns(server.pid());
    let tenant = |name: &str| {
        let tenant =
            program(folder, &format!("{name} resolve 127.0.0.1:{port} shop.test 3000")).start();
        eventually("the tenant", || tenant.read("out").starts_with("ready"));
        tenant
    };
    // Returns, for these tenants' requests, what was charged for the servers' work, and the work
    // itself.
    let charged = |tenants: &[&'static str]| {
        let tenants: Vec<_> = tenants.iter().map(|name| (*name, tenant(name))).collect();
        let before = (services.usage_by_service("cpu_ns"), servers());
        let tenants: Vec<_> =
            tenants.into_iter().map(|(name, tenant)| (name, begin(tenant))).collect();
        let mut own = BTreeMap::<_, u64>::new();
        tenants
            .iter()
            .for_each(|(name, tenant)| *own.entry(*name).or_default() += own_work(tenant));
        let after = (services.usage_by_service("cpu_ns"), servers());
        tenants.into_iter().for_each(|(_, tenant)| finish_tenant(tenant));
        let mut of_servers = own;
        of_servers.iter_mut().for_each(|(name, ns)| *ns = after.0[*name] - before.0[*name] - *ns);
        (of_servers, after.1 - before.1)
    };
    // All work for a single tenant is charged to it.
    for name in ["shop", "blog"] {
        let (of_servers, all) = charged(&[name]);
        assert!(all > 50_000_000, "{all}");
        assert_charged(name, of_servers[name], all, all);
    }
    // At once, shop sends three quarters of the queries. They are compared by their calls, because
    // a query takes less time if the servers do not have to wake up for it. At most one of a
    // query's calls, the wait for it, may be saved.
    let calls = || services.usage_by_service("calls");
    let before = calls();
    let (of_servers, all) = charged(&["shop", "shop", "shop", "blog"]);
    let after = calls();
    assert_charged("both", of_servers.values().sum(), all, all);
    let of = |name: &str| after[name] - before[name];
    let both = of("shop") + of("blog");
    let excess = of("shop").abs_diff(both / 4 * 3);
    assert!(excess < both / 16, "shop made {} calls of {both}", of("shop"));
    none_lost(&services.report());
    for server in [upstream, server] {
        server.signal(libc::SIGTERM);
        server.finish();
    }
}

/// A session of psql, which runs a query on command.
struct Client {
    psql: Running,
    backend: u32,
    said: usize,
}

impl Client {
    /// `host` is the folder of the database's socket.
    fn new(folder: &Path, name: &str, host: &Path) -> Self {
        let command = format!("{name} -h {} -U owner -d postgres -X -At", host.display());
        let psql = with_libraries(program(folder, &command)).start();
        let mut client = Self { psql, backend: 0, said: 0 };
        client.backend = client.query("select pg_backend_pid();").parse().expect("a number");
        client
    }

    fn begin(&mut self, query: &str) {
        writeln!(self.psql.input(), "{query}").expect("it reads");
        self.said += 1;
    }

    /// Runs a query and returns its result of one line.
    fn query(&mut self, query: &str) -> String {
        self.begin(query);
        self.reply()
    }

    fn reply(&self) -> String {
        eventually("a reply", || self.psql.read("out").lines().count() == self.said);
        self.psql.read("out").lines().last().expect("a reply").to_owned()
    }

    fn own_ns(&self) -> u64 {
        cpu_ns(self.psql.pid()) + cpu_ns(self.backend)
    }
}

/// Steps of the two numbers, before and after the work, and what assert_charged() allows for the
/// start and end of processes.
const OF_STEPS: u64 = 23_000_000;

/// Processor time of the process's ended children, in the kernel's steps of 10 ms for each of two
/// numbers.
fn children_ns(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<_> = text.rsplit(") ").next().expect("fields").split(' ').collect();
    // proc_pid_stat(5): cutime and cstime are fields 16 and 17; two fields were cut off.
    fields[13..15].iter().map(|ticks| ticks.parse::<u64>().expect("ticks") * 10_000_000).sum()
}

/// Work that two clients request at the same moment is shared, and beside other tests the server
/// receives their requests too late to distinguish them.
mod alone {
    use super::*;

    #[test]
    fn postgres_parallel_workers_follow_their_query() {
        let postgres_folder = postgres::programs();
        let folder = programs(&[]);
        for name in ["shop", "blog"] {
            job::copy(&postgres_folder.join("psql"), &folder.path().join(name));
        }
        let server = format!(
            "exe = \"{}/postgres\"\non = [\"receive\", \"fork\"]\nadopts-peer = true\n",
            postgres_folder.display()
        );
        let services = ActiveServices::start(folder, &of_tenants(&server));
        let folder = services.folder.path();
        let database = Postgres::start(
            "-c max_parallel_workers_per_gather=2 -c parallel_setup_cost=0 \
            -c parallel_tuple_cost=0 \
             -c min_parallel_table_scan_size=0 -c parallel_leader_participation=off",
        );
        let mut clients = ["shop", "blog"].map(|name| Client::new(folder, name, database.host()));
        clients[0].query(
            "create unlogged table numbers as select generate_series(1, 300000) as n; \
            analyze numbers;",
        );
        clients[0].said += 1;
        clients[0].reply();
        let query = "select sum(sqrt(a.n)) from numbers a, generate_series(1, 10) b;";
        let read = |clients: &[Client; 2]| {
            let own = clients.each_ref().map(Client::own_ns);
            (services.usage_by_service("cpu_ns"), own, children_ns(database.running.pid()))
        };
        for (index, name) in ["shop", "blog"].into_iter().enumerate() {
            let before = read(&clients);
            for _ in 0..4 {
                clients[index].query(query);
            }
            let after = read(&clients);
            let workers = after.2 - before.2;
            // Enough work that a fiftieth of it is more than the steps.
            assert!(workers > 10 * OF_STEPS, "{name}: {workers}");
            let charged = after.0[name] - before.0[name];
            let work = workers + after.1[index] - before.1[index];
            assert!(
                charged.abs_diff(work) <= work / 50 + OF_STEPS,
                "{name}: {charged} ns were charged of {work} ns"
            );
        }
        // Both at once: workers that both tenants requested at the same moment are shared.
        let before = read(&clients);
        for _ in 0..20 {
            clients.iter_mut().for_each(|client| client.begin(query));
        }
        clients.iter().for_each(|client| drop(client.reply()));
        let after = read(&clients);
        let work =
            after.2 - before.2 + (0..2).map(|index| after.1[index] - before.1[index]).sum::<u64>();
        let [shop, blog, shared] =
            ["shop", "blog", "shared"].map(|name| after.0[name] - before.0[name]);
        let charged = shop + blog + shared;
        assert!(
            charged.abs_diff(work) <= work / 50 + OF_STEPS,
            "{shop}, {blog} and {shared} ns of {work} ns"
        );
        assert!(shop.min(blog) > work / 4, "{shop}, {blog} and {shared} ns of {work} ns");
        clients.into_iter().for_each(|client| finish_tenant(client.psql));
        database.end();
    }
}
