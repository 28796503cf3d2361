//! Live usage of services: on a terminal, and for Prometheus.

use crate::harness::eventually;
use crate::harness::metrics::Metrics;
use crate::harness::pty::Terminal;
use crate::harness::services::{ActiveServices, Consumer, programs};

const SHOP: &str = "[service.all]\n[service.shop]\nparent = \"all\"\nsockets-max = 2\n\
                    [[rule]]\nexe = \"FOLDER/shop\"\nbelongs-to = \"shop\"\n";

#[test]
fn top_is_live_until_q() {
    let services = ActiveServices::start(programs(&["shop"]), SHOP);
    let mut shop = Consumer::start(&services, "shop");
    let mut terminal = Terminal::new();
    let mut job = services.client_job("top").on(&terminal);
    job.command.env("TERM", "xterm");
    let top = job.start();
    let row =
        |screen: &str| screen.lines().find(|line| line.contains("    shop ")).map(str::to_owned);
    let cell = |screen: &str, column: usize| {
        row(screen)?.split_whitespace().nth(column).map(str::to_owned)
    };
    let seen = terminal.shows("its row", |screen| row(screen).is_some());
    for words in ["tollgate service", "4 services, 1 rule", "service", "cpu %", "  all "] {
        assert!(seen.contains(words), "{words} is not in\n{seen}");
    }
    shop.request("threads 3");
    terminal.shows("its threads", |screen| row(screen).is_some_and(|row| row.ends_with(" 4")));
    // In percent of one processor, for which it may have to wait.
    shop.send("burn 60000");
    let has_worked = |screen: &str| {
        cell(screen, 1).and_then(|cell| cell.parse().ok()).is_some_and(|cpu: f64| cpu > 10.0)
    };
    let seen = terminal.shows("its work", has_worked);
    println!("{seen}");
    terminal.press(b"q");
    assert!(terminal.read_until("\x1b[?1049l").contains("\x1b[?1049l"));
    top.finish().success();
}

#[test]
fn top_ends_with_its_terminal() {
    let services = ActiveServices::start(programs(&["shop"]), SHOP);
    let mut terminal = Terminal::new();
    let mut job = services.client_job("top").on(&terminal);
    job.command.env("TERM", "xterm");
    let top = job.start();
    terminal.shows("its head", |screen| screen.contains("tollgate service"));
    terminal.hang_up();
    eventually("its end", || top.is_over());
    top.finish().success();
}

#[test]
fn prometheus_matches_the_report() {
    let folder = programs(&["shop"]);
    let mut job = ActiveServices::job(folder.path());
    job.command.args(["--metrics", "127.0.0.1:0"]);
    let services = ActiveServices::start_by(job, folder, SHOP);
    let metrics = Metrics::of(&services.daemon);
    let value = |name: &str| {
        metrics.value(|series| series == format!("tollgate_service_{name}{{service=\"shop\"}}"))
    };
    let mut shop = Consumer::start(&services, "shop");
    shop.request_counts("sockets 3");
    shop.request("burn 200");
    assert_eq!(shop.request_counts("fork 2"), (2, 0));
    // The page is refreshed periodically.
    let reported = |name: &str| services.usage_by_service(name)["shop"] as f64;
    eventually("its processes", || value("processes") == Some(3.0));
    for (name, of, unit) in [
        ("threads", "threads", 1.0),
        ("sockets", "sockets", 1.0),
        ("refused_total", "refused", 1.0),
        ("cpu_seconds_total", "cpu_ns", 1e9),
        ("calls_total", "calls", 1.0),
        ("minor_faults_total", "minor_faults", 1.0),
    ] {
        // The numbers do not change while all threads of the service sleep.
        eventually(name, || value(name) == Some(reported(of) / unit));
    }
    assert_eq!((value("sockets"), value("refused_total")), (Some(2.0), Some(1.0)));
    assert!(
        metrics.value(|series| series == "tollgate_service_kernel_cpu_seconds_total").is_some()
    );
}
