//! Checks that any text is a valid program or has diagnostics at positions in the text.

#[expect(dead_code, reason = "these programs are not run")]
mod common;
#[expect(dead_code, reason = "hooks are the tests' own here")]
#[path = "common/generate.rs"]
mod generate;
#[path = "common/located.rs"]
mod located;

use std::time::Duration;

use common::TestHooks;
use ecode::{Loops, Program};
use located::check_diagnostics;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// The processor time of this thread, which does not depend on other programs
/// (/proc/PID/schedstat).
fn on_processor() -> Duration {
    // The kernel updates the count at ticks and context switches, so cause a switch.
    std::thread::sleep(Duration::from_nanos(1));
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts it");
    let ns = text.split(' ').next().and_then(|figure| figure.parse().ok());
    Duration::from_nanos(ns.expect("a time"))
}

const PROGRAM: &str = r#"
/* Something of everything. */
const int N = 1 << 3;
enum colour { RED, GREEN = 5, BLUE };
struct point { int x, y[2]; char name[8]; };
struct nested { struct point at[2]; bool is_set; };
map<u32, u64> hits[1024];
map<struct point, struct nested> places[N];
static u8 buffer[4096];
long total = -1, sums[] = { 1, [3] = 2 };

unsigned twice(unsigned short n);

static int pick(int n, enum colour c) {
    static u64 times;
    switch (n + c) {
    case RED: times++; return 0;
    case GREEN: case BLUE: break;
    default: n = twice(n) % 7;
    }
    return n > 0 ? n : -n;
}

unsigned twice(unsigned short n) { return n * 2u; }

on enter(openat) {
    struct point here = { 1, { 2 }, "abc" };
    struct nested all;
    for (int i = 0, j = 9; i < N && j; i++, j--) {
        if (i == 3) continue;
        all.at[i & 1] = here;
        buffer[i * 2] ^= i << 1 | 0x10;
        sums[i] += (u8) ~total;
    }
    while (hits[pid()] < 10) { hits[pid()]++; if (cut_short()) break; }
    do { total -= 'a'; } while (!total);
    if (has(hits, 5)) erase(hits, 5); else print("%d %s\n", pick(flags, BLUE), here.name);
    places[here] = all;
    emit(here);
    return strcmp(here.name, "abc") == 0;
}

on call(long a, unsigned char b) { return a / (b + 1) + sizeof(struct nested); }
"#;

const PARTS: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "=",
    "==",
    "+",
    "-",
    "*",
    "/",
    "<<",
    "?",
    ":",
    ".",
    "->",
    "&",
    "\"",
    "'",
    "/*",
    "*/",
    "//",
    "\0",
    "é",
    "\u{202e}",
    "#",
    "0",
    "0x",
    "99999999999999999999",
    "int ",
    "struct ",
    "map<",
    "on ",
    "enum ",
    "switch ",
    "case ",
    "return ",
    "static ",
    "const ",
    "void ",
    "string ",
    "string s;",
    "total",
    "here",
    "hits",
    "point",
    "twice",
    "N",
    "goto x;",
    "1.5",
    "sizeof",
    "while(1)",
    "if(",
    "else ",
    "do ",
    "int a[",
    "int f(int x) { return f(x); }",
];

fn edits() -> impl Strategy<Value = Vec<(usize, usize, &'static str)>> {
    vec((0..PROGRAM.len(), 0..20_usize, select(PARTS)), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..Default::default() })]

    #[test]
    fn any_text(text in any::<String>()) {
        check_diagnostics(&text);
    }

    #[test]
    fn random_token_sequences(words in vec(select(PARTS), 0..40)) {
        check_diagnostics(&words.concat());
    }

    #[test]
    fn any_generated_program_is_compiled(bytes in vec(any::<u8>(), 0..600)) {
        let text = generate::program(&bytes);
        if let (Some(program), _) = ecode::check(&text, &TestHooks) {
            for loops in [Loops::MayGoto, Loops::Helper] {
                let compiled = ecode::compile(&program, &text, "test.ec", loops);
                let problem = compiled.as_ref().err();
                let is_expected =
                    problem.is_none_or(|problem| generate::needs_more_memory(problem));
                prop_assert!(is_expected, "{text}\n{compiled:?}");
            }
        }
    }

    #[test]
    fn any_edit(edits in edits()) {
        let mut text = PROGRAM.to_owned();
        for (from, length, by) in edits {
            let mut at = from.min(text.len());
            let mut end = (at + length).min(text.len());
            while !text.is_char_boundary(at) { at -= 1; }
            while !text.is_char_boundary(end) { end += 1; }
            text.replace_range(at..end, by);
        }
        check_diagnostics(&text);
    }
}

#[test]
fn reference_program_is_valid() {
    let (program, problems) = ecode::check(PROGRAM, &TestHooks);
    assert!(program.is_some() && problems.is_empty(), "{problems:#?}");
}

#[track_caller]
fn is_refused(text: &str, message: &str) {
    let (program, problems) = ecode::check(text, &TestHooks);
    assert!(program.is_none());
    assert!(problems.iter().any(|problem| problem.message.contains(message)), "{problems:#?}");
    check_diagnostics(text);
}

