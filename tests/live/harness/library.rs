//! Builds programs in C with the C library.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{project, tollgate};

/// Builds `examples/NAME.c` in the folder.
pub fn example(name: &str, folder: &Path) -> PathBuf {
    build(&project().join(format!("examples/{name}.c")), &folder.join(name))
}

/// Builds a program in C with the library.
pub fn build(source: &Path, program: &Path) -> PathBuf {
    let library = tollgate().with_file_name("libtollgate.a");
    assert!(
        library.exists(),
        "{} is missing: `cargo build -p libtollgate` makes it",
        library.display()
    );
    let made = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(project().join("crates/libtollgate/include"))
        .arg("-o")
        .args([program, source, &library])
        .status();
    assert!(made.expect("gcc runs").success());
    program.into()
}
