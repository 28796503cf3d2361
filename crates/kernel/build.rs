//! Compiles the BPF objects with their Rust skeletons, and generates the wire types from
//! `bpf/wire.h`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bindgen::callbacks::{DeriveInfo, ParseCallbacks};
use libbpf_cargo::SkeletonBuilder;

/// The last one is only for the differential test, which includes its skeleton itself.
const OBJECTS: [&str; 5] = ["gate", "floor", "probe", "service_limits", "guard_steps"];

/// Types with padding, which are only read: its bytes have no value to write.
const PADDED: [&str; 6] =
    ["service_member", "service_socket", "cell", "cpu_state", "guard_event", "slow_call"];

/// Makes the wire types convertible from bytes and, where they have no padding, into bytes.
#[derive(Debug)]
struct WireDerives;

impl ParseCallbacks for WireDerives {
    fn add_derives(&self, info: &DeriveInfo<'_>) -> Vec<String> {
        let mut derives = vec!["FromBytes", "Immutable", "KnownLayout"];
        if !PADDED.contains(&info.name) {
            derives.push("IntoBytes");
        }
        derives.into_iter().map(|name| format!("zerocopy::{name}")).collect()
    }
}

fn main() -> Result<()> {
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", bpf.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".into());

    for object in OBJECTS {
        let source = bpf.join(format!("{object}.bpf.c"));
        // v3 (Linux 5.12): 32-bit compare-and-swap.
        let arguments =
            ["-mcpu=v3".into(), "-Wall".into(), "-Werror".into(), format!("-I{}", bpf.display())];
        SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args(arguments)
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .with_context(|| format!("compiling {} with {clang}", source.display()))?;
    }

    // The derive of `IntoBytes` needs it for the one union, in `struct thread_state`.
    println!("cargo::rustc-cfg=zerocopy_derive_union_into_bytes");
    println!("cargo::rustc-check-cfg=cfg(zerocopy_derive_union_into_bytes)");
    fs::write(out.join("build.rs"), digest(&bpf)?.to_string()).context("writing the digest")?;

    bindgen::Builder::default()
        .header(bpf.join("wire.h").to_string_lossy())
        .clang_arg("-includelinux/types.h")
        .allowlist_file(".*/wire\\.h")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .parse_callbacks(Box::new(WireDerives))
        .generate()
        .context("making Rust types of bpf/wire.h")?
        .write_to_file(out.join("wire.rs"))
        .context("writing the wire types")?;
    Ok(())
}

/// FNV-1a (Fowler, Noll, Vo) over the names and texts of the sources.
fn digest(sources: &Path) -> Result<u32> {
    let mut files: Vec<_> =
        fs::read_dir(sources)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let mut bytes = Vec::new();
    for file in files {
        bytes.extend(file.file_name().unwrap_or_default().as_encoded_bytes());
        bytes.extend(fs::read(&file).with_context(|| format!("reading {}", file.display()))?);
    }
    Ok(bytes
        .iter()
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)))
}
