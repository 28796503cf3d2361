//! A noisy neighbour: the service that a quiet tenant gets on shared servers without limits, on
//! shared servers with Tollgate's limits, and on servers of its own (the paper's baseline,
//! replicated back ends).

use std::fmt;

use serde_json::Value;

use crate::harness::cgroup::{OutweighingCgroup, TestCgroup};
use crate::harness::job::folder;
use crate::harness::services::ActiveServices;
use crate::harness::web_stack::{Load, Sockets, TENANTS, WebServer, WebStack};

/// Enough for all concurrent requests: requests that queue in front of the servers belong to no
/// service.
const WORKERS: usize = 24;
const QUIET: Load = Load { connections: 1, ms: 3000, work: [3, 5_000] };
const NOISY: Load = Load { connections: 16, ms: QUIET.ms + WARM_UP.ms + 500, work: [10, 100_000] };
/// The same in all configurations: when services become contended, Tollgate first migrates threads
/// and balances shares.
const WARM_UP: Load = Load { ms: 1500, ..QUIET };

/// Other work on the machine may disturb one of the rounds.
const ROUNDS: usize = 3;

#[derive(Clone, Copy)]
struct TenantRates {
    requests: u64,
    p50_us: u64,
    p99_us: u64,
    /// Requests of the noisy tenant in the same time.
    noise: u64,
}

impl fmt::Display for TenantRates {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let [p50, p99] = [self.p50_us, self.p99_us].map(|us| us as f64 / 1e3);
        write!(out, "{:>8} {p50:>10.1} {p99:>10.1} {:>10}", self.requests, self.noise)
    }
}

fn measure_tenants(quiet: &WebStack, noisy: Option<&WebStack>) -> TenantRates {
    let noise = noisy.map(|site| site.clients(1, &NOISY));
    quiet.clients(0, &WARM_UP).finish().success();
    let said = quiet.clients(0, &QUIET).finish().success().json();
    let noise = noise.map(|noise| noise.finish().success().json());
    let number = |said: &Value, name: &str| said[name].as_u64().expect("a number");
    TenantRates {
        requests: number(&said, "requests"),
        p50_us: number(&said, "p50_us"),
        p99_us: number(&said, "p99_us"),
        noise: noise.map_or(0, |said| number(&said, "requests")),
    }
}

/// The median of each number.
fn median(mut rounds: [TenantRates; ROUNDS]) -> TenantRates {
    let mut of = |number: fn(&TenantRates) -> u64| {
        rounds.sort_by_key(number);
        number(&rounds[ROUNDS / 2])
    };
    TenantRates {
        requests: of(|one| one.requests),
        p50_us: of(|one| one.p50_us),
        p99_us: of(|one| one.p99_us),
        noise: of(|one| one.noise),
    }
}

#[test]
fn quiet_tenant_is_served_beside_noisy_one() {
    // Without it, other programs would take different shares of the processors in each
    // configuration.
    let _outweighing = OutweighingCgroup::start();
    let mut services = None;
    let shared = WebStack::start(WebServer::Nginx, Sockets::Unix, WORKERS, |rules| {
        services = Some(ActiveServices::start(folder(), rules));
    });
    let services = services.expect("it was started");
    let own = [(); 2].map(|()| WebStack::start(WebServer::Nginx, Sockets::Unix, WORKERS, |_| ()));
    let cgroups = [(); 2].map(|()| TestCgroup::of("cpu"));
    for (site, cgroup) in own.iter().zip(&cgroups) {
        site.processes().into_iter().for_each(|pid| cgroup.add(pid));
    }
    let weigh = |weight: &str| {
        for tenant in TENANTS {
            services.request(&format!("limit {tenant} --cpu-weight {weight}"));
        }
    };
    // Starts all processes, and opens all connections.
    for (quiet, noisy) in [(&shared, &shared), (&own[0], &own[1])] {
        measure_tenants(quiet, Some(noisy));
    }
    let alone = measure_tenants(&shared, None);
    let mut limits = String::new();
    let rounds = [(); ROUNDS].map(|()| {
        let without = measure_tenants(&shared, Some(&shared));
        weigh("100");
        let with = measure_tenants(&shared, Some(&shared));
        limits = services.request("limit").text();
        weigh("none");
        [without, with, measure_tenants(&own[0], Some(&own[1]))]
    });
    let [without, with, replicated] = [0, 1, 2].map(|arm| median(rounds.map(|round| round[arm])));
    drop(own);

    eprintln!(
        "\na quiet tenant beside a noisy one\n  {:<44}{:>8} {:>10} {:>10} {:>10}",
        "", "requests", "p50, ms", "p99, ms", "the other"
    );
    let p99 = |arm: usize| {
        let [least, most] = [
            rounds.iter().map(|round| round[arm].p99_us).min(),
            rounds.iter().map(|round| round[arm].p99_us).max(),
        ];
        format!("{:.1} to {:.1}", least.unwrap_or(0) as f64 / 1e3, most.unwrap_or(0) as f64 / 1e3)
    };
    eprintln!(
        "  p99 of {ROUNDS} rounds, ms: with limits {}, on servers of its own {}",
        p99(1),
        p99(2)
    );
    let rows = [
        ("alone", alone),
        ("servers shared", without),
        ("servers shared, with Tollgate's limits", with),
        ("servers of its own, in control groups", replicated),
    ];
    rows.iter().for_each(|(name, fared)| eprintln!("  {name:<44}{fared}"));
    eprintln!("  tollgate service limit says:\n{limits}");
    let (own, other) = (with.requests, replicated.requests);
    assert!(10 * own > 7 * other, "{own} requests, and {other} on servers of its own");
    let (own, other) = (with.p99_us, replicated.p99_us);
    assert!(own < 3 * other, "99 of 100 in {own} us, and in {other} us on servers of its own");
    // Beside 16 other connections, the quiet tenant gets about a tenth of what it gets alone.
    assert!(
        with.requests > 2 * without.requests,
        "{} and {} requests",
        with.requests,
        without.requests
    );
    assert!(
        3 * with.p99_us < 2 * without.p99_us,
        "99 of 100 in {} and {} us",
        with.p99_us,
        without.p99_us
    );
}
