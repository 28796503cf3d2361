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
use kernel::plugins::Plugin;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The interpreter's and the kernel's are the same: result, variables, faults.
#[track_caller]
fn outcome(text: &str, arguments: &[u64]) -> (i64, State, Same) {
    let program = program(text);
    let (result, state, world) = interpreted(&program, arguments);
    let object =
        ecode::compile(&program, text, "test.ec").unwrap_or_else(|problem| panic!("{text}\n{problem:?}"));
    let plugin = Plugin::load(&object).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(plugin.call(0, arguments).expect("it is called"), result as i32, "{text}");
    let mut expected = vec![0; object.data.len()];
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
    (result, state, world)
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

/// Some of what is generated is refused: a division by a constant 0, say.
fn agrees_if_it_is_one(bytes: &[u8], arguments: &[u64]) {
    let text = generate::program(bytes);
    if ecode::check(&text, &common::Plain).0.is_some() {
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
