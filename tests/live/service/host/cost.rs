//! The cost of services for a web server, as in the paper's figure 10, and for a program that sends
//! requests to the daemon itself.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use kernel::floor::{Floor, FloorProgram};
use kernel::gate_programs::GateHook;
use kernel::wire;
use serde_json::{Value, json};
use stats::interval::{Interval, median_interval};
use stats::order::Quads;

use crate::harness::bpf::programs_ns;
use crate::harness::job::folder;
use crate::harness::report::none_lost;
use crate::harness::services::{ActiveServices, programs};
use crate::harness::web_stack::{Sockets, WebServer, WebStack};

/// The numbers of connections in that figure.
const CONNECTIONS: [usize; 6] = [1, 10, 20, 40, 80, 160];
const BLOCK_MS: u64 = 400;
const QUADS: usize = 15;

const NOTHING: usize = 0;
const NOTHING_AGAIN: usize = 1;
const FLOOR: usize = 2;
const SERVICES: usize = 3;
const ARMS: [(usize, &str); 3] =
    [(NOTHING_AGAIN, "nothing, again"), (FLOOR, "empty programs"), (SERVICES, "services")];

fn interval(samples: &[f64]) -> Interval {
    median_interval(samples, 0.95).expect("samples")
}

#[test]
#[ignore = "takes minutes: make bench"]
fn web_server_throughput() {
    let site = WebStack::start(WebServer::Nginx, Sockets::Unix, 2, |_| ());
    let hooks = GateHook::used(wire::SERVICE);
    let mut quads = Quads::new(ARMS.len() + 1, 1);
    let mut parts = ARMS.map(|_| CONNECTIONS.map(|_| Vec::new()));
    for _ in 0..QUADS {
        // Replies in this quad, by arm and connections.
        let mut replies = [[0.0; CONNECTIONS.len()]; ARMS.len() + 1];
        for arm in quads.next_quad() {
            let _floor = (arm == FLOOR)
                .then(|| Floor::attach(&hooks, FloorProgram::Nothing).expect("they load"));
            let services =
                (arm == SERVICES).then(|| ActiveServices::start(folder(), &site.rules()));
            for (index, connections) in CONNECTIONS.into_iter().enumerate() {
                replies[arm][index] += site.pages(connections, BLOCK_MS) as f64;
            }
            if let Some(services) = services {
                none_lost(&services.report());
                services.daemon.signal(libc::SIGTERM);
                services.end();
            }
        }
        for (parts, (arm, _)) in parts.iter_mut().zip(ARMS) {
            for (index, parts) in parts.iter_mut().enumerate() {
                parts.push(100.0 * (replies[arm][index] / replies[NOTHING][index] - 1.0));
            }
        }
    }
    eprintln!(
        "\nrequests a second of nginx for a page, against nothing on, in %, with 95 % intervals"
    );
    for (parts, (_, name)) in parts.iter().zip(ARMS) {
        for (parts, connections) in parts.iter().zip(CONNECTIONS) {
            let Interval { estimate, low, high, .. } = interval(parts);
            eprintln!(
                "  {name:<16} {connections:>4} connections: {estimate:>6.1} [{low:.1}, {high:.1}]"
            );
        }
    }
    // The cost is only printed; the test checks that the servers worked at all.
    assert!(parts.iter().flatten().flatten().all(|part| *part > -50.0), "{parts:?}");
}

/// Sends a request over a new connection, as crates/libtollgate does.
fn request_us(services: &ActiveServices, request: &Value) -> f64 {
    let began = Instant::now();
    let mut stream = UnixStream::connect(services.path("control")).expect("a daemon");
    stream.write_all(format!("{request}\n").as_bytes()).expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it replies");
    let took = began.elapsed().as_secs_f64() * 1e6;
    assert!(line.contains("\"ok\""), "{line}");
    took
}

#[test]
#[ignore = "for its results: make bench"]
fn explicit_binding() {
    let services = ActiveServices::start(folder(), "[service.shop]\n[service.blog]\n");
    // SAFETY: a plain query.
    let own = json!({"own-thread": unsafe { libc::gettid() }});
    let assign = |service| json!({"ask-services": "assign", "who": own, "service": service});
    let change = json!({"service": "shop", "cpu_weight": null, "cpu_max": null, "memory_max": null,
        "tasks_max": null, "sockets_max": {"to": 100}, "connections_max": null,
        "network_max": null, "beyond": null});
    let requests = [
        ("classify a thread", assign("shop")),
        ("the same as another", assign("blog")),
        ("query for whom it works", json!({"ask-services": "explain", "who": own})),
        ("query limits", json!({"ask-services": "limit", "change": null})),
        ("change a limit", json!({"ask-services": "limit", "change": change})),
    ];
    let mut took = requests.each_ref().map(|_| Vec::new());
    for _ in 0..100 {
        for (took, (_, request)) in took.iter_mut().zip(&requests) {
            took.push(request_us(&services, request));
        }
    }
    eprintln!("\nexplicit requests, in us, with 95 % intervals");
    for (took, (name, _)) in took.iter().zip(&requests) {
        let Interval { estimate, low, high, .. } = interval(took);
        eprintln!("  {name:<24} {estimate:>8.1} [{low:.1}, {high:.1}]");
    }
}

/// While the returned descriptor is open, the kernel measures the time of each BPF program, at the
/// cost of two clock readings per run.
fn counting() -> OwnedFd {
    // include/uapi/linux/bpf.h: BPF_ENABLE_STATS, of BPF_STATS_RUN_TIME.
    const ENABLE_STATS: libc::c_int = 32;
    let what = 0_u32;
    // SAFETY: the first member of `union bpf_attr` that this command reads, and its size.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, ENABLE_STATS, &raw const what, size_of_val(&what)) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

#[test]
#[ignore = "for its results: make bench"]
fn fork_by_bpf_stats() {
    const FORKS: u64 = 15_000;
    const RUNS: usize = 11;
    let rules = "[service.shop]\n[[rule]]\nexe = \"FOLDER/shop\"\nbelongs-to = \"shop\"\n";
    let services = ActiveServices::start(programs(&["shop"]), rules);
    let _counting = counting();
    let (mut each, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (before, began) = (programs_ns(services.daemon.pid()), Instant::now());
        services.program(&format!("shop fork {FORKS}")).finish().success();
        let (all, taken) =
            (began.elapsed().as_nanos() as f64, programs_ns(services.daemon.pid()) - before);
        each.push(taken as f64 / FORKS as f64);
        parts.push(100.0 * taken as f64 / all);
    }
    eprintln!(
        "\na fork with its child's whole life, by the kernel's own count, with 95 % intervals"
    );
    for (name, samples) in [("ns in services' programs", &each), ("% of its time", &parts)] {
        let Interval { estimate, low, high, .. } = interval(samples);
        eprintln!("  {name:<24} {estimate:>8.1} [{low:.1}, {high:.1}]");
    }
    // The times are only printed; the test checks that they were measured at all.
    assert!(each.iter().all(|ns| *ns > 100.0), "{each:?}");
}
