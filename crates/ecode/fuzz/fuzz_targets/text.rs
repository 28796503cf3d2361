//! Whatever the text is, it is a program or told of; and what is a program is compiled or told of.

#![no_main]

#[expect(dead_code, reason = "these programs are not run")]
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/told.rs"]
mod told;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Some(program) = told::is_told_of(&text) {
        let _ = ecode::compile(&program, &text, "fuzz.ec");
    }
});
