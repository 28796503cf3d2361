//! A compiled program does in the kernel what the program does in the interpreter. As root:
//!
//!     cargo test -p kernel --test plugins

#[path = "../../ecode/tests/language/cases.rs"]
mod cases;
#[path = "../../ecode/tests/common/mod.rs"]
mod common;
#[path = "../../ecode/tests/common/final_state.rs"]
mod final_state;
#[expect(dead_code, reason = "hooks are the tests' own here")]
#[path = "../../ecode/tests/common/generate.rs"]
mod generate;
#[path = "common/in_kernel.rs"]
mod in_kernel;

use std::cell::Cell;
use std::os::fd::AsRawFd as _;

use common::{Same, interpreted, program};
use ecode::interpreter::ProgramState;
use ecode::records::{Record, RecordValue};
use ecode::{Loops, MAX_CUT_SHORT};
use final_state::FinalState;
use kernel::plugin::LoadedPlugin;
use kernel::plugin::verifier_log::verifier_message;
use kernel::probe;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::test_runner::{RngSeed, TestRunner};

/// The kinds of loops that this kernel supports.
fn kinds_of_loops() -> &'static [Loops] {
    match probe::loops() {
        Loops::MayGoto => &[Loops::MayGoto, Loops::Helper],
        Loops::Helper => &[Loops::Helper],
    }
}

/// Asserts that the interpreter and the kernel agree on result, variables and faults.
#[track_caller]
fn outcome(text: &str, arguments: &[u64]) -> (i64, ProgramState, Same) {
    outcome_by(text, arguments, kinds_of_loops())
}

#[track_caller]
fn outcome_by(text: &str, arguments: &[u64], kinds: &[Loops]) -> (i64, ProgramState, Same) {
    let program = program(text);
    let (result, state, runtime) = interpreted(&program, arguments);
    for loops in kinds {
        let object = ecode::compile(&program, text, "test.ec", *loops)
            .unwrap_or_else(|problem| panic!("{text}\n{problem:?}"));
        let (found, left) = in_kernel::run(text, &program, &object, arguments);
        let expected = (result as i32, FinalState::by_the_interpreter(&object, &state, &runtime));
        assert_eq!((found, left), expected, "{text}");
    }
    (result, state, runtime)
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
    let squares = "int a[100]; on call(int n) { int sum = 0; for (int i = 0; i < n; i++) { a[i] = \
        i * i; sum += a[i]; } return sum; }";
    outcome(squares, &[100]);
    outcome(squares, &[105]);
    result(
        "on call { u8 a[40]; for (int i = 0; i < 40; i++) a[i] = i; int s = 0; for (int i = 39; i \
        >= 0; i--) s = s * 3 + a[i]; return s; }",
    );
    outcome(
        "on call(int n) { long sum = 0; for (int i = 0; i < n; i++) for (int j = 0; j < i; j++) { \
        if ((i ^ j) & 4) continue; if (j == 50) break; sum += i * j; } return sum; }",
        &[100],
    );
}

/// The verifier distinguishes the values that each element leaves: with six keys and twelve
/// elements, it had too many paths.
#[test]
fn elements_within_elements_in_a_loop() {
    let declared = "struct s { u8 c; i8 x; i8 y[3]; }; struct s u[2]; map<struct s, struct s> \
        q[3]; map<int, struct s> k[3]; i8 one = 1;";
    for element in
        ["has(q, u[one + @ & 3])", "(k[n].y[one + @ & 3] %= one)", "(q[u[1]].y[one + @ & 3] = one)"]
    {
        let all = (0..12).fold("3".to_owned(), |inner, _| element.replace('@', &inner));
        let text = format!(
            "{declared} on call(int n) {{ int s = 0; for (int i = 0; i < 5; i++) {{ q[u[i]].x++; \
            s += {all}; }} return s; }}"
        );
        outcome(&text, &[2]);
    }
    let kinds = [
        "(k[n].y[one + @ & 3] %= one)",
        "q[u[one + @ & 3]].y[one + one]",
        "(q[u[one + @ & 3]].x++)",
        "(q[u[1]].y[one + @ & 3] = one)",
        "has(q, u[one + @ & 3])",
        "(k[one + @].y[one + one & 3] ^= 5)",
        "(++m[@])",
    ];
    let sums: String = (0..6)
        .map(|first| {
            let kind = |depth: usize| kinds[(first * 3 + depth * (1 + first % 3)) % kinds.len()];
            let all = (0..13).fold("n".to_owned(), |inner, depth| kind(depth).replace('@', &inner));
            format!("s += {all};")
        })
        .collect();
    let declared = format!("{declared} map<int, int> m[4];");
    outcome(
        &format!(
            "{declared} on call(int n) {{ int s = 0; for (int i = 0; i < 5; i++) {{ {sums} }} \
            return s; }}"
        ),
        &[2],
    );
}

