//! What programs and Tollgate must agree about for in-band records is the same in the kernel side,
//! in C, in Python, and in the crate `control`.

use std::fs;
use std::path::Path;
use std::process::Command;

use control::{DEFAULT_IN_BAND_SOCKET, DEFAULT_SOCKET, IN_BAND_SOCKET, IN_BAND_VARIABLE};

/// Prints a line for each field: its name, offset and size. The kernel side and the header for
/// programs have the same names.
const PROGRAM: &str = r#"
#include <linux/types.h>
#include <stddef.h>
#include <stdio.h>
#include "wire/in_band.h"
#include "tollgate_in_band.h"

#define SIZE(type, field) sizeof(((struct type *)0)->field)
#define FIELD(of, kind, field)                                                                 \
	_Static_assert(offsetof(struct in_band_##of, field) ==                                 \
			       offsetof(struct tollgate_##kind, field), #field);               \
	_Static_assert(SIZE(in_band_##of, field) == SIZE(tollgate_##kind, field), #field);     \
	printf("%s %zu %zu\n", #kind "." #field, offsetof(struct tollgate_##kind, field),      \
	       SIZE(tollgate_##kind, field))

_Static_assert(IN_BAND_CALLS == TOLLGATE_CALLS && IN_BAND_SLEEPS == TOLLGATE_SLEEPS, "numbers");
_Static_assert(IN_BAND_UNKNOWN == TOLLGATE_UNKNOWN, "a number");

int main(void)
{
	FIELD(others, others, same_user);
	FIELD(others, others, outside);
	FIELD(sleep, sleep, ns);
	FIELD(sleep, sleep, site);
	FIELD(sleep, sleep, count);
	FIELD(sleep, sleep, at_entry);
	FIELD(sleep, sleep, at_exit);
	FIELD(call, call, result);
	FIELD(call, call, ended_ns);
	FIELD(call, call, wall_ns);
	FIELD(call, call, blocked_ns);
	FIELD(call, call, waiting_ns);
	FIELD(call, call, minor_faults);
	FIELD(call, call, major_faults);
	FIELD(call, call, number);
	FIELD(call, call, abi);
	FIELD(call, call, is_rejected);
	FIELD(call, call, sleeps);
	FIELD(call, call, other_sleeps_ns);
	FIELD(call, call, sleep);
	FIELD(thread, records, sequence);
	FIELD(thread, records, losses);
	FIELD(thread, records, calls);
	printf("%u %u %u %u %u\n", IN_BAND_VERSION, IN_BAND_PAGE, IN_BAND_ENTRIES, IN_BAND_CALLS,
	       IN_BAND_SLEEPS);
}
"#;

/// Prints the same of the module. Its losses have no field of their own.
const SCRIPT: &str = r#"
import tollgate_in_band as module

names = {"sleep_count": "sleeps", "_sleep": "sleep"}
for kind in (module.Others, module.Sleep, module.Call):
    for field, *_ in kind._fields_:
        if field != "_unused":
            name, of = names.get(field, field), getattr(kind, field)
            print(f"{kind.__name__.lower()}.{name} {of.offset} {of.size}")
print("records.sequence 0 8\nrecords.losses 8 8")
size = module.ctypes.sizeof(module.Call)
print(f"records.calls {module._CALLS_OFFSET} {size * module._CALLS}")
print(module._VERSION, module._PAGE, module._ENTRIES, module._CALLS, module._SLEEPS)
"#;

fn output(command: &mut Command) -> String {
    let ran = command.output().expect("it is installed");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("UTF-8")
}

fn python(script: &str) -> String {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let mut python = Command::new("python3");
    // -B: no compiled module beside the source.
    output(python.args(["-B", "-c", script]).env("PYTHONPATH", modules))
}

#[test]
fn records_have_one_layout() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    fs::write(&source, PROGRAM).expect("it is written");
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("gcc");
    compiler.arg("-I").arg(library.join("../../bpf")).arg("-I").arg(library.join("include"));
    output(compiler.arg("-o").arg(&program).arg(&source));
    assert_eq!(output(&mut Command::new(program)), python(SCRIPT));
}

#[test]
fn request_without_a_free_descriptor_is_unavailable() {
    let script = "
import resource, tollgate_in_band as module
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
for request in (module.Thread, lambda: module.site_name(0), lambda: module.site_source(0)):
    try:
        request()
    except module.Unavailable as error:
        print(error)
";
    assert_eq!(python(script), "the request has failed: Too many open files\n".repeat(3));
}

#[test]
fn requests_find_the_same_socket() {
    let found = python("import tollgate_in_band as m; print(m.VARIABLE, m._DEFAULT_SOCKET)");
    assert_eq!(found.trim(), format!("{IN_BAND_VARIABLE} {DEFAULT_IN_BAND_SOCKET}"));
    let beside = Path::new(DEFAULT_SOCKET).with_file_name(IN_BAND_SOCKET);
    assert_eq!(beside, Path::new(DEFAULT_IN_BAND_SOCKET));
}
