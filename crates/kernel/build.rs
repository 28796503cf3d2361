//! Compiles the BPF objects with their Rust skeletons, and generates the wire types and the tables
//! from `bpf/wire/`.

#[path = "build/digest.rs"]
mod digest;
#[path = "build/shared_maps.rs"]
mod shared_maps;
#[path = "build/tables.rs"]
mod tables;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bindgen::callbacks::{DeriveInfo, ParseCallbacks};
use libbpf_cargo::SkeletonBuilder;

/// The BPF objects: the names of their skeletons, and their sources. `guard_steps` and
/// `pace_moments` are only for the differential tests, which include their skeletons themselves.
const OBJECTS: [(&str, &str); 7] = [
    ("gate", "gate/gate.bpf.c"),
    ("floor", "measure/floor.bpf.c"),
    ("probe", "measure/probe.bpf.c"),
    ("service_limits", "service/limits.bpf.c"),
    ("plugin_entry", "plugin/entry.bpf.c"),
    ("guard_steps", "guard/steps.bpf.c"),
    ("pace_moments", "pace/moments.bpf.c"),
];

/// Tables that C and Rust share: the names of their templates in `build/`, and their headers in
/// `bpf/wire/`.
const TABLES: [(&str, &str); 3] =
    [("losses", "losses.h"), ("gate_programs", "programs.h"), ("plugin_hooks", "plugin.h")];

/// Types with padding. They are only read, because bytes of padding have no defined value.
const PADDED: [&str; 4] = ["service_member", "cell", "guard_event", "slow_call"];

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
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = package.join("../..");
    let (bpf, templates) = (project.join("bpf"), package.join("build"));
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for source in digest::SOURCES {
        println!("cargo::rerun-if-changed={}", project.join(source).display());
    }
    println!("cargo::rerun-if-changed={}", templates.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".into());

    for (object, source) in OBJECTS {
        let source = bpf.join(source);
        // Version 3 has 32-bit compare-and-swap (since Linux 5.12).
        let arguments =
            ["-mcpu=v3".into(), "-Wall".into(), "-Werror".into(), format!("-I{}", bpf.display())];
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{object}.o")))
            .clang(&clang)
            .clang_args(arguments)
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .with_context(|| format!("compiling {} with {clang}", source.display()))?;
    }

    for (table, header) in TABLES {
        let template = templates.join(format!("{table}.rs.in"));
        tables::generate(&clang, &bpf, header, &template, &out.join(format!("{table}.rs")))?;
    }
    shared_maps::generate(&out.join("gate.o"), &out.join("shared_maps.rs"))?;

    let digest = digest::digest(&project, &digest::SOURCES).context("reading the sources")?;
    fs::write(out.join("build.rs"), digest.to_string()).context("writing the digest")?;

    bindgen::Builder::default()
        .headers(wire_headers(&bpf.join("wire"))?)
        .clang_arg(format!("-I{}", bpf.display()))
        .clang_arg("-includelinux/types.h")
        .allowlist_file(".*/bpf/wire/.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .parse_callbacks(Box::new(WireDerives))
        .generate()
        .context("making Rust types of bpf/wire/")?
        .write_to_file(out.join("wire.rs"))
        .context("writing the wire types")?;
    Ok(())
}

/// The headers in a folder, sorted by name.
fn wire_headers(folder: &Path) -> Result<Vec<String>> {
    let mut headers: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    headers.sort();
    Ok(headers)
}