/// If a branch in a loop fell through when its condition holds, and jumped otherwise, the verifier
/// would check a million instructions of this program.
#[test]
fn keys_within_keys_in_a_loop_within_another() {
    let keys = (0..11)
        .fold("(g -= q[t].x)".to_owned(), |inner, _| format!("(q[u[g + {inner}]].x -= q[t].x)"));
    let declared = "i16 g = 31; map<i16, i16> m[4]; struct s { u8 c; i16 x; i16 y[3]; }; struct s \
        t; struct s u[2]; map<struct s, struct s> q[3];";
    let text = format!(
        "{declared} on call(int n) {{ int i = 2; do {{ for (int j = 0; j < 5; j++) {{ if (has(m, \
        {keys})) return 5; if (has(q, q[u[g + 0]])) continue; }} }} while (i-- > 0); return n; }}"
    );
    outcome(&text, &[2]);
}

/// Twenty numbers select an element, and for each of them the verifier knows more on one path than
/// on the other. The verifier must not check all combinations of these paths, of which there are a
/// million.
#[test]
fn joined_values_are_widened() {
    const HEAD: &str = "struct s { u8 c; int x; long y; int a[3]; }; struct s t = { 1 }; int g = \
        2; int e[50]; map<int, struct s> r[4];";
    const DECLARATIONS: [(&str, &str); 8] = [
        ("int v# = 0; if (n > #) v# = t.c; else v# = g;", "v#"),
        ("i8 v# = 0; if (n > #) v# = g;", "v#"),
        ("int v# = n > # ? t.c : r[#].x;", "v#"),
        (
            "int v# = n; switch (n & 3) { case 1: v# = t.c; break; case 2: v# >>= 1; break; \
            default: v# &= 7; }",
            "v#",
        ),
        ("long v#[1]; if (n > #) v#[0] = t.c; else v#[0] = g;", "v#[0]"),
        ("struct s v# = { 1, 2, 3 }; if (n > #) v#.y = 2;", "v#.y"),
        ("bool v# = n > # && g < t.c;", "v#"),
        ("int v# = strncmp(\"a\", \"b\", #);", "v#"),
    ];
    let numbered =
        |one: &'static str| (0..20).map(move |number| one.replace('#', &number.to_string()));
    for (declared, value) in DECLARATIONS {
        // Only as many structs as a frame can hold.
        let many = if declared.contains("struct") { 12 } else { 20 };
        let all = numbered(declared).take(many).collect::<String>();
        let sum = numbered(value).take(many).collect::<Vec<_>>().join(" + ");
        outcome(&format!("{HEAD} on call(int n) {{ {all} return e[{sum}]; }}"), &[5]);
        let looped =
            format!("{HEAD} on call(int n) {{ {all} do g += {sum}; while (--n); return g; }}");
        outcome(&looped, &[5]);
    }
    for within in ["r[1].a[@ & 1] *= r[1].c", "e[@ & 3] = r[1].c", "e[(n ? t.c : g) + @ & 3] += 1"]
    {
        let nested =
            (0..20).fold("0".to_owned(), |inner, _| format!("({})", within.replace('@', &inner)));
        outcome(&format!("{HEAD} on call(int n) {{ return {nested}; }}"), &[5]);
    }
}

/// The kernel limits the loops of each function call separately. The number of loops that may be
/// cut short (`MAX_CUT_SHORT`) is for all function calls of a handler together.
#[test]
fn loop_budget_spans_calls() {
    let text = "u64 n; void spin(void) { for (;;) n++; } void on_and_on(void) { for (;;) spin(); \
        } on call { for (;;) on_and_on(); return cut_short(); }";
    let program = program(text);
    for loops in kinds_of_loops() {
        let object = ecode::compile(&program, text, "test.ec", *loops).expect("it compiles");
        let plugin = LoadedPlugin::load(&object).expect("it is loaded");
        let mut before = 0;
        // Each call begins again from zero.
        for _ in 0..2 {
            assert_eq!(plugin.call(0, &[]).expect("it is called"), 1);
            let cut_short = plugin.faults().expect("they are there").cut_short;
            assert!(cut_short >= before + MAX_CUT_SHORT, "{cut_short}");
            before = cut_short;
        }
    }
}

