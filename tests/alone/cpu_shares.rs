//! Services get their shares and caps of processor time, whatever else runs on the processors.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::eventually;
use crate::harness::scheduling::pin;
use crate::harness::service_limits::{cgroup_of, moves, rules, service_cgroups, start};
use crate::harness::services::{ActiveServices, Backend, Consumer, begin, programs};

#[test]
fn cpu_is_shared_by_weight() {
    let services = start(&[("light", "cpu-weight = 100"), ("heavy", "cpu-weight = 400")]);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    // One thread more than there are processors, so that a thread of another process takes time
    // from both services.
    let crowd =
        |name: &str| (0..=processors).map(|_| Consumer::start(&services, name)).collect::<Vec<_>>();
    let mut all = [crowd("light"), crowd("heavy")];
    let burn = |all: &mut [Vec<Consumer>; 2], ms: u32| {
        let send = |one: &mut Consumer| one.send(&format!("burn {ms}"));
        let sent: Vec<Vec<_>> =
            all.iter_mut().map(|crowd| crowd.iter_mut().map(send).collect()).collect();
        [0, 1].map(|side| {
            let replies = all[side].iter().zip(&sent[side]).map(|(one, number)| one.reply(*number));
            replies.map(|ns| ns.parse::<u64>().expect("a time")).sum::<u64>()
        })
    };
    eventually("all are where they belong", || {
        burn(&mut all, 500);
        let is_migrated = |one: &Consumer| cgroup_of(one.0.pid(), "cpu").starts_with("/tollgate/");
        all.iter().flatten().all(is_migrated)
    });
    let [light, heavy] = burn(&mut all, 3000);
    let ratio = heavy as f64 / light as f64;
    assert!(
        (2.5..6.5).contains(&ratio),
        "{heavy} and {light} ns, {ratio} times as much instead of 4"
    );
    let path = cgroup_of(all[1][0].0.pid(), "cpu");
    assert!(path.starts_with("/tollgate/heavy/%2F"), "{path}");
    assert!(services.request("limit").text().contains("migrations between control groups"));
}

/// Control groups alone would give `one` a third of the two processors, that is, two thirds of one:
/// the threads of `many` run on both, so only half of their weight counts on the processor of
/// `one`.
#[test]
fn one_thread_gets_its_share_beside_many() {
    let services = start(&[("one", "cpu-weight = 100"), ("many", "cpu-weight = 100")]);
    let mut one = Consumer::start(&services, "one");
    let mut many: Vec<_> = (0..8).map(|_| Consumer::start(&services, "many")).collect();
    pin(one.0.pid(), 0);
    many.iter().enumerate().for_each(|(number, consumer)| pin(consumer.0.pid(), number % 2));
    let mut share = |ms: u32| {
        let sent: Vec<_> =
            many.iter_mut().map(|consumer| consumer.send(&format!("burn {ms}"))).collect();
        let own: f64 = one.request(&format!("burn {ms}")).parse().expect("a time");
        let replies = many.iter().zip(&sent).map(|(consumer, number)| consumer.reply(*number));
        own / (own + replies.map(|ns| ns.parse::<f64>().expect("a time")).sum::<f64>())
    };
    // Until all threads are in their cgroups and the weight of `one` has been raised.
    share(3000);
    // Other work on the machine lowers the share, so the largest of some measurements counts.
    let share = share(5000);
    assert!(
        share > 0.43,
        "{share} of the processors, of which a half is its share, and a third what it would have"
    );
    // When the weight of the others changes, by a file or by `limit`, the weight of `one` is again
    // the configured one.
    services.request("limit many --cpu-weight 200");
    let weight = |top: &PathBuf| {
        let number = |file: &str| {
            fs::read_to_string(top.join("one").join(file)).ok()?.trim().parse::<u64>().ok()
        };
        number("cpu.weight").or_else(|| number("cpu.shares").map(|shares| shares * 100 / 1024))
    };
    assert_eq!(service_cgroups().iter().find_map(weight), Some(100));
}

