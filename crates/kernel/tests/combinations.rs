//! The gate's programs load in every combination of extensions. As root:
//!
//!     cargo test --release --workspace --test combinations

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::{fs, io};

use kernel::gate::{LoadedGate, lazy_maps};
use kernel::{extensions, precall, wire};

const LENS: [u32; 8] = [
    0,
    wire::LENS,
    wire::LENS | wire::LENS_SITES,
    wire::LENS | wire::LENS_SITES | wire::LENS_SLOW,
    wire::LENS | wire::LENS_SITES | wire::LENS_SAMPLE,
    wire::LENS | wire::LENS_IN_BAND | wire::LENS_TRACE,
    wire::LENS | wire::LENS_SITES | wire::LENS_FILES | wire::LENS_FLAME | wire::LENS_FLAME_CPU,
    wire::LENS | wire::LENS_SITES | wire::LENS_SLOW | wire::LENS_WHY,
];
const SERVICE: [u32; 3] = [0, wire::SERVICE, wire::SERVICE | wire::SERVICE_FILES];
const PACE: [u32; 2] = [0, wire::PACE];
const FOLLOW_CGROUPS: [u32; 2] = [0, wire::FOLLOW_CGROUPS];
const PLUGIN: [u32; 3] = [0, wire::PLUGIN, wire::PLUGIN | wire::PLUGIN_EXIT];

/// The guard's variants. Calls are held before they take effect by the hooks that this kernel has.
fn guard() -> [u32; 5] {
    let holds = precall::available_mechanisms();
    let guard = [0, 0, wire::GUARD_SCOPED, holds, holds | wire::GUARD_SCOPED];
    std::array::from_fn(|variant| guard[variant] | if variant == 0 { 0 } else { wire::GUARD })
}

/// Held while a test loads gates.
static LOADING: Mutex<()> = Mutex::new(());

fn load(masks: impl IntoIterator<Item = u32>) {
    let _alone = LOADING.lock();
    kernel::quiet();
    let lazy = lazy_maps(&extensions::ALL);
    for mask in masks {
        LoadedGate::new(None, mask, 1, &lazy)
            .unwrap_or_else(|error| panic!("extensions {mask:#x}: {error}"));
    }
}

/// The subsets of lens, guard, service and plugin except the empty one, all options included.
fn subsets() -> impl Iterator<Item = u32> {
    let extensions = [LENS[3], guard()[4], SERVICE[2], PLUGIN[2]];
    (1_u32..1 << extensions.len()).map(move |chosen| {
        let parts = extensions.iter().enumerate().filter(|(bit, _)| chosen & 1 << bit != 0);
        parts.fold(0, |mask, (_, part)| mask | part)
    })
}

/// The mask of a gate with everything.
fn everything() -> u32 {
    let rest = PACE[1]
        | FOLLOW_CGROUPS[1]
        | wire::LENS_IN_BAND
        | wire::LENS_FILES
        | wire::LENS_TRACE
        | wire::LENS_FLAME
        | wire::LENS_WHY;
    subsets().fold(rest, |mask, subset| mask | subset)
}

/// Whether one of the four extensions is alone in a subset.
fn is_single(mask: &u32) -> bool {
    let extensions = [wire::LENS, wire::GUARD, wire::SERVICE, wire::PLUGIN];
    extensions.iter().filter(|extension| mask & *extension != 0).count() == 1
}

/// The smallest gates and the largest one. An emulated machine needs some ten seconds for each.
#[test]
fn single_extensions_and_all_together_load() {
    load(subsets().filter(is_single).chain([everything()]));
}

#[test]
fn every_other_combination_of_extensions_loads() {
    load(subsets().filter(|mask| !is_single(mask)));
}

/// Each variant of an extension by itself.
#[test]
fn every_variant_of_an_extension_loads() {
    let variants = [&LENS[..], &guard(), &SERVICE, &PACE, &PLUGIN, &FOLLOW_CGROUPS];
    load(
        variants.into_iter().flatten().copied().filter(|mask| *mask != 0).collect::<BTreeSet<_>>(),
    );
}

/// The instructions that the verifier has followed for the programs that this process has open.
fn verified_instructions() -> u64 {
    let files = fs::read_dir("/proc/self/fdinfo").expect("there is /proc");
    let of_file = |file: io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(file.ok()?.path()).ok()?;
        let count = text.lines().find_map(|line| line.strip_prefix("verified_insns:"))?;
        count.trim().parse::<u64>().ok()
    };
    files.filter_map(of_file).sum()
}

/// The verifier takes most of the time in which a session starts. A loop that it follows on each of
/// its paths can multiply that time.
#[test]
fn verification_stays_short() {
    /// This kernel follows 884,681 instructions for the largest gate; the limit is half as many
    /// again. Other kernels follow other numbers.
    const KERNEL: &str = "6.18.";
    const LIMIT: u64 = 1_330_000;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("there is /proc");
    if !release.starts_with(KERNEL) {
        return;
    }
    let _alone = LOADING.lock();
    kernel::quiet();
    let gate = LoadedGate::new(None, everything(), 1, &lazy_maps(&extensions::ALL));
    let gate = gate.unwrap_or_else(|error| panic!("{error}"));
    let verified = verified_instructions();
    drop(gate);
    assert!((1..LIMIT).contains(&verified), "{verified} instructions");
}
