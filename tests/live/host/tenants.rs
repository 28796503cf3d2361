//! The experiment of the paper on virtual services, with the servers as Debian has them: two tenants share a web server,
//! PHP and a database. What each is charged is compared with what the programs themselves have counted. `scripts/demo-services`
//! shows what these tests tell.

use crate::harness::job::folder;
use crate::harness::report::none_lost;
use crate::harness::services::InForce;
use crate::harness::site::{Each, Load, Site, Sockets, TENANTS, Used, Web};

/// One asks for much of the database, the other one for much of PHP, over so many connections that the web server has
/// requests of both at once.
const LOADS: [Load; 2] = [
    Load { connections: 8, ms: 1500, work: [1, 160_000] },
    Load { connections: 8, ms: 1500, work: [3, 5_000] },
];
/// Each serves both.
const WORKERS: usize = 3;
/// So that processes and connections are there.
const WARM_UP: [Load; 2] =
    [Load { connections: 4, ms: 200, work: [1, 1000] }, Load { connections: 4, ms: 200, work: [1, 1000] }];
/// Of each tenant's, to tell 2 % from chance.
const ENOUGH_NS: u64 = 300_000_000;

pub fn difference(after: Each, before: Each) -> Each {
    std::array::from_fn(|tenant| after[tenant] - before[tenant])
}

/// How much of all work was charged to the wrong one, or to nobody.
pub fn misbilled(charged: Each, worked: Each) -> f64 {
    let wrong: u64 = (0..2).map(|tenant| charged[tenant].abs_diff(worked[tenant])).sum();
    wrong as f64 / worked.iter().sum::<u64>() as f64
}

/// Each gets its part of it.
pub fn split(all: u64, by: Each) -> Each {
    by.map(|part| (all as f64 * part as f64 / by.iter().sum::<u64>() as f64) as u64)
}

pub fn charged(services: &InForce) -> Each {
    let figures = services.figures("cpu_ns");
    TENANTS.map(|tenant| figures[tenant])
}

/// What the programs have worked for each tenant: web server, PHP and database.
struct Worked([Each; 3]);

impl Worked {
    fn between(before: &Used, after: &Used) -> Self {
        let requests = difference(after.requests, before.requests);
        // It does the same at each request.
        let web = split(after.web - before.web, requests);
        let [php, database] = [(after.php, before.php), (after.database, before.database)];
        Self([web, difference(php.0, php.1), difference(database.0, database.1)])
    }

    fn sum(&self) -> Each {
        std::array::from_fn(|tenant| self.0.iter().map(|each| each[tenant]).sum())
    }

    /// What can be said without knowing whose work it is: the sum, split by requests.
    fn by_requests(&self, requests: Each) -> Each {
        split(self.sum().iter().sum(), requests)
    }

    fn print(&self, what: &str, charged: Each, requests: Each) {
        let line = |what: &str, each: Each| {
            let [a, b] = each.map(|ns| ns as f64 / 1e6);
            eprintln!("  {what:<44}{a:>10.1}{b:>10.1}{:>10.1}", a + b);
        };
        let wrong = |charged| format!("{:.2} % are misbilled", misbilled(charged, self.sum()) * 100.0);
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
            "  control groups: web server {web:.1}, PHP {php:.1}, database {database:.1}; of a and b they know nothing"
        );
        line("  their sum, split by requests", self.by_requests(requests));
        eprintln!("    {}", wrong(self.by_requests(requests)));
    }
}

enum Daemon {
    First,
    /// When the programs, and their connections, are there.
    Later,
}

#[track_caller]
fn are_charged(what: &str, web: Web, sockets: Sockets, daemon: Daemon) {
    let mut services = None;
    let site = Site::start(web, sockets, WORKERS, |rules| {
        services = matches!(daemon, Daemon::First).then(|| InForce::start(folder(), rules));
    });
    site.ask(&WARM_UP);
    let services = services.unwrap_or_else(|| InForce::start(folder(), &site.rules()));
    let (before, charged_before) = (site.used(), charged(&services));
    let (after, worked) = loop {
        site.ask(&LOADS);
        let after = site.used();
        let worked = Worked::between(&before, &after);
        if worked.sum().iter().all(|ns| *ns >= ENOUGH_NS) {
            break (after, worked);
        }
    };
    let charged = difference(charged(&services), charged_before);
    let requests = difference(after.requests, before.requests);
    worked.print(what, charged, requests);
    eprintln!("  tollgate service report says:\n{}", services.ask("report").text());
    assert!(misbilled(charged, worked.sum()) <= 0.02, "{charged:?} ns were charged of {:?} ns", worked.0);
    // A load that tells nothing of who works for whom would be no experiment.
    assert!(misbilled(worked.by_requests(requests), worked.sum()) > 0.1, "{:?} ns, {requests:?}", worked.0);
    none_lost(&services.report());
}

#[test]
fn of_nginx_over_unix_sockets() {
    are_charged("nginx, FastCGI and PostgreSQL over Unix sockets", Web::Nginx, Sockets::Unix, Daemon::First);
}

#[test]
fn of_nginx_over_tcp() {
    are_charged(
        "nginx, FastCGI and PostgreSQL over TCP, all there before Tollgate",
        Web::Nginx,
        Sockets::Tcp,
        Daemon::Later,
    );
}

#[test]
fn of_apache_over_unix_sockets() {
    are_charged(
        "Apache (prefork), FastCGI and PostgreSQL over Unix sockets, all there before Tollgate",
        Web::Apache,
        Sockets::Unix,
        Daemon::Later,
    );
}

#[test]
fn of_apache_over_tcp() {
    are_charged(
        "Apache (prefork), FastCGI and PostgreSQL over TCP",
        Web::Apache,
        Sockets::Tcp,
        Daemon::First,
    );
}
