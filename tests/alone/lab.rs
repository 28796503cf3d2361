//! The cost lab: its document, its controls, and that it leaves nothing switched on.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};
use std::{fs, io};

use serde_json::Value;

use crate::harness::bpf::{abandoned_links, links_held_by};
use crate::harness::job::{children, comm, copy, folder, handles, is_running};
use crate::harness::{Finished, Job, NOBODY, eventually, tollgate, words};

/// A `tollgate cost run` of a few seconds that writes its document to a file.
fn lab(options: &str) -> Job {
    let mut job = Job::from_command_line("cost run --json -o");
    let report = job.path("report");
    job.command.arg(report).args(options.split_whitespace());
    job.with_row_lock_exclusive()
}

fn list<'a>(document: &'a Value, name: &str) -> &'a Vec<Value> {
    document[name].as_array().unwrap_or_else(|| panic!("no list of {name}"))
}

/// Adds arms in a file in the job's folder; "FOLDER" in them stands for that folder.
fn with_arms(mut job: Job, arms: &str) -> Job {
    let (file, folder) = (job.path("arms.toml"), job.path(""));
    let folder = folder.to_str().expect("its name is ASCII").trim_end_matches('/').to_owned();
    fs::write(&file, arms.replace("FOLDER", &folder)).expect("a file can be written");
    job.command.arg("--arm-file").arg(file);
    job
}

/// Repeats a short run until its result is `expected`: by design, one interval in twenty misses the
/// true value, and other work on the machine can spoil the few quads.
fn until(expected: impl Fn(&Finished) -> bool, run: impl Fn() -> Finished) -> Finished {
    const ATTEMPTS: usize = 4;
    let mut runs = std::iter::repeat_with(run).take(ATTEMPTS);
    runs.find(|ran| expected(ran)).expect("what is expected in one of the attempts")
}

fn controls_hold(document: &Value) -> bool {
    list(document, "controls").iter().all(|control| control["verdict"] != "failed")
}

fn row(document: &Value, benchmark: &str, arm: &str) -> Value {
    let mut rows = list(document, "rows").iter();
    let found = rows.find(|row| row["benchmark"] == benchmark && row["arm"] == arm);
    found.unwrap_or_else(|| panic!("no row of {benchmark} {arm}")).clone()
}

fn of(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"))
}

/// A getppid call takes about twice as long if every call is timed, and less if only calls of other
/// tasks are timed; a loop without calls pays a few percent at most.
fn tolls_are_as_known(document: &Value) -> bool {
    let ratio = |benchmark, arm| of(&row(document, benchmark, arm), "ratio");
    let lens = ratio("getppid", "lens");
    let known = lens > 1.5
        && of(&row(document, "getppid", "lens"), "floors") > 1.0
        && ratio("getppid", "lens-bystander") < lens
        && (ratio("cpu-loop", "lens") - 1.0).abs() < 0.2;
    if !known {
        eprintln!("not the tolls that are known: {}", document["rows"]);
    }
    known
}

