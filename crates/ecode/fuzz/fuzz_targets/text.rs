//! Checks that any text is a valid program or has diagnostics, that a valid program is compiled or
//! has a diagnostic and, as root, that the kernel loads a compiled program.

#![no_main]

#[expect(dead_code, reason = "these programs are not run")]
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/located.rs"]
mod located;

use ecode::Object;
use kernel::plugin::LoadedPlugin;
use libfuzzer_sys::fuzz_target;

/// The limit on the kernel memory of one program.
const MOST_BYTES: u64 = 1 << 20;

fn bytes(object: &Object) -> u64 {
    let maps = object.maps.iter();
    let maps: u64 =
        maps.map(|map| u64::from(map.entries) * u64::from(map.key_bytes + map.value_bytes)).sum();
    maps + object.data.len() as u64
}

fuzz_target!(|text: &[u8]| {
    let text = String::from_utf8_lossy(text);
    let Some(program) = located::is_told_of(&text) else { return };
    let Ok(object) = ecode::compile(&program, &text, "fuzz.ec", ecode::Loops::MayGoto) else {
        return;
    };
    if kernel::process::is_root() && bytes(&object) < MOST_BYTES {
        LoadedPlugin::load(&object).unwrap_or_else(|error| panic!("{text}\n{error}"));
    }
});
