//! What the kernel does with a compiled program is what the interpreter does with the program. As root:
//!
//!     cargo test -p kernel --test plugins

#[path = "../../ecode/tests/language/cases.rs"]
mod cases;
#[path = "../../ecode/tests/common/mod.rs"]
mod common;
#[path = "../../ecode/tests/common/generate.rs"]
mod generate;

use common::{Same, interpreted, program};
use ecode::interpret::State;
use ecode::records::{Datum, Record, TAG_BYTES};
use ecode::{Loops, Object, Program};
use kernel::plugins::Plugin;
use kernel::probe;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Those that this kernel has.
fn kinds_of_loops() -> &'static [Loops] {
    match probe::loops() {
        Loops::MayGoto => &[Loops::MayGoto, Loops::Helper],
        Loops::Helper => &[Loops::Helper],
    }
}

/// The interpreter's and the kernel's are the same: result, variables, faults.
#[track_caller]
fn outcome(text: &str, arguments: &[u64]) -> (i64, State, Same) {
    let program = program(text);
    let (result, state, world) = interpreted(&program, arguments);
    for loops in kinds_of_loops() {
        let object = ecode::compile(&program, text, "test.ec", *loops)
            .unwrap_or_else(|problem| panic!("{text}\n{problem:?}"));
        does_the_same(text, arguments, &program, &object, (result, &state, &world));
    }
    (result, state, world)
}

#[track_caller]
fn does_the_same(
    text: &str,
    arguments: &[u64],
    program: &Program,
    object: &Object,
    (result, state, world): (i64, &State, &Same),
) {
    let plugin = Plugin::load(object).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(plugin.call(0, arguments).expect("it is called"), result as i32, "{text}");
    let mut expected = object.data.clone();
    let mut at = 0;
    for bytes in &state.globals {
        expected[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len().next_multiple_of(8);
    }
    if !expected.is_empty() {
        assert_eq!(plugin.data().expect("it is there"), expected, "{text}");
    }
    assert_eq!(plugin.faults().expect("they are there"), state.faults, "{text}");
    for (map, entries) in state.maps.iter().enumerate() {
        let mut expected: Vec<_> = entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut found = plugin.entries(map).expect("it is there");
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{text}");
    }
    told(program, &plugin, world);
}

#[track_caller]
fn told(program: &Program, plugin: &Plugin, world: &Same) {
    let (mut printed, mut emitted) = (Vec::new(), Vec::new());
    for bytes in plugin.records().expect("they are there") {
        match Record::read(program, &bytes).expect("it is the program's") {
            Record::Printed(text) => printed.push(String::from_utf8_lossy(&text).into_owned()),
            Record::Emitted { .. } => emitted.push(bytes[TAG_BYTES as usize..].to_vec()),
        }
    }
    assert_eq!((printed, emitted), (world.printed.clone(), world.emitted.clone()));
}

#[track_caller]
fn result(text: &str) -> i64 {
    outcome(text, &[]).0
}

#[test]
fn arguments_come_as_they_are_declared() {
    assert_eq!(
        outcome("on call(int a, long b, u8 c) { return a * 100 + b * 10 + c; }", &[1, 2, 0x103]).0,
        123
    );
}

#[test]
fn loops_and_arrays() {
    let squares = "int a[100]; on call(int n) { int sum = 0; for (int i = 0; i < n; i++) { a[i] = i * i; sum += a[i]; } return sum; }";
    outcome(squares, &[100]);
    outcome(squares, &[105]);
    result(
        "on call { u8 a[40]; for (int i = 0; i < 40; i++) a[i] = i; int s = 0; for (int i = 39; i >= 0; i--) s = s * 3 + a[i]; return s; }",
    );
    outcome(
        "on call(int n) { long sum = 0; for (int i = 0; i < n; i++) for (int j = 0; j < i; j++) { if ((i ^ j) & 4) continue; if (j == 50) break; sum += i * j; } return sum; }",
        &[100],
    );
}

/// The same programs each time, some of which were refused once. Others by `SEED`, and more of them by `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    ProptestConfig {
        cases: number("PROPTEST_CASES").unwrap_or(1000) as u32,
        max_shrink_iters: 300,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(number("SEED").unwrap_or(17)),
        ..Default::default()
    }
}

