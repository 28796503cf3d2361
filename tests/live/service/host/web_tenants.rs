//! The experiment of the paper on virtual services, with Debian's servers: two tenants share a web
//! server, PHP and a database. Each tenant's charges are compared with the programs' own accounts.
//! `scripts/demo-services` shows the output of these tests.

use crate::harness::job::folder;
use crate::harness::report::none_lost;
use crate::harness::services::ActiveServices;
use crate::harness::web_stack::{
    Load, PerTenant, Sockets, StackUsage, TENANTS, WebServer, WebStack,
};

/// One tenant needs much work by the database, the other much by PHP, over so many connections that
/// the web server has requests of both at the same time.
const LOADS: [Load; 2] = [
    Load { connections: 8, ms: 1500, work: [1, 160_000] },
    Load { connections: 8, ms: 1500, work: [3, 5_000] },
];
/// Each worker serves both tenants.
const WORKERS: usize = 3;
/// Starts processes and opens connections.
const WARM_UP: [Load; 2] = [
    Load { connections: 4, ms: 200, work: [1, 1000] },
    Load { connections: 4, ms: 200, work: [1, 1000] },
];
/// Minimum usage of each tenant, so that 2 % of it is more than noise.
const MIN_USAGE_NS: u64 = 300_000_000;

pub fn difference(after: PerTenant, before: PerTenant) -> PerTenant {
    std::array::from_fn(|tenant| after[tenant] - before[tenant])
}

/// The fraction of all work that was charged to the wrong tenant or to none.
pub fn misbilled(charged: PerTenant, worked: PerTenant) -> f64 {
    let wrong: u64 = (0..2).map(|tenant| charged[tenant].abs_diff(worked[tenant])).sum();
    wrong as f64 / worked.iter().sum::<u64>() as f64
}

/// Splits a total in proportion.
pub fn split(all: u64, by: PerTenant) -> PerTenant {
    by.map(|part| (all as f64 * part as f64 / by.iter().sum::<u64>() as f64) as u64)
}

pub fn charged(services: &ActiveServices) -> PerTenant {
    let charged = services.usage_by_service("cpu_ns");
    TENANTS.map(|tenant| charged[tenant])
}

/// Work of the programs for each tenant: web server, PHP and database.
struct TenantWorkNs([PerTenant; 3]);

impl TenantWorkNs {
    fn between(before: &StackUsage, after: &StackUsage) -> Self {
        let requests = difference(after.requests, before.requests);
        // The web server does the same work for each request.
        let web = split(after.web - before.web, requests);
        let [php, database] = [(after.php, before.php), (after.database, before.database)];
        Self([web, difference(php.0, php.1), difference(database.0, database.1)])
    }

    fn sum(&self) -> PerTenant {
        std::array::from_fn(|tenant| self.0.iter().map(|each| each[tenant]).sum())
    }

    /// The estimate without knowledge of the tenants: the sum, split by requests.
    fn by_requests(&self, requests: PerTenant) -> PerTenant {
        split(self.sum().iter().sum(), requests)
    }

    fn print(&self, what: &str, charged: PerTenant, requests: PerTenant) {
        let line = |what: &str, each: PerTenant| {
            let [a, b] = each.map(|ns| ns as f64 / 1e6);
            eprintln!("  {what:<44}{a:>10.1}{b:>10.1}{:>10.1}", a + b);
        };
        let wrong =
            |charged| format!("{:.2} % are misbilled", misbilled(charged, self.sum()) * 100.0);
        eprintln!("\n{what}\n  {:<44}{:>10}{:>10}{:>10}", "processor time in ms", "a", "b", "both");
        line("worked, as the programs have counted", self.sum());
        ["the web server (its sum, by requests)", "PHP", "the database"]
            .into_iter()
            .zip(self.0)
            .for_each(|(program, each)| line(&format!("  {program}"), each));
        line("charged by Tollgate", charged);
        eprintln!("    {}", wrong(charged));
        let [web, php, database] = self.0.map(|each| each.iter().sum::<u64>() as f64 / 1e6);
        eprintln!(
            "  control groups: web server {web:.1}, PHP {php:.1}, database {database:.1}; of a \
            and b they know nothing"
        );
        line("  their sum, split by requests", self.by_requests(requests));
        eprintln!("    {}", wrong(self.by_requests(requests)));
    }
}

enum DaemonStart {
    First,
    /// After the programs and their connections exist.
    Later,
}

#[track_caller]
fn are_charged(what: &str, web: WebServer, sockets: Sockets, daemon: DaemonStart) {
    let mut services = None;
    let site = WebStack::start(web, sockets, WORKERS, |rules| {
        services =
            matches!(daemon, DaemonStart::First).then(|| ActiveServices::start(folder(), rules));
    });
    site.run_clients(&WARM_UP);
    let services = services.unwrap_or_else(|| ActiveServices::start(folder(), &site.rules()));
    let (before, charged_before) = (site.usage(), charged(&services));
    let (after, worked) = loop {
        site.run_clients(&LOADS);
        let after = site.usage();
        let worked = TenantWorkNs::between(&before, &after);
        if worked.sum().iter().all(|ns| *ns >= MIN_USAGE_NS) {
            break (after, worked);
        }
    };
    let charged = difference(charged(&services), charged_before);
    let requests = difference(after.requests, before.requests);
    worked.print(what, charged, requests);
    eprintln!("  tollgate service report says:\n{}", services.request("report").text());
    assert!(
        misbilled(charged, worked.sum()) <= 0.02,
        "{charged:?} ns were charged of {:?} ns",
        worked.0
    );
    // The load must be one for which a split by requests is clearly wrong.
    assert!(
        misbilled(worked.by_requests(requests), worked.sum()) > 0.1,
        "{:?} ns, {requests:?}",
        worked.0
    );
    none_lost(&services.report());
}

#[test]
fn nginx_unix_sockets() {
    are_charged(
        "nginx, FastCGI and PostgreSQL over Unix sockets",
        WebServer::Nginx,
        Sockets::Unix,
        DaemonStart::First,
    );
}

#[test]
fn nginx_tcp() {
    are_charged(
        "nginx, FastCGI and PostgreSQL over TCP, all there before Tollgate",
        WebServer::Nginx,
        Sockets::Tcp,
        DaemonStart::Later,
    );
}

#[test]
fn apache_unix_sockets() {
    are_charged(
        "Apache (prefork), FastCGI and PostgreSQL over Unix sockets, all there before Tollgate",
        WebServer::Apache,
        Sockets::Unix,
        DaemonStart::Later,
    );
}

#[test]
fn apache_tcp() {
    are_charged(
        "Apache (prefork), FastCGI and PostgreSQL over TCP",
        WebServer::Apache,
        Sockets::Tcp,
        DaemonStart::First,
    );
}
