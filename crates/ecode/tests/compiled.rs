//! Checks that a compiled program has the same result in a BPF machine in user space as in the
//! interpreter. crates/kernel/tests/plugins.rs does the same with the kernel, as root.

#[path = "language/cases.rs"]
mod cases;
mod common;
#[path = "common/final_state.rs"]
mod final_state;
#[expect(dead_code, reason = "hooks are the tests' own here")]
#[path = "common/generate.rs"]
mod generate;
#[path = "common/test_vm.rs"]
mod test_vm;

use std::cell::Cell;

use common::{Same, interpreted, program};
use ecode::interpreter::ProgramState;
use final_state::FinalState;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::test_runner::TestRunner;

#[track_caller]
fn outcome(text: &str, arguments: &[u64]) -> (i64, ProgramState, Same) {
    let program = program(text);
    let (result, state, runtime) = interpreted(&program, arguments);
    let object = ecode::compile(&program, text, "test.ec", ecode::Loops::MayGoto)
        .unwrap_or_else(|problem| panic!("{text}\n{problem:?}"));
    let expected = (result, FinalState::by_the_interpreter(&object, &state, &runtime));
    if let Some(found) = test_vm::run(&program, &object, arguments) {
        assert_eq!(found, expected, "{text}");
    }
    (result, state, runtime)
}

#[track_caller]
fn result(text: &str) -> i64 {
    outcome(text, &[]).0
}

#[test]
fn helpers_and_user_memory() {
    for asked in ["now", "pid", "tid", "uid", "gid", "cpu", "random"] {
        result(&format!("on call {{ return {asked}(); }}"));
    }
    result("char a[20]; on call { comm(a); char b[3]; comm(b); return a[3] * 256 + b[1]; }");
    for at in [0, 1] {
        outcome(
            "u8 a[20]; on call(u64 at) { int failed = read_user(a, at, 6); return failed * 100 + \
            a[5] + a[6]; }",
            &[at],
        );
    }
}

#[test]
fn generated_programs_match_the_interpreter() {
    let (all, run) = (Cell::new(0), Cell::new(0));
    let programs = (vec(any::<u8>(), 0..600), any::<u64>(), 0..300_u64);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 2000,
        ..ProptestConfig::with_source_file(file!())
    });
    let tried = runner.run(&programs, |(bytes, one, other)| {
        all.set(all.get() + 1);
        let text = generate::program(&bytes);
        if let Some(program) = ecode::check(&text, &common::TestHooks).0 {
            match ecode::compile(&program, &text, "test.ec", ecode::Loops::MayGoto) {
                Err(problem) if generate::needs_more_memory(&problem) => {}
                _ => {
                    outcome(&text, &[one, other]);
                    run.set(run.get() + 1);
                }
            }
        }
        Ok(())
    });
    tried.unwrap_or_else(|problem| panic!("{problem}"));
    assert!(run.get() > all.get() / 3, "{} of {}", run.get(), all.get());
}
