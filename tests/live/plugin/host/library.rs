//! Programs call plugins through the libraries for C and for Rust.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use crate::harness::library::{build, example};
use crate::harness::plugins::PluginDaemon;
use crate::harness::{Job, eventually, workload};

const GREY: &str = include_str!("../../../../examples/grey.ec");

fn picture() -> Vec<u8> {
    let pixels: Vec<u8> = (0..300).map(|byte| (byte * 7 % 256) as u8).collect();
    [b"P6\n10 10\n255\n".as_slice(), &pixels].concat()
}

/// The conversion of the example (ITU-R BT.601).
fn grey(picture: &[u8]) -> Vec<u8> {
    let part = |(part, weight): (&u8, u32)| u32::from(*part) * weight;
    let pixels = picture[picture.len() - 300..].chunks(3);
    let grey = pixels.map(|rgb| (rgb.iter().zip([77, 150, 29]).map(part).sum::<u32>() >> 8) as u8);
    [b"P5\n10 10\n255\n".as_slice(), &Vec::from_iter(grey)].concat()
}

#[test]
fn c_program_calls_a_plugin_through_shared_memory() {
    let at_work = PluginDaemon::start("grey", GREY);
    let program = example("plugin", &at_work.path(""));
    let image = at_work.path("image.ppm");
    fs::write(&image, picture()).expect("a file");
    let run = |socket: &Path| {
        let input = File::open(&image).expect("it is there");
        Command::new(&program)
            .env("TOLLGATE_SOCKET", socket)
            .stdin(input)
            .output()
            .expect("it runs")
    };
    let ran = run(&at_work.path("socket"));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(ran.stdout, grey(&picture()));
    let ran = run(Path::new("/nowhere"));
    assert!(
        String::from_utf8_lossy(&ran.stderr)
            .contains("cannot send a request to the daemon at /nowhere")
    );
}

/// Calls by the library for Rust and by the command.
#[test]
fn calls_continue_across_a_swap() {
    const SWAPS: usize = 12;
    let at_work = PluginDaemon::start("grey", GREY);
    let (image, output) = (at_work.path("image.ppm"), at_work.path("grey.pgm"));
    fs::write(&image, picture()).expect("a file");
    let call = |times: u32| {
        let mut job = Job::of(workload(&format!("call-plugin grey {times}")));
        job.command.env("TOLLGATE_SOCKET", at_work.path("socket"));
        job.command.stdin(File::open(&image).expect("it is there"));
        job.start()
    };
    let command =
        format!("call grey --input {} --output-data {}", image.display(), output.display());
    thread::scope(|threads| {
        let swaps = threads.spawn(|| {
            for swap in 0..SWAPS {
                at_work.swap("grey", &format!("{GREY} u64 swap_{swap};"));
            }
        });
        while !swaps.is_finished() {
            assert_eq!(call(20).finish().success().out, grey(&picture()));
            assert_eq!(at_work.request(&command).success().text(), "100\n");
            assert_eq!(fs::read(&output).expect("a file"), grey(&picture()));
        }
    });
    let last = SWAPS - 1;
    assert_eq!(at_work.number("grey", &format!("swap_{last}")), 0);
    call(1).finish().success();
    at_work.request("unload grey").success();
    call(1).finish().exits_with(1).says("there is no plugin grey");
}

/// Opens the plugin `d`, and at each line of its input prints the result of a call, whether the
/// plugin is stale, and the error about a variable that does not exist.
const STALE: &str = r#"
#include <stdio.h>
#include <tollgate.h>

int main(void)
{
	struct tollgate_plugin *plugin = tollgate_plugin_open("d");
	char line[8];

	if (!plugin)
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		int result = 0, error = tollgate_plugin_call(plugin, NULL, 0, &result);
		int is_null = !tollgate_plugin_variable(plugin, "missing", NULL);

		printf("%d %d %d %d %s\n", error, result, tollgate_plugin_is_stale(plugin), is_null,
		       tollgate_error());
		fflush(stdout);
	}
	tollgate_plugin_close(plugin);
	return 0;
}
"#;

#[test]
fn an_open_plugin_says_that_it_was_swapped_or_unloaded() {
    let at_work = PluginDaemon::start("d", "on call { return 1; }");
    let source = at_work.path("stale.c");
    fs::write(&source, STALE).expect("a file");
    let program = build(&source, &at_work.path("stale"));
    let start = || {
        let mut command = Command::new(&program);
        command.env("TOLLGATE_SOCKET", at_work.path("socket"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut started = command.spawn().expect("it runs");
        let output = BufReader::new(started.stdout.take().expect("a pipe")).lines();
        (started.stdin.take().expect("a pipe"), output, started)
    };
    let call = |input: &mut ChildStdin, output: &mut Lines<BufReader<ChildStdout>>| {
        input.write_all(b"\n").expect("it reads");
        output.next().expect("a line").expect("text")
    };
    let line = |result: u32, is_stale: u32| {
        format!("0 {result} {is_stale} 1 the plugin has no variable missing")
    };
    let (mut input, mut output, mut first) = start();
    assert_eq!(call(&mut input, &mut output), line(1, 0));
    at_work.swap("d", "on call { return 2; }");
    assert_eq!(call(&mut input, &mut output), line(1, 1));
    drop(input);
    assert!(first.wait().expect("it ends").success());
    let (mut input, mut output, mut second) = start();
    assert_eq!(call(&mut input, &mut output), line(2, 0));
    at_work.request("unload d").success();
    assert_eq!(call(&mut input, &mut output), line(2, 1));
    drop(input);
    assert!(second.wait().expect("it ends").success());
}

#[test]
fn call_output_survives_unload() {
    // The call lasts until the limit of its loop.
    let text =
        "u64 is_called; on call { is_called = 1; print(\"begun\"); while (is_called); return 7; }";
    let at_work = PluginDaemon::start("long", text);
    let call = at_work.start_request("call long");
    eventually("it is called", || at_work.number("long", "is_called") == 1);
    at_work.request("unload long").success();
    let call = call.finish().success();
    assert_eq!(call.text(), "7\n");
    call.says("begun");
}