/// The JIT compiles some instructions to several, and has to jump over all of them.
#[test]
fn longest_functions_load() {
    for line in ["while (s < n) s++;", "s += s / n;", "s += has(m, n);", "s += cpu();"] {
        let text = |lines: usize| {
            format!(
                "map<int, int> m[4]; on call(int n) {{ u32 s = 0; for (int i = 0; i < 1; i++) {{ \
                {} }} return 0; }}",
                line.repeat(lines)
            )
        };
        let fits = |lines: usize| {
            ecode::compile(&program(&text(lines)), &text(lines), "test.ec", probe::loops()).is_ok()
        };
        let mut lines = 1;
        while fits(lines + lines / 16 + 1) {
            lines += lines / 16 + 1;
        }
        outcome_by(&text(lines), &[2], &[probe::loops()]);
    }
}

/// Loops that become functions for bpf_loop() have the kernel's limits of functions. What exceeds
/// these is refused by the compiler, not by the kernel.
#[test]
fn max_outlined_loops_load() {
    let numbered = |times: usize, one: &str| -> String {
        (0..times).map(|number| one.replace('#', &number.to_string())).collect()
    };
    let nested = |depth: usize, inner: &str| {
        let heads = numbered(depth, "for (int i# = 0; i# < 2; i#++) { s++; ");
        format!("{heads} {inner} {}", "}".repeat(depth))
    };
    let call = |body: &str| format!("on call(int n) {{ u64 s = 0; {body} return s; }}");
    // Slots of the function that has the loops, and of the loop's body.
    let arrays = |times: usize| numbered(times, "u8 a#[9]; ");
    let sum = |times: usize| {
        let (head, uses) =
            (numbered(25, "(n * # + "), numbered(times, "a#[i0 + n] += s; s += a#[i0]; "));
        format!("{uses} s += {head} s {};", ")".repeat(25))
    };
    let called = |depth: usize, inner: &str, by: &str| {
        let function = format!("int f(int n) {{ u64 s = 0; {} return s; }}", nested(depth, inner));
        format!("{function} {}", call(by))
    };
    let (chain, memory) = (
        "starts a chain of calls of more than 8 functions",
        "bytes of stack, but the kernel allows",
    );
    // The message beyond the limit, the limit where it is known, and the program with a given
    // number of loops.
    type Shape<'a> = (&'a str, Option<usize>, &'a dyn Fn(usize) -> String);
    let shapes: [Shape<'_>; 8] = [
        (chain, Some(7), &|times| call(&nested(times, ""))),
        (chain, Some(3), &|times| called(times, "", &nested(3, "s += f(n);"))),
        (chain, Some(3), &|times| called(3, "", &nested(times, "s += f(n);"))),
        ("more than 256 functions", Some(255), &|times| call(&"while (s < n) s++;".repeat(times))),
        ("more than 256 functions", Some(127), &|times| {
            let functions = numbered(times, "int f#(int n) { while (n < 9) n++; return n; } ");
            format!("{functions} {}", call(&numbered(times, "s += f#(n); ")))
        }),
        (memory, None, &|times| call(&(arrays(times) + &nested(1, &sum(times))))),
        (memory, None, &|times| call(&(arrays(times) + &nested(7, &sum(times))))),
        (memory, None, &|times| {
            called(2, "", &(arrays(times) + &nested(2, &format!("{} s += f(n);", sum(times)))))
        }),
    ];
    for (sentence, most, text) in shapes {
        let refusal = |times: usize| {
            let text = text(times);
            ecode::compile(&program(&text), &text, "test.ec", Loops::Helper).err()
        };
        let found = || (1..).find(|times| refusal(*times).is_some()).expect("there is an end");
        let beyond = most.map_or_else(found, |most| most + 1);
        let message = refusal(beyond).expect("it is refused").message;
        assert!(message.contains(sentence), "{message}");
        outcome_by(&text(beyond - 1), &[2], &[Loops::Helper]);
    }
}

/// The same programs are generated each time. Some of them were refused once. `SEED` selects other
/// programs, and `PROPTEST_CASES` sets their number.
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

/// Some generated programs are refused: one that divides by a constant 0, for instance, or one that
/// needs more memory than the kernel gives. Returns whether the program was accepted.
fn agrees_if_it_is_one(bytes: &[u8], arguments: &[u64]) -> bool {
    let text = generate::program(bytes);
    let Some(program) = ecode::check(&text, &common::TestHooks).0 else { return false };
    let needs_more_memory = |loops: &Loops| {
        let compiled = ecode::compile(&program, &text, "test.ec", *loops);
        compiled.is_err_and(|problem| generate::needs_more_memory(&problem))
    };
    if kinds_of_loops().iter().any(needs_more_memory) {
        return false;
    }
    outcome(&text, arguments);
    true
}

