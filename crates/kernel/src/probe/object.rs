//! Loads the parts of `bpf/measure/probe.bpf.c` that one probe needs. It calls libbpf's own
//! functions, because libbpf-rs hides the kernel's error numbers.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{AsRawLibbpf as _, OpenObject, libbpf_sys};

use super::error::{ProbeError, ProbeResult};
use crate::skeletons::probe::ProbeSkelBuilder;

/// The map in which the programs count their runs or rounds.
pub const COUNTER: &str = "counter";

/// The loaded programs and maps of one probe.
pub struct LoadedProbe<'a>(&'a OpenObject);

/// An attached program; detached when dropped.
pub struct Link(NonNull<libbpf_sys::bpf_link>);

/// Loads these programs and maps, and nothing else, while `work` runs.
pub fn with<T>(
    programs: &[&str],
    maps: &[&str],
    work: impl FnOnce(&LoadedProbe) -> ProbeResult<T>,
) -> ProbeResult<T> {
    let what = programs.first().or(maps.first()).copied().unwrap_or_default();
    let refused = |error| ProbeError::new(what, error);
    let mut storage = MaybeUninit::uninit();
    let mut skeleton =
        ProbeSkelBuilder::default().open(&mut storage).map_err(|_| refused(libc::ENOMEM))?;
    let object = skeleton.open_object_mut();
    for mut program in object.progs_mut() {
        let wanted = programs.iter().any(|name| program.name() == *name);
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        let wanted = maps.iter().any(|name| map.name() == *name);
        map.set_autocreate(wanted).map_err(|_| refused(libc::EINVAL))?;
    }
    // SAFETY: an object that is open and not loaded yet; its owner, `skeleton`, closes it.
    match unsafe { libbpf_sys::bpf_object__load(object.as_libbpf_object().as_ptr()) } {
        0 => work(&LoadedProbe(object)),
        error => Err(refused(-error)),
    }
}

/// The C string of a name in the source.
fn name(text: &str) -> CString {
    CString::new(text).expect("names have no zero bytes")
}

/// What libbpf returned for a link, or why it returned none.
fn link(what: &str, raw: *mut libbpf_sys::bpf_link) -> ProbeResult<Link> {
    NonNull::new(raw).map(Link).ok_or_else(|| ProbeError::of(what, &io::Error::last_os_error()))
}

impl LoadedProbe<'_> {
    fn program(&self, program: &str) -> *mut libbpf_sys::bpf_program {
        let object = self.0.as_libbpf_object().as_ptr();
        // SAFETY: searches a loaded object.
        unsafe { libbpf_sys::bpf_object__find_program_by_name(object, name(program).as_ptr()) }
    }

    /// Attaches a program to what its section names.
    pub fn attach(&self, program: &str) -> ProbeResult<Link> {
        // SAFETY: a loaded program of this object, which outlives the link.
        link(program, unsafe { libbpf_sys::bpf_program__attach(self.program(program)) })
    }

    /// Attaches by kprobe.multi to one function. The kernel looks up its name, not libbpf.
    pub fn attach_kprobe_multi(&self, program: &str, function: &str) -> ProbeResult<Link> {
        let function = name(function);
        let mut functions = [function.as_ptr()];
        let options = libbpf_sys::bpf_kprobe_multi_opts {
            sz: size_of::<libbpf_sys::bpf_kprobe_multi_opts>() as _,
            syms: functions.as_mut_ptr(),
            cnt: functions.len() as _,
            ..Default::default()
        };
        // SAFETY: a loaded program of this object, and options that outlive the call.
        link(program, unsafe {
            libbpf_sys::bpf_program__attach_kprobe_multi_opts(
                self.program(program),
                ptr::null(),
                &options,
            )
        })
    }

    /// Runs a program once, without a context.
    pub fn run(&self, program: &str) -> ProbeResult {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            ..Default::default()
        };
        // SAFETY: a loaded program, run with no context and no data.
        let result = unsafe {
            let fd = libbpf_sys::bpf_program__fd(self.program(program));
            libbpf_sys::bpf_prog_test_run_opts(fd, &mut options)
        };
        if result == 0 { Ok(()) } else { Err(ProbeError::new(program, -result)) }
    }

    /// The descriptor of a map.
    pub fn map(&self, map: &str) -> ProbeResult<BorrowedFd<'_>> {
        let object = self.0.as_libbpf_object().as_ptr();
        // SAFETY: searches a loaded object.
        let fd = unsafe { libbpf_sys::bpf_object__find_map_fd_by_name(object, name(map).as_ptr()) };
        if fd < 0 {
            return Err(ProbeError::new(map, -fd));
        }
        // SAFETY: an open descriptor, which the object keeps as long as `self` borrows it.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Puts a map into an array of maps.
    pub fn put(&self, array: &str, inner: &BorrowedFd) -> ProbeResult {
        let outer = self.map(array)?.as_raw_fd();
        let (key, value) = (0u32, inner.as_raw_fd());
        // SAFETY: key and value are as large as an array of maps wants them.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                outer,
                (&raw const key).cast(),
                (&raw const value).cast(),
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(ProbeError::new(array, -result)) }
    }

    /// The value of [`COUNTER`].
    pub fn counter(&self) -> ProbeResult<u64> {
        let map = self.map(COUNTER)?.as_raw_fd();
        let (key, mut value) = (0u32, 0u64);
        // SAFETY: an array of u64, so key and value are as large as it wants them.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_elem(map, (&raw const key).cast(), (&raw mut value).cast())
        };
        if result == 0 { Ok(value) } else { Err(ProbeError::new(COUNTER, -result)) }
    }
}

impl Link {
    /// Runs an iterator program over all tasks.
    pub fn iterate(&self) -> io::Result<()> {
        // SAFETY: the link is alive.
        let fd = unsafe { libbpf_sys::bpf_iter_create(libbpf_sys::bpf_link__fd(self.0.as_ptr())) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: a new descriptor that only this process owns.
        let mut iterator = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        io::copy(&mut iterator, &mut io::sink()).map(drop)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: made by libbpf, and destroyed once.
        unsafe { libbpf_sys::bpf_link__destroy(self.0.as_ptr()) };
    }
}
