//! Tests the meaning of programs with the interpreter.

mod cases;
#[path = "../common/mod.rs"]
mod common;

use common::{Same, interpreted, program};
use ecode::interpreter::ProgramState;

#[track_caller]
fn outcome(text: &str, arguments: &[u64]) -> (i64, ProgramState, Same) {
    interpreted(&program(text), arguments)
}

#[track_caller]
fn result(text: &str) -> i64 {
    outcome(text, &[]).0
}

#[test]
fn warning_limit_keeps_the_program() {
    let text = format!(
        "void f(int n) {{ {} }} on call {{ {} return 7; }}",
        "n;".repeat(300),
        "1;".repeat(300)
    );
    let warnings = ecode::check(&text, &common::TestHooks).1.len();
    assert_eq!((result(&text), warnings), (7, ecode::MAX_DIAGNOSTICS));
}

#[test]
fn string_output_and_comparison() {
    let (value, _, world) = outcome(
        "struct r { u8 a; u16 b; }; on call { char name[16]; comm(name); \
        print(\"%s is %d, %x and %c: 100%%\", name, -5, 255, 'z'); \
         struct r r = { 1, 2 }; emit(r); return strlen(name) * 100 + (strcmp(name, \"same\") == \
             0) * 10 + strncmp(\"abc\", \"abd\", 2); }",
        &[],
    );
    assert_eq!((value, &world.printed[..]), (410, &["same is -5, ff and z: 100%".to_owned()][..]));
    assert_eq!(world.emitted, [vec![1, 0, 2, 0]]);
    assert_eq!(
        result(
            "on call { u8 to[4]; memset(to, 1, 9); u8 from[2] = { 7, 8 }; memcpy(to, from, 3); \
            return to[0] * 100 + to[1] * 10 + to[2]; }"
        ),
        781
    );
}

#[test]
fn hook_fields_by_name() {
    assert_eq!(result("on enter(openat) { return dfd * 10 + flags; }"), 1);
}