/// Some of what is generated is refused: a division by a constant 0, say, or more memory than the kernel gives.
fn agrees_if_it_is_one(bytes: &[u8], arguments: &[u64]) {
    let text = generate::program(bytes);
    let Some(program) = ecode::check(&text, &common::Plain).0 else { return };
    let needs_more_memory = |loops: &Loops| {
        let compiled = ecode::compile(&program, &text, "test.ec", *loops);
        compiled.is_err_and(|problem| generate::needs_more_memory(&problem))
    };
    if !kinds_of_loops().iter().any(needs_more_memory) {
        outcome(&text, arguments);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn generated_programs_do_the_same(bytes in vec(any::<u8>(), 0..600), one in any::<u64>(), other in 0..300_u64) {
        agrees_if_it_is_one(&bytes, &[one, other]);
    }
}

/// As the interpreter's world has them: the thread's name, and memory that can be read.
#[test]
fn what_is_asked_of_the_kernel() {
    static SEVENS: [u8; 64] = [7; 64];
    let work = || {
        for declared in ["", "char a[20]; char s[4]; ", "struct v { char a[20]; }; map<int, struct v> m[4]; "]
        {
            let (global, local) =
                if declared.is_empty() { ("", "char a[20]; char s[4];") } else { (declared, "") };
            let place =
                |name: &str| if declared.contains("map") { format!("m[1].{name}") } else { name.to_owned() };
            let a = place("a");
            outcome(
                &format!("{global} on call {{ {local} comm({a}); return {a}[0] + {a}[3] * 256 + {a}[4]; }}"),
                &[],
            );
            let text = format!(
                "{global} on call(u64 at, u64 n) {{ {local} {a}[5] = 1; int failed = read_user({a}, at, n); return failed * 100000 + {a}[0] * 1000 + {a}[5] * 100 + {a}[6]; }}"
            );
            for (at, n) in [
                (SEVENS.as_ptr() as u64, 6),
                (SEVENS.as_ptr() as u64, 1000),
                (SEVENS.as_ptr() as u64, 0),
                (0, 6),
            ] {
                outcome(&text, &[at, n]);
            }
        }
        outcome("char s[4]; on call { comm(s); return s[2] * 256 + s[3]; }", &[]);
    };
    std::thread::Builder::new()
        .name("same".into())
        .spawn(work)
        .expect("a thread")
        .join()
        .expect("it is over");
}

#[test]
fn what_is_told_faster_than_read_is_counted() {
    let text = "on call(int n) { for (int i = 0; i < n; i++) print(\"%d\", i); }";
    let object = ecode::compile(&program(text), text, "test.ec", probe::loops()).expect("it compiles");
    let plugin = Plugin::load(&object).expect("it loads");
    plugin.call(0, &[20_000]).expect("it is called");
    let told = plugin.records().expect("they are there").len() as u64;
    let lost = plugin.faults().expect("they are there").lost;
    assert!(told > 1000 && told + lost == 20_000, "{told} {lost}");
    plugin.call(0, &[10]).expect("it is called");
    assert_eq!(plugin.records().expect("they are there").len(), 10);
}

#[test]
fn what_a_plugin_tells() {
    let text = r#"
        struct point { int x; long y; };
        struct opened { u32 by; char name[12]; u8 bytes[3]; struct point at; bool is_new; };
        char path[80];
        on call(int n) {
            memset(path, 'a', 70);
            char name[6] = "abc";
            print("%d %u %x %c%c|%s|%s|100 %%\n", n - 2, n, 255, 'o', 'k', name, n > 1 ? "two" : "one");
            print("");
            print("%s", path);
            for (int i = 0; i < n; i++) print("round %d of %s", i, name);
            struct opened one = { n, "a name", { 1, 2, 3 }, { -1, -2 }, true };
            return emit(one);
        }"#;
    let (result, _, world) = outcome(text, &[3]);
    assert_eq!(result, 1);
    assert_eq!(world.printed[0], "1 3 ff ok|abc|two|100 %\n");
    assert_eq!(world.printed[2].len(), 64);
    assert_eq!(world.printed.len(), 6);
    let program = program(text);
    let bytes = [&(1_u64 << 32).to_le_bytes(), world.emitted[0].as_slice()].concat();
    let number = |name: &str, value| (name.to_owned(), Datum::Number(value));
    let members = vec![
        number("by", 3),
        ("name".into(), Datum::Text(b"a name".into())),
        ("bytes".into(), Datum::Several([1, 2, 3].map(Datum::Number).into())),
        ("at".into(), Datum::Struct(vec![number("x", -1), number("y", -2)])),
        number("is_new", 1),
    ];
    assert_eq!(Record::read(&program, &bytes), Some(Record::Emitted { name: "opened".into(), members }));
    assert_eq!(Record::read(&program, &bytes[..20]), None);
    assert_eq!(Record::read(&program, &9_u64.to_le_bytes()), None);
}