#[test]
fn a_document_has_rows_controls_and_every_sample() {
    let ran = until(
        |ran| controls_hold(&ran.document("report")) && tolls_are_as_known(&ran.document("report")),
        || lab("--bench getppid,cpu-loop --arm lens --arm lens-bystander --budget 12s").finish(),
    );
    // Either "dearer", or too few quads on a busy machine to decide.
    assert!([1, 3].contains(&ran.status), "{}", ran.err);
    let document = ran.document("report");
    assert_eq!(document["schema"], "tollgate.cost/1");
    for name in [
        "kernel",
        "cpu",
        "clock_source",
        "mitigations",
        "load",
        "steal_ticks",
        "clock_ns",
        "tollgate",
    ] {
        assert!(!document["environment"][name].is_null(), "{name}");
    }
    let lens = row(&document, "getppid", "lens");
    assert!(of(&lens, "delta") > 0.0, "{lens}");
    assert!(of(&lens, "floors_low") <= of(&lens, "floors"), "{lens}");
    assert_eq!(lens["base"], "off");
    assert_eq!(lens["verdict"], if ran.status == 1 { "dearer" } else { "inconclusive" });
    assert_eq!(lens["loss"], 0);
    assert!(row(&document, "getppid", "empty")["verdict"].is_null());
    let quads = lens["quads"].as_u64().expect("quads");
    assert!(quads >= 1);
    let kinds: Vec<_> =
        list(&document, "controls").iter().map(|control| control["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("aa"), Some("injected"), Some("aa"), Some("injected")]);
    // Six arms, twice in each quad.
    let blocks = list(&document, "samples").iter().filter(|block| block["benchmark"] == "getppid");
    assert_eq!(blocks.count() as u64, quads * 12);
    assert!(list(&document, "samples").iter().all(|block| !list(block, "ns").is_empty()));
    assert_eq!(abandoned_links(), [0_u32; 0]);
}

#[test]
fn text_matches_the_document() {
    let ran = until(
        |ran| !ran.text().contains("CONTROLS FAILED"),
        || {
            Job::from_command_line("cost run --bench getppid --arm lens --budget 10s")
                .with_row_lock_exclusive()
                .finish()
        },
    );
    assert!([1, 3].contains(&ran.status), "{}", ran.err);
    let text = ran.text();
    // How many controls pass depends on how many quads a busy machine completes; a golden covers
    // that text.
    for words in
        ["getppid (ns a call)", "lens ", "(the floor)", "A/A: no difference: ", "clock source"]
    {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
}

/// Creates and removes a file, and starts and ends a program. After an interrupt during `start`,
/// the file may not exist, hence `rm -f`.
const TOGGLED: &str = "
[arm.toggled]
start = \"touch FOLDER/on\"
stop = \"rm -f FOLDER/on\"
background = \"echo $$ >>FOLDER/pids; exec sleep 1000\"
settle = \"10ms\"
loss = \"echo 3\"
";

#[test]
fn interrupt_switches_the_arm_off_and_reports_partial_results() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        for milliseconds in [0, 900, 2000] {
            let running = with_arms(lab("--bench getppid --budget 1m"), TOGGLED).start();
            eventually("its handlers", || handles(running.pid(), signal));
            std::thread::sleep(Duration::from_millis(milliseconds));
            running.signal(signal);
            let began = Instant::now();
            let ran = running.finish().exits_with(3);
            assert!(began.elapsed() < Duration::from_secs(10));
            assert_eq!(ran.document("report")["partial"], true);
            assert!(!ran.path("on").exists(), "the arm is still on");
            // No file: the first program was killed before it had written its ID.
            let pids = fs::read_to_string(ran.path("pids")).unwrap_or_default();
            for pid in pids.lines() {
                let pid = pid.parse().expect("a number");
                eventually("the program's end", || !is_running(pid));
            }
        }
    }
}

/// Whether a descendant of this process runs `sleep`.
fn sleeps_below(pid: u32) -> bool {
    children(pid)
        .into_iter()
        .any(|child| comm(child).as_deref() == Some("sleep") || sleeps_below(child))
}

#[test]
fn interrupt_ends_slow_start_settle_and_hanging_workload() {
    const SETTLES: &str = "start = \"touch FOLDER/on\"\nstop = \"rm FOLDER/on\"\nsettle = \"1h\"";
    let slow = [
        SETTLES,
        "start = \"touch FOLDER/on; sleep 1000\"\nstop = \"rm FOLDER/on\"\nlimit = \"1h\"",
        "under = \"env\"\nsettle = \"sleep 1000\"\nlimit = \"1h\"",
        "under = \"sh -c 'sleep 1000' --\"\nlimit = \"1h\"",
    ];
    for arm in slow {
        let running =
            with_arms(lab("--bench getppid --budget 1m"), &format!("[arm.a]\n{arm}\n")).start();
        eventually("the arm", || {
            assert!(!running.is_over(), "{arm}");
            // The arm settles after its start command has ended.
            let is_on = running.path("on").exists() && children(running.pid()).is_empty();
            if arm == SETTLES { is_on } else { sleeps_below(running.pid()) }
        });
        running.signal(libc::SIGTERM);
        let began = Instant::now();
        let ran = running.finish().exits_with(3);
        assert!(began.elapsed() < Duration::from_secs(10), "{arm}");
        assert!(!ran.path("on").exists(), "the arm is still on");
    }
}

/// The gate of another Tollgate would slow down every arm, and a lens that joins that gate would
/// seem to cost little.
#[test]
fn run_aborts_when_another_tollgate_starts() {
    let running = lab("--bench getppid --arm lens --budget 1m").start();
    eventually("its gate", || !links_held_by(running.pid()).is_empty());
    // Without `with_row_lock_shared`, because the lab holds that lock exclusively.
    let other = Job::of(
        [tollgate().into(), "run".into(), "--".into()]
            .into_iter()
            .chain(words("sleep 1000"))
            .collect(),
    );
    let other = other.start();
    eventually("the lab's end", || running.is_over());
    // The other Tollgate ends before the lab releases its lock on the rows.
    other.signal_group(libc::SIGKILL);
    other.finish();
    let ran = running.finish().exits_with(125).says("another Tollgate process has loaded a gate");
    assert_eq!(ran.document("report")["partial"], true);
}

#[test]
fn requested_floor_gets_a_verdict() {
    let ran = lab("--bench getppid --arm empty --limit 1000% --budget 10s").finish();
    let document = ran.document("report");
    assert_eq!(list(&document, "rows").len(), 1);
    assert!(!document["rows"][0]["verdict"].is_null());
}

/// If each call takes a thousand times as long, `switch` is below noise: its result is a difference
/// of two times that are nearly equal.
#[test]
fn benchmark_below_noise_does_not_stop_the_others() {
    let arms = "[arm.a]\nunder = \"strace -f -o /dev/null\"\n";
    let ran = with_arms(lab("--bench switch,getppid --budget 5s"), arms).finish();
    assert!([1, 3].contains(&ran.status), "{}", ran.err);
    let document = ran.document("report");
    assert!(list(&document, "rows").iter().any(|row| row["benchmark"] == "getppid"), "{document}");
}

#[test]
fn losses_are_summed_over_blocks() {
    let ran = with_arms(lab("--bench getppid --budget 3s"), TOGGLED).finish();
    let document = ran.document("report");
    let row = list(&document, "rows").iter().find(|row| row["arm"] == "toggled").expect("its row");
    // A quad has two blocks of the arm; an unfinished quad may have added to the loss.
    let (lost, quads) =
        (row["loss"].as_u64().expect("a number"), row["quads"].as_u64().expect("a number"));
    assert!(lost >= 6 * quads && lost % 3 == 0, "{lost} in {quads} quads");
}

#[track_caller]
fn fails(arms: &str, words: &str) {
    let ran =
        with_arms(lab("--bench getppid --budget 5s"), arms).finish().exits_with(125).says(words);
    assert!(!ran.path("on").exists(), "the arm is still on");
    assert_eq!(ran.document("report")["partial"], true);
    assert_eq!(abandoned_links(), [0_u32; 0]);
}

#[test]
fn failing_arm_ends_the_run_with_a_sentence() {
    fails(
        "[arm.a]\nstart = \"exit 4\"\nstop = \"true\"\n",
        "arm \"a\" could not be switched on: `exit 4` failed",
    );
    fails(
        "[arm.a]\nstart = \"touch FOLDER/on; sleep 100\"\nstop = \"rm FOLDER/on\"\nlimit = \
        \"300ms\"\n",
        "did not end within 300ms",
    );
    fails(
        "[arm.a]\nstart = \"true\"\nstop = \"sleep 100\"\nlimit = \"300ms\"\n",
        "arm \"a\" could not be switched off: `sleep 100` did not end within 300ms",
    );
    fails(
        "[arm.a]\nunder = \"sh -c 'exit 3'\"\n",
        "in arm \"a\": the workload failed: exit status: 3",
    );
    fails("[arm.a]\nbackground = \"exit 5\"\nsettle = \"50ms\"\n", "ended before the block did");
    fails(
        "[arm.a]\nunder = \"env\"\nloss = \"echo many\"\n",
        "printed \"many\", which is not a number",
    );
}

#[test]
fn killed_workload_is_reported() {
    let arms =
        "[arm.a]\nunder = \"sh -c '(sleep 0.02; kill -9 $$) & exec \\\"$0\\\" \\\"$@\\\"'\"\n";
    // A complete run would take five times as long.
    let long = "--bench pread-4k,open-close,fork,fork-exec,fork-exec-sh,pipe-ping-pong,futex-wake \
        --budget 5s";
    with_arms(lab(long), arms).finish().exits_with(125).says("the workload failed: signal: 9");
}

#[test]
fn without_root_only_file_arms() {
    let folder = folder();
    let program = folder.path().join("tollgate");
    copy(&tollgate(), &program);
    let as_nobody = |options: &str| {
        let mut job = Job::of(vec![program.clone().into(), "cost".into(), "run".into()]);
        job.command.args(options.split_whitespace()).uid(NOBODY).gid(NOBODY);
        job
    };
    let ran = as_nobody("--arm lens --budget 1s").finish().exits_with(125);
    ran.says("arm \"lens\" loads programs into the kernel, which needs root");
    let arms = folder.path().join("arms.toml");
    fs::write(&arms, "[arm.env]\nunder = \"env\"\n").expect("a file can be written");
    fs::set_permissions(&arms, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("it is ours");
    let mut job = as_nobody("--bench getppid --budget 2s --limit 100000% --arm-file");
    job.command.arg(&arms);
    let ran = job.finish();
    assert!([0, 3].contains(&ran.status), "{}", ran.err);
    assert!(!ran.text().contains("(the floor)"), "{}", ran.text());
}

#[test]
fn full_disk_is_reported() {
    let ran =
        Job::from_command_line("cost run --bench getppid --arm lens --budget 1s -o /dev/full")
            .with_row_lock_exclusive()
            .finish();
    ran.exits_with(125).says("cannot write the result to /dev/full");
}

/// Gives the job a mount namespace in which its folder is on a file system of 4 KiB, which is too
/// small for any document.
fn on_a_small_disk(job: Job) -> Job {
    let mount_point = CString::new(job.path("").as_os_str().as_bytes()).expect("no NUL");
    job.before_exec(move || {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let (none, tmpfs) = (c"none".as_ptr(), c"tmpfs".as_ptr());
        // SAFETY: NUL-terminated strings, and only this process sees what is mounted.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()) == 0
                && libc::mount(none, mount_point.as_ptr(), tmpfs, 0, c"size=4k".as_ptr().cast())
                    == 0
        };
        if mounted { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

#[test]
fn disk_that_fills_up_is_reported() {
    let ran = on_a_small_disk(lab("--bench getppid --arm lens --budget 2s")).finish();
    ran.exits_with(125).says("No space left on device");
    assert_eq!(abandoned_links(), [0_u32; 0]);
}

#[test]
fn rightspeed_rule_stops_at_the_time_limit() {
    let ran = lab("--bench getppid --arm lens --stop rightspeed --budget 3s").finish();
    assert!([1, 3].contains(&ran.status), "{}", ran.err);
    let document = ran.document("report");
    // A shared machine cannot determine a mean to 0.01 % within seconds.
    assert_eq!(list(&document, "rows")[1]["stopped_by"], "time");
}

/// Returns the benchmarks whose median batch is too short.
fn short_batches(document: &Value) -> Vec<String> {
    let clock_ns = document["environment"]["clock_ns"].as_f64().expect("a number");
    let benchmarks = list(document, "counts");
    assert!(benchmarks.len() > 15);
    let is_short = |counts: &&Value| {
        let is_of_it = |block: &&Value| block["benchmark"] == counts["benchmark"];
        let of_it = list(document, "samples").iter().filter(is_of_it);
        let mut ns: Vec<_> = of_it
            .flat_map(|block| list(block, "ns"))
            .map(|ns| ns.as_f64().expect("a number"))
            .collect();
        ns.sort_by(f64::total_cmp);
        // The median, because a time that is a difference may be disturbed in either direction.
        let batch_ns = ns[ns.len() / 2] * counts["units"].as_f64().expect("a number");
        clock_ns >= batch_ns / 1000.0
    };
    benchmarks.iter().filter(is_short).map(|counts| format!("{clock_ns} ns: {counts}")).collect()
}

#[test]
fn timer_overhead_is_below_a_thousandth() {
    // A disturbance while a batch is sized may be over when the batch is timed.
    let run = || lab("--arm off --budget 1s").finish();
    until(|ran| short_batches(&ran.document("report")).is_empty(), run);
}

#[test]
fn compare_two_runs() {
    let run = || lab("--bench getppid --arm lens --budget 4s").finish();
    let runs = [(); 2].map(|()| until(|ran| controls_hold(&ran.document("report")), run));
    let mut job = Job::from_command_line("cost compare --json --limit 60%");
    job.command.args(runs.iter().map(|ran| ran.path("report")));
    let ran = job.finish();
    let comparison = ran.json();
    let changes = list(&comparison, "changes");
    assert_eq!(
        changes.iter().map(|change| change["arm"].as_str()).collect::<Vec<_>>(),
        [Some("empty"), Some("lens")]
    );
    assert_ne!(changes[1]["verdict"], "dearer", "{comparison}");
    // A run whose controls failed cannot serve as a base.
    let mut bad = runs[1].document("report");
    bad["controls"][0]["verdict"] = "failed".into();
    bad["partial"] = true.into();
    let path = runs[1].path("bad");
    fs::write(&path, bad.to_string()).expect("a file can be written");
    let mut job = Job::from_command_line("cost compare --limit 1000%");
    job.command.arg(runs[0].path("report")).arg(path);
    let ran = job.finish().exits_with(1);
    assert!(
        ran.text().starts_with("CONTROLS FAILED in the run after: 1 of 2\nPARTIAL"),
        "{}",
        ran.text()
    );
}
