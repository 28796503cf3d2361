//! The cost of plugins: the experiments of the paper, and the time from a source text to an
//! attached program, in comparison with bpftrace.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use stats::interval::{Interval, median_interval};

use crate::harness::job::folder;
use crate::harness::plugins::PluginDaemon;
use crate::harness::{Job, project, tollgate};

/// The sizes of the paper's images, in bytes.
const IMAGES: [usize; 4] = [9_000, 99_000, 270_000, 3_300_000];
const ROUNDS: usize = 20;

fn interval(samples: &[f64]) -> Interval {
    median_interval(samples, 0.95).expect("samples")
}

fn format_interval(samples: &[f64]) -> String {
    let Interval { estimate, low, high, .. } = interval(samples);
    format!("{estimate:.2} [{low:.2}, {high:.2}]")
}

/// A synthetic picture.
fn picture(bytes: usize) -> Vec<u8> {
    let pixels = bytes / 3;
    let width = (pixels as f64).sqrt() as usize;
    let height = pixels / width;
    let mut image = format!("P6\n{width} {height}\n255\n").into_bytes();
    image.extend((0..width * height * 3).map(|at| ((at * 7919) >> 3) as u8));
    image
}

/// The same filter in C; it prints how many nanoseconds a picture takes, and writes it.
const NATIVE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static unsigned char input[4 << 20], output[4 << 20];

static size_t grey(size_t from, size_t pixels, size_t to)
{
	for (size_t i = 0; i < pixels; i++) {
		output[to + i] = (input[from] * 77 + input[from + 1] * 150 +
				  input[from + 2] * 29) >> 8;
		from += 3;
	}
	return to + pixels;
}

int main(int count, char **words)
{
	FILE *file = fopen(words[1], "r");
	int width, height, header = 0;
	size_t length = fread(input, 1, sizeof(input), file), to = 0;
	struct timespec began, ended;
	double best = 1e18;

	sscanf((char *)input, "P6\n%d %d\n255%n", &width, &height, &header);
	for (int round = 0; round < 50; round++) {
		clock_gettime(CLOCK_MONOTONIC, &began);
		to = sprintf((char *)output, "P5\n%d %d\n255\n", width, height);
		to = grey(header + 1, (size_t)width * height, to);
		clock_gettime(CLOCK_MONOTONIC, &ended);
		double took = (ended.tv_sec - began.tv_sec) * 1e9 + ended.tv_nsec - began.tv_nsec;
		if (took < best)
			best = took;
	}
	file = fopen(words[2], "w");
	fwrite(output, 1, to, file);
	printf("%f\n", best);
	return length == 0 || count != 3;
}
"#;

fn native(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("native.c"), folder.join("native"));
    fs::write(&source, NATIVE).expect("a file");
    let made = Command::new("gcc").args(["-O2", "-o"]).arg(&program).arg(&source).status();
    assert!(made.expect("gcc runs").success());
    program
}

/// `tollgate plugin bench`
fn bench(file: &Path, rounds: usize, more: &[String]) -> Value {
    let mut job = Job::of(vec![tollgate().into(), "plugin".into(), "bench".into(), file.into()]);
    job.command.args(["--json", "--rounds"]).arg(rounds.to_string()).args(more);
    job.finish().success().json()
}

#[test]
#[ignore = "takes minutes: make bench"]
fn grey_filter_on_the_papers_images() {
    let folder = folder();
    let native = native(folder.path());
    let at_work = PluginDaemon::start_idle();
    let grey = project().join("examples/grey.ec");
    at_work.load("grey", &fs::read_to_string(&grey).expect("the example"), "");
    eprintln!("\nthe paper's pictures, made grey: in the kernel, and by gcc -O2");
    for bytes in IMAGES {
        let (image, expected, found) = (
            folder.path().join("image"),
            folder.path().join("expected"),
            folder.path().join("found"),
        );
        fs::write(&image, picture(bytes)).expect("a file");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let options = format!(
                "call --json grey --input {} --output-data {}",
                image.display(),
                found.display()
            );
            let called = at_work.request(&options).success().json();
            ours.push(called["call_us"].as_f64().expect("a time"));
            let ran = Command::new(&native).args([&image, &expected]).output().expect("it runs");
            theirs.push(
                String::from_utf8_lossy(&ran.stdout).trim().parse::<f64>().expect("a time") / 1e3,
            );
        }
        assert!(
            fs::read(&found).expect("it is made") == fs::read(&expected).expect("it is made"),
            "{bytes}"
        );
        eprintln!(
            "  {bytes:>9} bytes: {} us, native {} us",
            format_interval(&ours),
            format_interval(&theirs)
        );
    }
}

