//! The digest that the build script makes of the gate's sources: a gate of other sources is not
//! joined.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "../build/digest.rs"]
mod digest;

use digest::{SOURCES, digest};

#[test]
fn every_file_below_a_folder_counts() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| fs::write(folder.path().join(path), text).unwrap();
    let mut seen = Vec::new();
    let mut record = || seen.push(digest(folder.path(), &["bpf"]).unwrap());

    fs::create_dir_all(folder.path().join("bpf/guard/deeper")).unwrap();
    write("bpf/gate.c", "a");
    write("bpf/guard/model.h", "b");
    record();
    write("bpf/guard/model.h", "c");
    record();
    write("bpf/guard/deeper/more.h", "");
    record();
    let more = ["bpf/guard/deeper/more.h", "bpf/guard/more.h"].map(|path| folder.path().join(path));
    fs::rename(&more[0], &more[1]).unwrap();
    record();

    let different: BTreeSet<_> = seen.iter().collect();
    assert_eq!(different.len(), seen.len(), "{seen:x?}");
}

/// The digest also covers the sources that fill the tables in the gate's configuration.
#[test]
fn tables_of_the_gate_count() {
    let (project, copy) =
        (Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), tempfile::tempdir().unwrap());
    let files = [
        "bpf/gate/gate.bpf.c",
        "crates/calls/src/name.rs",
        "crates/identity/src/script.rs",
        "crates/kernel/src/precall.rs",
        "crates/kernel/src/gate/call_flags.rs",
        "crates/kernel/src/gate/file_use.rs",
        "crates/kernel/src/identity_name.rs",
        "crates/stats/src/histogram.rs",
    ];
    for file in files {
        fs::create_dir_all(copy.path().join(file).parent().unwrap()).unwrap();
        fs::copy(project.join(file), copy.path().join(file)).unwrap();
    }
    let all = || digest(copy.path(), &SOURCES).unwrap();
    let mut seen = BTreeSet::from([all()]);
    for file in files {
        fs::write(copy.path().join(file), "changed").unwrap();
        assert!(seen.insert(all()), "{file} does not count");
    }
    fs::write(copy.path().join("crates/kernel/src/lib.rs"), "").unwrap();
    assert!(seen.contains(&all()), "what does not change the gate counts");
    fs::remove_file(copy.path().join("crates/kernel/src/precall.rs")).unwrap();
    assert!(digest(copy.path(), &SOURCES).is_err(), "a source is missing");
}

#[test]
fn digest_depends_on_the_files_only() {
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (folder, names) in [(&first, ["a.h", "b.h"]), (&second, ["b.h", "a.h"])] {
        fs::create_dir_all(folder.path().join("bpf/wire")).unwrap();
        for name in names {
            fs::write(folder.path().join("bpf/wire").join(name), name).unwrap();
        }
    }
    let [first, second] = [first, second].map(|folder| digest(folder.path(), &["bpf"]).unwrap());
    assert_eq!(first, second);
}
