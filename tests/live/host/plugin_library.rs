//! Plugins that programs call themselves, by the libraries for C and for Rust.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::harness::library::example;
use crate::harness::plugins::AtWork;
use crate::harness::{Job, eventually, workload};

const GREY: &str = include_str!("../../../examples/grey.ec");

fn picture() -> Vec<u8> {
    let pixels: Vec<u8> = (0..300).map(|byte| (byte * 7 % 256) as u8).collect();
    [b"P6\n10 10\n255\n".as_slice(), &pixels].concat()
}

/// ITU-R BT.601, as the example has it.
fn grey(picture: &[u8]) -> Vec<u8> {
    let part = |(part, weight): (&u8, u32)| u32::from(*part) * weight;
    let pixels = picture[picture.len() - 300..].chunks(3);
    let grey = pixels.map(|rgb| (rgb.iter().zip([77, 150, 29]).map(part).sum::<u32>() >> 8) as u8);
    [b"P5\n10 10\n255\n".as_slice(), &Vec::from_iter(grey)].concat()
}

#[test]
fn a_program_in_c_calls_a_plugin_in_memory_that_both_share() {
    let at_work = AtWork::start("grey", GREY);
    let program = example("plugin", &at_work.path(""));
    let image = at_work.path("image.ppm");
    fs::write(&image, picture()).expect("a file");
    let run = |socket: &Path| {
        let input = File::open(&image).expect("it is there");
        Command::new(&program).env("TOLLGATE_SOCKET", socket).stdin(input).output().expect("it runs")
    };
    let ran = run(&at_work.path("socket"));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(ran.stdout, grey(&picture()));
    let ran = run(Path::new("/nowhere"));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("cannot ask the daemon at /nowhere"));
}

/// By the library for Rust, and by the command.
#[test]
fn a_plugin_that_is_swapped_is_called_all_the_time() {
    const SWAPS: usize = 12;
    let at_work = AtWork::start("grey", GREY);
    let (image, output) = (at_work.path("image.ppm"), at_work.path("grey.pgm"));
    fs::write(&image, picture()).expect("a file");
    let call = |times: u32| {
        let mut job = Job::of(workload(&format!("call-plugin grey {times}")));
        job.command.env("TOLLGATE_SOCKET", at_work.path("socket"));
        job.command.stdin(File::open(&image).expect("it is there"));
        job.start()
    };
    let command = format!("call grey --input {} --output-data {}", image.display(), output.display());
    thread::scope(|threads| {
        let swaps = threads.spawn(|| {
            for swap in 0..SWAPS {
                at_work.swap("grey", &format!("{GREY} u64 swap_{swap};"));
            }
        });
        while !swaps.is_finished() {
            assert_eq!(call(20).finish().success().out, grey(&picture()));
            assert_eq!(at_work.ask(&command).success().text(), "100\n");
            assert_eq!(fs::read(&output).expect("a file"), grey(&picture()));
        }
    });
    let last = SWAPS - 1;
    assert_eq!(at_work.number("grey", &format!("swap_{last}")), 0);
    call(1).finish().success();
    at_work.ask("unload grey").success();
    call(1).finish().exits_with(1).says("no plugin is called grey");
}

#[test]
fn what_a_call_returns_and_tells_is_there_when_its_plugin_is_unloaded_meanwhile() {
    // Until its loop is cut short.
    let text = "u64 is_called; on call { is_called = 1; print(\"begun\"); while (is_called); return 7; }";
    let at_work = AtWork::start("long", text);
    let call = at_work.begin("call long");
    eventually("it is called", || at_work.number("long", "is_called") == 1);
    at_work.ask("unload long").success();
    let call = call.finish().success();
    assert_eq!(call.text(), "7\n");
    call.says("begun");
}
