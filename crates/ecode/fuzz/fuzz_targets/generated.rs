//! Checks that a generated program has the same result in the interpreter, in a BPF machine in user
//! space and, as root, in the kernel.

#![no_main]

#[expect(dead_code, reason = "what is generated may be no program")]
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/final_state.rs"]
mod final_state;
#[expect(dead_code, reason = "hooks are the tests' own here")]
#[path = "../../tests/common/generate.rs"]
mod generate;
#[path = "../../../kernel/tests/common/in_kernel.rs"]
mod in_kernel;
#[path = "../../tests/common/test_vm.rs"]
mod test_vm;

use final_state::FinalState;
use libfuzzer_sys::fuzz_target;

/// Records are not read while a plugin runs. The kernel's buffer has room for twice this number.
const MOST_RECORDS: usize = 1000;

fuzz_target!(|input: (u64, u16, &[u8])| {
    let (one, other, bytes) = input;
    let arguments = [one, other.into()];
    let text = generate::program(bytes);
    let Some(program) = ecode::check(&text, &common::TestHooks).0 else { return };
    let object = match ecode::compile(&program, &text, "fuzz.ec", ecode::Loops::MayGoto) {
        Err(problem) if generate::needs_more_memory(&problem) => return,
        compiled => compiled.unwrap_or_else(|problem| panic!("{text}\n{problem:?}")),
    };
    let (result, state, world) = common::interpreted(&program, &arguments);
    let expected = (result, FinalState::by_the_interpreter(&object, &state, &world));
    if let Some(found) = test_vm::run(&program, &object, &arguments) {
        assert_eq!(found, expected, "{text}");
    }
    if kernel::process::is_root() && world.printed.len() + world.emitted.len() < MOST_RECORDS {
        let expected = (result as i32, expected.1);
        assert_eq!(in_kernel::run(&text, &program, &object, &arguments), expected, "{text}");
    }
});
