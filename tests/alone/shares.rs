//! Shares and caps of processor time: services have them, whatever else competes for the processors.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::eventually;
use crate::harness::limits::{group_of, groups, moves, rules, start};
use crate::harness::processors::pin;
use crate::harness::services::{Backend, Consumer, InForce, begin, programs};

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
    for ms in [0, 5] {
        let backend = Backend::start(folder, "backend", "0", "--threads 1");
        let tenants =
            [(); 2].map(|()| begin(backend.tenant(folder, "shop", &format!("a {ms} 1000000 1000000"))));
        let moves = || moves(&services, &["moved", "put_off"]);
        let moves_before = moves();
        // The first ones, and some ways back.
        eventually("the moves", || moves() >= moves_before + 10);
        let (before, moves_before, began) = (services.figures("cpu_ns")["shop"], moves(), Instant::now());
        thread::sleep(Duration::from_secs(3));
        let used = services.figures("cpu_ns")["shop"] - before;
        let allowed = began.elapsed().as_nanos() as u64 / 5;
        let moves = moves() - moves_before;
        eprintln!("{ms} ms each: {used} ns of {allowed}, {moves} moves");
        // The kernel hands out what is left of a period's slices.
        assert!(used < allowed / 4 * 5, "{ms} ms each: {used} ns of {allowed}");
        // Not two for each request, of which there are thousands.
        assert!(moves < 1500, "{ms} ms each: {moves} moves");
        for running in tenants.into_iter().chain([backend.running]) {
            running.signal(libc::SIGKILL);
            running.finish();
        }
    }
}

#[test]
fn a_cap_is_of_all_below_together() {
    let text = rules(&[("one", "parent = \"both\""), ("other", "parent = \"both\"\ncpu-max = \"10%\"")]);
    let services =
        InForce::start(programs(&["one", "other"]), &format!("[service.both]\ncpu-max = \"40%\"\n\n{text}"));
    let mut both = ["one", "other"].map(|name| Consumer::start(&services, name));
    let burn = |both: &mut [Consumer; 2], ms: u32| {
        let told = both.each_mut().map(|consumer| consumer.tell(&format!("burn {ms}")));
        [0, 1].map(|place| both[place].answer(told[place]).parse::<u64>().expect("a time"))
    };
    eventually("they are in their groups", || {
        burn(&mut both, 500);
        both.iter().all(|consumer| group_of(consumer.0.pid(), "cpu").starts_with("/tollgate/both/"))
    });
    let [one, other] = burn(&mut both, 3000);
    // The kernel hands out what is left of a period's slices.
    assert!(one + other < 1_800_000_000, "{one} and {other} ns of 1200 ms");
    assert!(other < 450_000_000, "{other} ns of 300 ms");
    assert!(services.ask("limit").text().contains("both"));
}