#[test]
#[ignore = "takes minutes: make bench"]
fn null_plugin_by_argument_count() {
    let folder = folder();
    let file = folder.path().join("null.ec");
    eprintln!("\na call of a plugin that does nothing, by its arguments, over one that takes none");
    for arguments in 0..=12 {
        let parameters: Vec<_> = (0..arguments).map(|number| format!("long a{number}")).collect();
        fs::write(
            &file,
            format!("on call({}) {{ return 0; }}", parameters.join(", ")).replace("()", ""),
        )
        .expect("a file");
        let numbers: Vec<_> =
            (0..arguments).flat_map(|number| ["--arg".into(), number.to_string()]).collect();
        let of = bench(&file, ROUNDS, &numbers);
        let difference = &of["difference_ns"];
        eprintln!(
            "  {arguments:>2} arguments: {:.1} ns [{:.1}, {:.1}]",
            difference["median"].as_f64().expect("a time"),
            difference["low"].as_f64().expect("a time"),
            difference["high"].as_f64().expect("a time"),
        );
    }
}

/// Wall-clock time of a command, in milliseconds.
fn took_ms(command: &mut Command) -> f64 {
    let began = Instant::now();
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it starts");
    let took = began.elapsed();
    assert!(status.success(), "{command:?}");
    took.as_secs_f64() * 1e3
}

/// Peak memory of a command, in KiB, by time(1): the peak of a direct child would include this
/// process's memory.
fn most_kib(words: &[OsString], socket: &Path) -> f64 {
    let mut time = Command::new("time");
    let output = time
        .args(["-f", "%M"])
        .args(words)
        .env("TOLLGATE_SOCKET", socket)
        .output()
        .expect("GNU time");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().last().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
#[ignore = "takes minutes, and bpftrace: make bench"]
fn source_to_attached() {
    const TEXT: &str = "map<u32, u64> count[600]; on enter { count[call]++; }";
    // bpftrace needs a mounted tracefs.
    const SAME: &str = "mount -t tracefs none /sys/kernel/tracing && exec bpftrace -e \
        'tracepoint:raw_syscalls:sys_enter { @[args->id] = count(); } BEGIN { exit(); }'";
    let at_work = PluginDaemon::start("counts", TEXT);
    let (file, socket) = (at_work.file("again", TEXT), at_work.path("socket"));
    let plugin = |does: &str| {
        let mut words: Vec<OsString> = [tollgate().into(), "plugin".into()].into();
        words.extend(does.split_whitespace().map(|word| match word {
            "FILE" => file.clone().into(),
            word => word.into(),
        }));
        words
    };
    let words = |words: &[&str]| words.iter().map(OsString::from).collect();
    let commands: [(&str, Vec<OsString>); 6] = [
        ("a program that does nothing", words(&["true"])),
        ("tollgate --version", vec![tollgate().into(), "--version".into()]),
        ("tollgate plugin load", plugin("load --json FILE")),
        ("tollgate plugin swap", plugin("swap again FILE")),
        ("tollgate plugin unload", plugin("unload again")),
        ("bpftrace, and its end", words(&["unshare", "-m", "sh", "-c", SAME])),
    ];
    let mut took = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        for ((_, words), took) in commands.iter().zip(&mut took) {
            took.push(took_ms(
                Command::new(&words[0]).args(&words[1..]).env("TOLLGATE_SOCKET", &socket),
            ));
        }
        // After bpftrace's end, the kernel still detaches its programs.
        std::thread::sleep(Duration::from_millis(100));
    }
    let (mut links, mut unlinks) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        links.push(at_work.load("again", TEXT, "")["link_us"].as_f64().expect("a time"));
        let unloaded = at_work.request("unload again").success().text();
        let took = unloaded.split_whitespace().rev().nth(1).expect("a time");
        unlinks.push(took.parse::<f64>().expect("a time"));
    }
    eprintln!(
        "\nfrom a text to what is attached, by the clock and with what memory, seen from outside"
    );
    for ((name, words), took) in commands.iter().zip(&took) {
        // Each run finds the remains of the ones before.
        eprintln!("  {name}: {} ms, {} KiB", format_interval(took), most_kib(words, &socket));
    }
    eprintln!(
        "  linked in {} us, unlinked in {} us",
        format_interval(&links),
        format_interval(&unlinks)
    );
}
