//! Limits of services: what they may use, what becomes of whoever would have more, and where their threads are.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::limits::{competitors, end, group_of, groups, limit, rules, start};
use crate::harness::services::{Backend, Consumer, InForce, begin, is_emulated, over, programs};
use crate::harness::{Job, eventually};

#[test]
fn processors_are_shared_by_weight() {
    let services = start(&[("light", "cpu-weight = 100"), ("heavy", "cpu-weight = 400")]);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    // One more each, so that who comes from elsewhere takes from both.
    let crowd = |name: &str| (0..=processors).map(|_| Consumer::start(&services, name)).collect::<Vec<_>>();
    let mut all = [crowd("light"), crowd("heavy")];
    let burn = |all: &mut [Vec<Consumer>; 2], ms: u32| {
        let told = |one: &mut Consumer| one.tell(&format!("burn {ms}"));
        let told: Vec<Vec<_>> = all.iter_mut().map(|crowd| crowd.iter_mut().map(told).collect()).collect();
        [0, 1].map(|side| {
            let answers = all[side].iter().zip(&told[side]).map(|(one, number)| one.answer(*number));
            answers.map(|ns| ns.parse::<u64>().expect("a time")).sum::<u64>()
        })
    };
    eventually("all are where they belong", || {
        burn(&mut all, 500);
        let is_placed = |one: &Consumer| group_of(one.0.pid(), "cpu").starts_with("/tollgate/");
        all.iter().flatten().all(is_placed)
    });
    let [light, heavy] = burn(&mut all, 3000);
    let ratio = heavy as f64 / light as f64;
    assert!((2.5..6.5).contains(&ratio), "{heavy} and {light} ns, {ratio} times as much instead of 4");
    let path = group_of(all[1][0].0.pid(), "cpu");
    assert!(path.starts_with("/tollgate/heavy/%2F"), "{path}");
    assert!(services.ask("limit").text().contains("moves between control groups"));
}

/// Keeps a process on one processor.
fn pin(pid: u32, processor: usize) {
    // SAFETY: a valid set of processors.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(pid as i32, size_of::<libc::cpu_set_t>(), &set)
    };
    assert_eq!(pinned, 0, "processor {processor} is there");
}

/// Control groups alone give it two thirds of a processor: the others, who are on two, count for half there.
#[test]
fn one_thread_has_its_share_of_the_machine_beside_many() {
    let services = start(&[("one", "cpu-weight = 100"), ("many", "cpu-weight = 100")]);
    let mut one = Consumer::start(&services, "one");
    let mut many: Vec<_> = (0..8).map(|_| Consumer::start(&services, "many")).collect();
    pin(one.0.pid(), 0);
    many.iter().enumerate().for_each(|(number, consumer)| pin(consumer.0.pid(), number % 2));
    let mut share = |ms: u32| {
        let told: Vec<_> = many.iter_mut().map(|consumer| consumer.tell(&format!("burn {ms}"))).collect();
        let own: f64 = one.ask(&format!("burn {ms}")).parse().expect("a time");
        let answers = many.iter().zip(&told).map(|(consumer, number)| consumer.answer(*number));
        own / (own + answers.map(|ns| ns.parse::<f64>().expect("a time")).sum::<f64>())
    };
    // Until all are in their groups, and it counts for more.
    share(3000);
    let share = share(5000);
    assert!(
        share > 0.43,
        "{share} of the processors, of which a half is its share, and a third what it would have"
    );
    // As others' file, or `limit`, has it, as soon as that changes.
    services.ask("limit many --cpu-weight 200");
    let weight = |top: &PathBuf| {
        let number =
            |file: &str| fs::read_to_string(top.join("one").join(file)).ok()?.trim().parse::<u64>().ok();
        number("cpu.weight").or_else(|| number("cpu.shares").map(|shares| shares * 100 / 1024))
    };
    assert_eq!(groups().iter().find_map(weight), Some(100));
}

#[test]
fn a_cap_holds_also_where_nobody_competes() {
    let services = start(&[("capped", "cpu-max = \"20%\"")]);
    let mut capped = Consumer::start(&services, "capped");
    capped.ask("burn 1000");
    let ns: u64 = capped.ask("burn 3000").parse().expect("a time");
    // The kernel hands out what is left of a period's slices.
    assert!(ns < 900_000_000, "{ns} ns of 600 ms");
    let group = groups().into_iter().map(|top| top.join("capped/cpu.stat")).find(|file| file.exists());
    let told = fs::read_to_string(group.expect("its group")).expect("the kernel's own count");
    let throttled = told.lines().find_map(|line| line.strip_prefix("nr_throttled ")).expect("a count");
    assert!(throttled.parse::<u64>().expect("a number") > 0, "{told}");
    services.ask("limit capped --cpu-max none");
    assert!(groups().iter().all(|top| !top.join("capped").exists()));
    assert_eq!(services.ask("limit --json").json()["services"], serde_json::json!([]));
}