#[test]
fn generated_programs_do_the_same() {
    let (all, agreed) = (Cell::new(0), Cell::new(0));
    let programs = (vec(any::<u8>(), 0..600), any::<u64>(), 0..300_u64);
    let tried = TestRunner::new(config()).run(&programs, |(bytes, one, other)| {
        all.set(all.get() + 1);
        agreed.set(agreed.get() + u32::from(agrees_if_it_is_one(&bytes, &[one, other])));
        Ok(())
    });
    tried.unwrap_or_else(|problem| panic!("{problem}"));
    assert!(agreed.get() > all.get() / 2, "{} of {}", agreed.get(), all.get());
}

/// As in the interpreter's runtime: the thread's name, and memory that can be read.
#[test]
fn helper_builtins() {
    static SEVENS: [u8; 64] = [7; 64];
    let work = || {
        for declared in
            ["", "char a[20]; char s[4]; ", "struct v { char a[20]; }; map<int, struct v> m[4]; "]
        {
            let (global, local) =
                if declared.is_empty() { ("", "char a[20]; char s[4];") } else { (declared, "") };
            let array = |name: &str| {
                if declared.contains("map") { format!("m[1].{name}") } else { name.to_owned() }
            };
            let a = array("a");
            outcome(
                &format!(
                    "{global} on call {{ {local} comm({a}); return {a}[0] + {a}[3] * 256 + \
                    {a}[4]; }}"
                ),
                &[],
            );
            let text = format!(
                "{global} on call(u64 at, u64 n) {{ {local} {a}[5] = 1; int failed = \
                read_user({a}, at, n); return failed * 100000 + {a}[0] * 1000 + {a}[5] * 100 + \
                {a}[6]; }}"
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

/// The last page of a file, with a page behind it that cannot be read.
fn page_before_nothing() -> &'static mut [u8] {
    const PAGE: usize = 4096;
    let file = tempfile::tempfile().expect("a file");
    file.set_len(PAGE as u64).expect("it has room");
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: memory of this process, which it keeps; the file's page exists.
    unsafe {
        let pages = libc::mmap(
            std::ptr::null_mut(),
            2 * PAGE,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(pages, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(pages.cast(), PAGE)
    }
}

/// The result is the length of the text, or -14. The rest of the array is filled with zeros.
#[test]
fn read_user_text() {
    let page = page_before_nothing();
    page.fill(b'x');
    let end = page.as_ptr_range().end as u64;
    page[..14].copy_from_slice(b"twelve bytes\0y");
    let text = page.as_ptr() as u64;
    let arrays = [
        ("", "char a[20]; char s[1];", "a", "s"),
        ("char a[20]; char s[1]; ", "", "a", "s"),
        ("struct v { char a[20]; char s[1]; }; map<int, struct v> m[4]; ", "", "m[1].a", "m[1].s"),
        ("char a[3][20]; char s[2][1]; ", "", "a[one + 1]", "s[one]"),
    ];
    for (global, local, a, s) in arrays {
        for (at, length) in [
            (text, 12),
            (text + 5, 7),
            (text + 12, 0),
            // Longer than its array.
            (text + 13, 19),
            (end - 20, 19),
            // It runs on into the page that cannot be read.
            (end - 19, -14),
            (0, -14),
            (u64::MAX, -14),
            (1 << 63, -14),
        ] {
            let program = format!(
                "int one = 1; {global} on call(u64 at) {{ {local} memset({a}, 9, 20);
                 long length = read_user_text({a}, at);
                 int end = strlen({a});
                 if (length >= 0 && length != end) return -1;
                 for (int i = end; i < 20; i++) if ({a}[i]) return -2;
                 if (end && {a}[end - 1] != 'x' && {a}[end - 1] != 's') return -3;
                 if (read_user_text({s}, at) > 0 || {s}[0]) return -4;
                 return length; }}"
            );
            assert_eq!(outcome(&program, &[at]).0, length, "{program} {at:x}");
        }
    }
    let nowhere = "char a[2][20]; on call(u64 at, int n) { long length = read_user_text(a[n], \
        at); return length * 1000 + strlen(a[1]); }";
    assert_eq!(outcome(nowhere, &[text, 1]).0, 12012);
    assert_eq!(outcome(nowhere, &[text, 2]).0, 0);
    assert_eq!(outcome(nowhere, &[0, 2]).0, 0);
    for read in ["read_user(full[2].a, at, 20)", "read_user_text(full[2].a, at)"] {
        let program = format!(
            "struct v {{ char a[20]; }}; map<int, struct v> full[1]; on call(u64 at) {{ \
            full[1].a[0] = 1; return {read}; }}"
        );
        let (result, state, _) = outcome(&program, &[0]);
        assert_eq!((result, state.faults.full), (0, 1), "{program}");
    }
    let looped = "on call(u64 at) { int sum = 0; for (int i = 0; i < 13; i++) { char l[9]; long n \
        = read_user_text(l, at + i); sum = sum * 2 + n + l[3]; } return sum; }";
    outcome(looped, &[text]);
}

#[test]
fn output_overflow_is_counted() {
    let text = "on call(int n) { for (int i = 0; i < n; i++) print(\"%d\", i); }";
    let object =
        ecode::compile(&program(text), text, "test.ec", probe::loops()).expect("it compiles");
    let plugin = LoadedPlugin::load(&object).expect("it loads");
    plugin.call(0, &[20_000]).expect("it is called");
    let received = plugin.records().expect("they are there").len() as u64;
    let lost = plugin.faults().expect("they are there").lost;
    assert!(received > 1000 && received + lost == 20_000, "{received} {lost}");
    plugin.call(0, &[10]).expect("it is called");
    assert_eq!(plugin.records().expect("they are there").len(), 10);
}

#[test]
fn plugin_output() {
    let text = concat!(
        r#"
        struct point { int x; long y; };
        struct opened { u32 by; char name[12]; u8 bytes[3]; struct point at; bool is_new; };
        char path[80];
        on call(int n) {
            memset(path, 'a', 70);
            char name[6] = "abc";
            print("%d %u %x %c%c|%s|%s|100 %%\n", n - 2, n, 255, 'o', 'k', name, "#,
        r#"n > 1 ? "two" : "one");
            print("");
            print("%s", path);
            for (int i = 0; i < n; i++) print("round %d of %s", i, name);
            struct opened one = { n, "a name", { 1, 2, 3 }, { -1, -2 }, true };
            return emit(one);
        }"#,
    );
    let (result, _, runtime) = outcome(text, &[3]);
    assert_eq!(result, 1);
    assert_eq!(runtime.printed[0], "1 3 ff ok|abc|two|100 %\n");
    assert_eq!(runtime.printed[2].len(), 64);
    assert_eq!(runtime.printed.len(), 6);
    let program = program(text);
    let bytes = [&(1_u64 << 32).to_le_bytes(), &7_u64.to_le_bytes(), runtime.emitted[0].as_slice()]
        .concat();
    let number = |name: &str, value| (name.to_owned(), RecordValue::Number(value));
    let members = vec![
        number("by", 3),
        ("name".into(), RecordValue::Text(b"a name".into())),
        ("bytes".into(), RecordValue::Several([1, 2, 3].map(RecordValue::Number).into())),
        ("at".into(), RecordValue::Struct(vec![number("x", -1), number("y", -2)])),
        number("is_new", 1),
    ];
    assert_eq!(
        Record::read(&program, &bytes),
        Some((Record::Emitted { name: "opened".into(), members }, 7))
    );
    assert_eq!(Record::read(&program, &bytes[..28]), None);
    assert_eq!(Record::read(&program, &[9_u64.to_le_bytes(), [0; 8]].concat()), None);
}

/// The refused instruction is one that no plugin has.
#[test]
fn verifier_refusal_has_a_line() {
    /// r0 = *(u64 *)(r0 + 0)
    const LOAD: [u8; 8] = [0x79, 0, 0, 0, 0, 0, 0, 0];
    let text = "int twice(int n) {\n\treturn n * 2;\n}\n\non call(int n) {\n\tn = \
        twice(n);\n\treturn n + 1;\n}\n";
    let object = || {
        ecode::compile(&program(text), text, "folder/test.ec", Loops::MayGoto).expect("it compiles")
    };
    let lines: Vec<_> =
        object().programs[0].lines.iter().map(|[at, .., position]| (*at, position >> 10)).collect();
    for line in [2, 6, 7] {
        let at = lines.iter().rfind(|(_, of)| *of == line).expect("it has instructions").0 as usize;
        let mut object = object();
        object.programs[0].instructions.splice(at..at + 1, [LOAD]);
        let Err(kernel::Error::Refused { log, line: about, .. }) = LoadedPlugin::load(&object)
        else {
            panic!("line {line}")
        };
        let message = verifier_message(&log).expect("it says why");
        assert_eq!(about, Some(line as usize), "{log}");
        assert!(message.starts_with('R'), "{message:?}");
    }
}
