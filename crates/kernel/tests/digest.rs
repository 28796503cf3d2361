//! The digest that the build script makes of the kernel side's sources: a gate of other sources is
//! not joined.

use std::fs;

#[path = "../build/digest.rs"]
mod digest;

use digest::digest;

#[test]
fn every_file_below_the_folder_counts() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| fs::write(folder.path().join(path), text).unwrap();
    let mut seen = Vec::new();
    let mut look = || seen.push(digest(folder.path()).unwrap());

    fs::create_dir_all(folder.path().join("guard/deeper")).unwrap();
    write("gate.c", "a");
    write("guard/model.h", "b");
    look();
    write("guard/model.h", "c");
    look();
    write("guard/deeper/more.h", "");
    look();
    fs::rename(folder.path().join("guard/deeper/more.h"), folder.path().join("guard/more.h"))
        .unwrap();
    look();

    let different: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!(different.len(), seen.len(), "{seen:x?}");
}

#[test]
fn digest_depends_on_the_files_only() {
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (folder, names) in [(&first, ["a.h", "b.h"]), (&second, ["b.h", "a.h"])] {
        fs::create_dir(folder.path().join("wire")).unwrap();
        for name in names {
            fs::write(folder.path().join("wire").join(name), name).unwrap();
        }
    }
    assert_eq!(digest(first.path()).unwrap(), digest(second.path()).unwrap());
}