/// Of the second version, a thread of several is put elsewhere in another way than a whole process.
#[test]
fn a_cap_holds_for_all_threads_of_a_process() {
    let services = start(&[("capped", "cpu-max = \"20%\""), ("other", "cpu-weight = 100")]);
    let home = group_of(std::process::id(), "cpu");
    let mut capped = Consumer::start(&services, "capped");
    let mut is_capped = |when: &str| {
        capped.ask("burn 1000 3");
        let ns: u64 = capped.ask("burn 3000 3").parse().expect("a time");
        assert!(ns < 1_200_000_000, "{when}: {ns} ns of 600 ms");
    };
    is_capped("at first");
    services.ask("limit other --cpu-weight none");
    is_capped("when others' groups are gone");
    services.ask("limit capped --cpu-max none");
    assert_eq!(group_of(capped.0.pid(), "cpu"), home);
    assert!(groups().iter().all(|top| !top.join("capped").exists()));
}

/// Requests of microseconds, and of more than a slice of the processor.
#[test]
fn a_cap_holds_for_what_others_do_for_it() {
    let text = rules(&[("shop", "cpu-max = \"20%\"")]);
    let text = format!("{text}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n");
    let services = InForce::start(programs(&["shop", "backend"]), &text);
    let folder = services.folder.path();
    // Where a move takes longer by far than such a request, most of them are put off.
    let requests: &[u32] = if is_emulated() { &[5] } else { &[0, 5] };
    for ms in requests {
        let backend = Backend::start(folder, "backend", "0", "--threads 1");
        let tenants =
            [(); 2].map(|()| begin(backend.tenant(folder, "shop", &format!("a {ms} 1000000 1000000"))));
        thread::sleep(Duration::from_secs(1));
        let (before, began) = (services.figures("cpu_ns")["shop"], Instant::now());
        thread::sleep(Duration::from_secs(3));
        let used = services.figures("cpu_ns")["shop"] - before;
        let allowed = began.elapsed().as_nanos() as u64 / 5;
        // The kernel hands out what is left of a period's slices.
        assert!(used < allowed / 2 * 3, "{ms} ms each: {used} ns of {allowed}");
        for running in tenants.into_iter().chain([backend.running]) {
            running.signal(libc::SIGKILL);
            running.finish();
        }
    }
}

#[test]
fn there_are_no_more_tasks() {
    // Each group of cgroup v1 has a file of that name.
    let services = start(&[("tasks", "tasks-max = 5")]);
    let mut few = Consumer::start(&services, "tasks");
    eventually("it is in its group", || group_of(few.0.pid(), "pids").starts_with("/tollgate/%tasks/"));
    assert_eq!(few.takes("fork 10"), (4, libc::EAGAIN));
    assert_eq!(limit(&services, "tasks")["tasks"], 5);
    assert!(services.ask("limit").text().contains(" 5/5 "));
    services.ask("limit tasks --tasks-max 7");
    assert_eq!(few.takes("fork 10"), (2, libc::EAGAIN));
}

/// Also of what a command does first.
#[test]
fn a_command_is_under_limits_from_its_beginning() {
    let services = start(&[("few", "tasks-max = 3")]);
    let mut job = Job::typed("run --service few --");
    job.command.arg(services.path("few")).arg("consumer");
    job.command.env("TOLLGATE_SOCKET", services.path("control")).stdin(std::process::Stdio::piped());
    let mut running = job.start();
    writeln!(running.input(), "fork 10").expect("it listens");
    eventually("an answer", || running.read("out").ends_with('\n'));
    assert_eq!(running.read("out"), format!("2 {}\n", libc::EAGAIN));
}

#[test]
fn memory_is_limited() {
    let services = start(&[("small", "memory-max = \"32M\"")]);
    let mut small = Consumer::start(&services, "small");
    eventually("it is in its group", || group_of(small.0.pid(), "memory").starts_with("/tollgate/small/"));
    assert_eq!(small.ask("memory 8000000"), "1");
    small.tell("memory 100000000");
    small.0.finish().exits_with(128 + libc::SIGKILL);
}