#[test]
fn cap_holds_without_contention() {
    let services = start(&[("capped", "cpu-max = \"20%\"")]);
    let mut capped = Consumer::start(&services, "capped");
    capped.request("burn 1000");
    let ns: u64 = capped.request("burn 3000").parse().expect("a time");
    // The kernel also hands out what is left of the slices of a period.
    assert!(ns < 900_000_000, "{ns} ns of 600 ms");
    let cgroup = service_cgroups()
        .into_iter()
        .map(|top| top.join("capped/cpu.stat"))
        .find(|file| file.exists());
    let stat = fs::read_to_string(cgroup.expect("its cgroup")).expect("the kernel's own count");
    let throttled =
        stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")).expect("a count");
    assert!(throttled.parse::<u64>().expect("a number") > 0, "{stat}");
    services.request("limit capped --cpu-max none");
    assert!(service_cgroups().iter().all(|top| !top.join("capped").exists()));
    assert_eq!(services.request("limit --json").json()["services"], serde_json::json!([]));
}

/// In cgroup v2, one of several threads is migrated in a different way from a whole process.
#[test]
fn cap_holds_for_all_threads_of_a_process() {
    let services = start(&[("capped", "cpu-max = \"20%\""), ("other", "cpu-weight = 100")]);
    let home = cgroup_of(std::process::id(), "cpu");
    let mut capped = Consumer::start(&services, "capped");
    let mut is_capped = |when: &str| {
        capped.request("burn 1000 3");
        let ns: u64 = capped.request("burn 3000 3").parse().expect("a time");
        assert!(ns < 1_200_000_000, "{when}: {ns} ns of 600 ms");
    };
    is_capped("at first");
    services.request("limit other --cpu-weight none");
    is_capped("when others' cgroups are gone");
    services.request("limit capped --cpu-max none");
    assert_eq!(cgroup_of(capped.0.pid(), "cpu"), home);
    assert!(service_cgroups().iter().all(|top| !top.join("capped").exists()));
}

/// Requests that take microseconds, and requests that take longer than a slice of the processor.
#[test]
fn cap_holds_for_work_done_on_behalf() {
    let text = rules(&[("shop", "cpu-max = \"20%\"")]);
    let text = format!("{text}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n");
    let services = ActiveServices::start(programs(&["shop", "backend"]), &text);
    let folder = services.folder.path();
    for ms in [0, 5] {
        let backend = Backend::start(folder, "backend", "0", "--threads 1");
        let tenants = [(); 2]
            .map(|()| begin(backend.tenant(folder, "shop", &format!("a {ms} 1000000 1000000"))));
        let moves = || moves(&services, &["moved", "put_off"]);
        let moves_before = moves();
        // Waits for the first migrations and some returns.
        eventually("the moves", || moves() >= moves_before + 10);
        let (before, moves_before, began) =
            (services.usage_by_service("cpu_ns")["shop"], moves(), Instant::now());
        thread::sleep(Duration::from_secs(3));
        let used = services.usage_by_service("cpu_ns")["shop"] - before;
        let allowed = began.elapsed().as_nanos() as u64 / 5;
        let moves = moves() - moves_before;
        eprintln!("{ms} ms each: {used} ns of {allowed}, {moves} moves");
        // The kernel also hands out what is left of the slices of a period.
        assert!(used < allowed / 4 * 5, "{ms} ms each: {used} ns of {allowed}");
        // Far fewer than two migrations for each of thousands of requests.
        assert!(moves < 1500, "{ms} ms each: {moves} moves");
        for running in tenants.into_iter().chain([backend.running]) {
            running.signal(libc::SIGKILL);
            running.finish();
        }
    }
}

#[test]
fn cap_covers_all_descendants_together() {
    let text =
        rules(&[("one", "parent = \"both\""), ("other", "parent = \"both\"\ncpu-max = \"10%\"")]);
    let services = ActiveServices::start(
        programs(&["one", "other"]),
        &format!("[service.both]\ncpu-max = \"40%\"\n\n{text}"),
    );
    let mut both = ["one", "other"].map(|name| Consumer::start(&services, name));
    let burn = |both: &mut [Consumer; 2], ms: u32| {
        let sent = both.each_mut().map(|consumer| consumer.send(&format!("burn {ms}")));
        [0, 1].map(|index| both[index].reply(sent[index]).parse::<u64>().expect("a time"))
    };
    eventually("they are in their cgroups", || {
        burn(&mut both, 500);
        both.iter()
            .all(|consumer| cgroup_of(consumer.0.pid(), "cpu").starts_with("/tollgate/both/"))
    });
    let [one, other] = burn(&mut both, 3000);
    // The kernel also hands out what is left of the slices of a period.
    assert!(one + other < 1_800_000_000, "{one} and {other} ns of 1200 ms");
    assert!(other < 450_000_000, "{other} ns of 300 ms");
    assert!(services.request("limit").text().contains("both"));
}