#[test]
fn nesting_limit() {
    const DEEP: usize = 100_000;
    for (before, middle, after) in [
        ("(", "1", ")"),
        ("-", "1", ""),
        ("1+", "1", ""),
        ("1?1:", "1", ""),
        ("a[", "0", "]"),
        ("f(", "0", ")"),
        ("a=", "1", ""),
        ("(int)", "1", ""),
        ("1,", "1", ""),
        ("1&&", "1", ""),
        ("sizeof ", "1", ""),
    ] {
        let text = format!(
            "int a[4]; int f(int n) {{ return n; }} on call {{ {}{middle}{}; }}",
            before.repeat(DEEP),
            after.repeat(DEEP)
        );
        is_refused(&text, "are nested more than");
    }
    for (before, after) in [
        ("{", "}"),
        ("if (1) ", ";"),
        ("while (1) ", ";"),
        ("for (;;) ", ";"),
        ("do ", ";"),
        ("switch (1) { case 1: ", "}"),
    ] {
        is_refused(
            &format!("on call {{ {}{} }}", before.repeat(DEEP), after.repeat(DEEP)),
            "are nested more than",
        );
    }
    is_refused(&format!("int a = {};", "{".repeat(DEEP)), "are nested more than");
    is_refused(&format!("int a{};", "[2]".repeat(DEEP)), "are nested more than");
    let structs: String =
        (1..DEEP).map(|n| format!("struct s{n} {{ struct s{} a; }};", n - 1)).collect();
    is_refused(&format!("struct s0 {{ int a; }}; {structs}"), "are nested more than");
}

#[test]
fn long_chains_of_calls_are_followed() {
    let mut text = String::from("int f0() { return 0; }\n");
    for n in 1..5_000 {
        text += &format!("int f{n}() {{ return f{}(); }}\n", n - 1);
    }
    let (program, problems) = ecode::check(&text, &TestHooks);
    assert!(program.is_some(), "{problems:?}");
    is_refused(
        "int f(int n); int g(int n) { return f(n); } int f(int n) { return g(n); }",
        "call itself",
    );
    is_refused("int f(int n) { return n ? f(n - 1) : 0; }", "call itself");
}

#[track_caller]
fn is_too_large(text: &str, loops: Loops, message: &str) {
    let (program, problems) = ecode::check(text, &TestHooks);
    let program = program.unwrap_or_else(|| panic!("{problems:?}"));
    let problem = ecode::compile(&program, text, "test.ec", loops).expect_err("it is too large");
    assert!(problem.message.contains(message), "{problem:?}");
}

#[test]
fn size_limit() {
    let of = |line: &str, lines: usize| {
        let lines: String = (0..lines).map(|at| line.replace('@', &at.to_string())).collect();
        format!("int a[4]; on call(int n) {{ int s;\n{lines} return s; }}")
    };
    for line in [
        "s += n;\n",
        "int v@ = n; s ^= v@;\n",
        "if (n > @) s++;\n",
        "while (s < n) s++;\n",
        "a[n] += s;\n",
        "print(\"%d @\", n);\n",
        "s += strcmp(\"a@\", \"b@\");\n",
    ] {
        for loops in [Loops::MayGoto, Loops::Helper] {
            is_too_large(&of(line, 10_000), loops, "more than 32000 instructions");
        }
    }
    is_too_large(&of("while (s < n) s++;\n", 1_000), Loops::Helper, "more than 256 functions");
}

/// Includes frames as large as the range of an instruction's offset, and larger ones.
#[test]
fn stack_limit() {
    for arrays in [2, 127, 128, 129, 1000, 5000] {
        let arrays: String = (0..arrays).map(|at| format!("u8 b{at}[256]; ")).collect();
        for hook in ["call(int n)", "enter(openat)"] {
            for looped in ["", "for (int i = 0; i < 9; i++) b1[i]++;"] {
                let text = format!("on {hook} {{ {arrays} {looped} return b0[0] + b1[1]; }}");
                for loops in [Loops::MayGoto, Loops::Helper] {
                    is_too_large(&text, loops, "bytes of stack");
                }
            }
        }
    }
}

/// Ten times as many lines take about ten times as long, not a hundred times.
#[test]
fn checking_is_linear() {
    let text = |functions: usize| -> String {
        (0..functions)
            .map(|n| {
                format!(
                    "int v{n} = {n};\nint f{n}(int a) {{\n  int b = a * v{n};\n  for \
                (int i = 0; i < a; i++)\n    b += i ^ {n};\n  return b;\n}}\n"
                )
            })
            .collect()
    };
    let took = |text: &str| {
        let before = on_processor();
        assert!(ecode::check(text, &TestHooks).0.is_some());
        on_processor() - before
    };
    let (few, many) = (text(1_500), text(15_000));
    assert!(many.lines().count() > 100_000);
    took(&few);
    let fastest = |text: &str| (0..3).map(|_| took(text)).min().expect("three");
    let (few, many) = (fastest(&few), fastest(&many));
    assert!(many < few * 40, "10,500 lines took {few:?}, 105,000 {many:?}");
}

#[test]
fn compiling_is_linear() {
    let program = |functions: usize| {
        let one = |n| {
            let looped = format!("  for (int i = 0; i < a; i++)\n    b += i ^ {n};\n").repeat(30);
            format!("int f{n}(int a) {{\n  int b = a;\n{looped}  return b;\n}}\n")
        };
        let all: String = (0..functions).map(one).collect();
        let calls: String = (0..functions).map(|n| format!("  n += f{n}(n);\n")).collect();
        let text = format!("{all}on call(int n) {{\n{calls}  return n;\n}}\n");
        (common::program(&text), text)
    };
    let took = |(program, text): &(Program, String)| {
        let before = on_processor();
        ecode::compile(program, text, "test.ec", Loops::MayGoto).expect("it is compiled");
        on_processor() - before
    };
    let (few, many) = (program(16), program(160));
    let lines = [&few, &many].map(|(_, text)| text.lines().count());
    let [few, many] =
        [few, many].map(|program| (0..5).map(|_| took(&program)).min().expect("five"));
    assert!(many < few * 20, "{} lines took {few:?}, {} {many:?}", lines[0], lines[1]);
}