#[test]
fn sockets_are_counted_and_refused() {
    let services = start(&[("some", "sockets-max = 5\nbeyond-errno = \"EMFILE\""), ("free", "")]);
    let [mut some, mut free] = ["some", "free"].map(|name| Consumer::start(&services, name));
    assert_eq!(some.takes("sockets 8"), (5, libc::EMFILE));
    assert_eq!(free.takes("sockets 8"), (8, 0));
    assert_eq!((services.figures("sockets")["some"], services.figures("sockets")["free"]), (5, 8));
    assert_eq!(limit(&services, "some")["refused"], 1);
    // Those of one that has ended are not there any more.
    let mut other = Consumer::start(&services, "some");
    assert_eq!(other.takes("sockets 1"), (0, libc::EMFILE));
    some.ask("close");
    eventually("closed sockets", || services.figures("sockets")["some"] == 0);
    assert_eq!(other.takes("sockets 3"), (3, 0));
    assert_eq!(some.takes("sockets 3"), (2, libc::EMFILE));
    drop(other);
    services.ask("limit some --sockets-max none");
    assert_eq!(some.takes("sockets 30"), (30, 0));
}

#[test]
fn connections_are_limited() {
    let services = start(&[("some", "connections-max = 3\nbeyond-errno = \"ECONNREFUSED\"")]);
    let mut some = Consumer::start(&services, "some");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    assert_eq!(some.takes(&format!("connect {port} 5")), (3, libc::ECONNREFUSED));
    // Sockets that are not connected are no connections.
    assert_eq!(some.takes("sockets 5"), (5, 0));
    some.ask("close");
    assert_eq!(some.takes(&format!("connect {port} 2")), (2, 0));
    assert_eq!(limit(&services, "some")["connections"], 2);
}

#[test]
fn what_is_beyond_goes_to_another_service() {
    let services = start(&[
        ("some", "sockets-max = 2\nbeyond-service = \"bulk\""),
        ("bulk", "sockets-max = 3\nbeyond-errno = \"ENOBUFS\""),
    ]);
    let mut some = Consumer::start(&services, "some");
    assert_eq!(some.takes("sockets 9"), (5, libc::ENOBUFS));
    assert_eq!(services.service_of(some.0.pid()), "bulk");
    assert_eq!(services.explain(some.0.pid())["why"], "limit");
    assert_eq!(limit(&services, "some")["went_over"], 1);
    // Where that one is full, too, there is no way out.
    let mut other = Consumer::start(&services, "some");
    assert_eq!(other.takes("sockets 9"), (0, libc::EAGAIN));
}

/// Also those who are in groups when these have to be made anew.
#[test]
fn whoever_is_limited_stays_so_when_other_limits_change() {
    let services = start(&[("capped", "cpu-max = \"20%\""), ("other", "")]);
    let mut capped = Consumer::start(&services, "capped");
    let is_capped = |capped: &mut Consumer| {
        capped.ask("burn 500");
        // Alone on its processor, it may have let nobody else run until its end.
        eventually("it is in its group", || group_of(capped.0.pid(), "cpu").starts_with("/tollgate/capped/"));
    };
    is_capped(&mut capped);
    services.ask("limit other --tasks-max 100");
    is_capped(&mut capped);
    services.ask("limit capped --cpu-max none");
    assert_eq!(group_of(capped.0.pid(), "cpu"), group_of(std::process::id(), "cpu"));
    services.ask("limit capped --cpu-max 20%");
    is_capped(&mut capped);
}

#[test]
fn whoever_is_given_to_another_service_leaves_the_groups() {
    let services = start(&[("few", "tasks-max = 3"), ("free", "")]);
    let mut few = Consumer::start(&services, "few");
    eventually("it is in its group", || group_of(few.0.pid(), "pids").starts_with("/tollgate/few/"));
    assert_eq!(few.takes("fork 9"), (2, libc::EAGAIN));
    services.ask(&format!("assign {} free", few.0.pid()));
    assert_eq!(group_of(few.0.pid(), "pids"), group_of(std::process::id(), "pids"));
    assert_eq!(few.takes("fork 9"), (9, 0));
}

