//! A generated program does the same interpreted, in a machine in user space and, as root, in the kernel.

#![no_main]

#[expect(dead_code, reason = "what is generated may be no program")]
#[path = "../../tests/common/mod.rs"]
mod common;
#[expect(dead_code, reason = "hooks are the tests' own here")]
#[path = "../../tests/common/generate.rs"]
mod generate;
#[path = "../../../kernel/tests/common/in_kernel.rs"]
mod in_kernel;
#[path = "../../tests/common/left.rs"]
mod left;
#[path = "../../tests/common/machine.rs"]
mod machine;

use left::Left;
use libfuzzer_sys::fuzz_target;

/// Nobody reads what a plugin tells while it runs, and the kernel has room for twice as many.
const MOST_RECORDS: usize = 1000;

fuzz_target!(|input: (u64, u16, &[u8])| {
    let (one, other, bytes) = input;
    let arguments = [one, other.into()];
    let text = generate::program(bytes);
    let Some(program) = ecode::check(&text, &common::Plain).0 else { return };
    let object = match ecode::compile(&program, &text, "fuzz.ec", ecode::Loops::MayGoto) {
        Err(problem) if generate::needs_more_memory(&problem) => return,
        compiled => compiled.unwrap_or_else(|problem| panic!("{text}\n{problem:?}")),
    };
    let (result, state, world) = common::interpreted(&program, &arguments);
    let expected = (result, Left::by_the_interpreter(&object, &state, &world));
    if let Some(found) = machine::run(&program, &object, &arguments) {
        assert_eq!(found, expected, "{text}");
    }
    if kernel::process::is_root() && world.printed.len() + world.emitted.len() < MOST_RECORDS {
        let expected = (result as i32, expected.1);
        assert_eq!(in_kernel::run(&text, &program, &object, &arguments), expected, "{text}");
    }
});