/// Given by hand, it is under all limits, also those that come later, and whatever becomes of others.
#[test]
fn whoever_was_given_to_a_service_is_under_its_later_limits() {
    let services = start(&[("few", ""), ("other", "")]);
    let text = "[service.few]\n[service.other]\n[[rule]]\nexe = \"FOLDER/other\"\nbelongs-to = \"other\"\n";
    services.apply(text);
    let mut given = Consumer::start(&services, "few");
    services.ask(&format!("assign {} few", given.0.pid()));
    assert_eq!(given.takes("fork 1"), (1, 0));
    services.ask("limit few --tasks-max 4");
    let is_limited = |when: &str| {
        let group = group_of(given.0.pid(), "pids");
        assert!(group.starts_with("/tollgate/few/"), "{when}: {group}");
    };
    is_limited("at first");
    services.ask("limit other --memory-max 100M");
    is_limited("with another hierarchy");
    services.ask_job("limit other --memory-max 1").finish();
    is_limited("after a change that may be refused");
    services.ask("limit other --memory-max none");
    is_limited("without the other hierarchy");
    let (took, errno) = given.takes("fork 9");
    assert!(took < 4 && errno == libc::EAGAIN, "{took} {errno}");
    assert_eq!(services.explain(given.0.pid())["borrowed"], true);
}

#[test]
fn no_more_is_sent_in_a_second() {
    let services = start(&[("slow", "network-max = \"1M\""), ("free", "")]);
    let [mut slow, mut free] = ["slow", "free"].map(|name| Consumer::start(&services, name));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    // Both ends are the test's business, as what is buffered has not arrived.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = stream;
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
                let _ = stream.write_all(b"had");
                let _ = stream.read(&mut [0; 1]);
            });
        }
    });
    let bytes = 3_000_000;
    let ns: u64 = slow.ask(&format!("send {port} {bytes}")).parse().expect("a time");
    assert!((2_200_000_000..9_000_000_000).contains(&ns), "{bytes} bytes went in {ns} ns");
    let free_ns: u64 = free.ask(&format!("send {port} {bytes}")).parse().expect("a time");
    assert!(free_ns < ns / 2, "{free_ns} ns without a limit, {ns} ns with one");
    let row = limit(&services, "slow");
    let told = row["slowed_packets"].as_u64().unwrap_or(0) + row["dropped_packets"].as_u64().unwrap_or(0);
    assert!(told > 0, "{row}");
}

/// A back end's thread is in its client's group while it works, if somebody competes, and goes back with its answer.
#[test]
fn whoever_works_for_others_comes_back() {
    let text = rules(&[("shop", "cpu-weight = 100"), ("blog", "cpu-weight = 100")]);
    let services = InForce::start(
        programs(&["shop", "blog", "backend"]),
        &format!("{text}[[rule]]\nexe = \"FOLDER/backend\"\nadopts-peer = true\n"),
    );
    let folder = services.folder.path();
    let home = group_of(std::process::id(), "cpu");
    let backend = Backend::start(folder, "backend", "0", "");
    let tenant = backend.tenant(folder, "shop", "a 2000 1");
    let competitors = competitors(&services);
    let tenant = begin(tenant);
    eventually("it is its client's", || {
        group_of(backend.running.pid(), "cpu").starts_with("/tollgate/shop/%2F")
    });
    let moves = services.ask("limit --json").json()["moves"].clone();
    let [moved, longest, total] =
        ["moved", "longest_ns", "total_ns"].map(|name| moves[name].as_u64().expect("a figure"));
    assert!(moved > 0 && longest > 0 && longest * moved >= total && longest <= total, "{moves}");
    eventually("the answer", || tenant.read("out").lines().count() == 2);
    eventually("it is its own", || group_of(backend.running.pid(), "cpu") == home);
    over(tenant);
    end(competitors);
    backend.end(folder, "shop");
}

#[test]
fn limits_change_with_the_file() {
    let services = start(&[("few", "tasks-max = 4"), ("other", "")]);
    let mut few = Consumer::start(&services, "few");
    let mut other = Consumer::start(&services, "other");
    eventually("it is in its group", || group_of(few.0.pid(), "pids").starts_with("/tollgate/few/"));
    services.apply(&rules(&[("few", ""), ("other", "tasks-max = 3")]));
    // Both at once.
    assert_eq!(few.takes("fork 9"), (9, 0));
    assert_eq!(other.takes("fork 9"), (2, libc::EAGAIN));
    let told = services.ask("limit").text();
    assert!(told.contains("other") && !told.contains("few"), "{told}");
}

#[test]
fn a_limit_that_cannot_be_is_refused() {
    let services = start(&[("few", "tasks-max = 4")]);
    for (command, words) in [
        ("limit nobody --cpu-max 10%", "there is no service \"nobody\""),
        ("limit few --beyond few", "cannot work for itself"),
        ("limit root --cpu-max 10%", "root has no limits"),
    ] {
        services.ask_job(command).finish().exits_with(125).says(words);
    }
    // Another's are as they were.
    assert_eq!(limit(&services, "few")["tasks_max"], 4);
}
