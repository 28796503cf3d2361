//! The functions of `include/tollgate.h`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, UnwindSafe, catch_unwind};
use std::time::Duration;
use std::{ptr, slice};

use libc::pid_t;

use crate::in_band;
use crate::pace::{Task, TaskType};
use crate::{Error, Plugin, TaskRef, assign, service_of};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// An errno and its explanation.
struct ErrnoMessage(c_int, String);

impl From<Error> for ErrnoMessage {
    fn from(error: Error) -> Self {
        let number = match &error {
            Error::Unreachable(error, _) | Error::NoRecords(error, _) | Error::Kernel(error) => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::Refused(_) => libc::EINVAL,
        };
        Self(number, error.to_string())
    }
}

/// Saves the message for `tollgate_error`.
fn record_error(ErrnoMessage(number, sentence): ErrnoMessage) -> c_int {
    let sentence = CString::new(sentence.replace('\0', "")).expect("no NUL is left");
    // The thread-local may be gone already if the thread is exiting.
    let _ = LAST_ERROR.try_with(|latest| latest.replace(sentence));
    -number
}

/// The given ID, or `None` for 0, which stands for the caller.
fn nonzero_pid(pid: pid_t) -> Result<Option<u32>, Error> {
    match u32::try_from(pid) {
        Ok(0) => Ok(None),
        Ok(pid) => Ok(Some(pid)),
        Err(_) => Err(Error::Refused(format!("there is no process or thread {pid}"))),
    }
}

fn to_errno(act: impl FnOnce() -> Result<c_int, ErrnoMessage> + UnwindSafe) -> c_int {
    let done = catch_unwind(act).unwrap_or_else(|_| {
        Err(ErrnoMessage(libc::EIO, "an internal error of libtollgate".into()))
    });
    done.unwrap_or_else(record_error)
}

/// # Safety
/// `text` is NULL or a NUL-terminated string that outlives the result.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// # Safety
/// `service` is NULL or a NUL-terminated string.
unsafe fn assigned(
    who: impl FnOnce() -> Result<TaskRef, Error>,
    service: *const c_char,
) -> Result<c_int, ErrnoMessage> {
    // SAFETY: the caller's contract.
    let name = unsafe { text(service) }
        .ok_or_else(|| Error::Refused("the name of a service must be a UTF-8 string".into()))?;
    assign(who()?, name)?;
    Ok(0)
}

/// # Safety
/// `service` is a NUL-terminated string or NULL; NULL is rejected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_service_assign(pid: pid_t, service: *const c_char) -> c_int {
    // SAFETY: the caller's contract.
    to_errno(|| unsafe {
        assigned(|| Ok(nonzero_pid(pid)?.map_or(TaskRef::OwnProcess, TaskRef::Process)), service)
    })
}

/// # Safety
/// As for `tollgate_service_assign`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_service_assign_thread(
    tid: pid_t,
    service: *const c_char,
) -> c_int {
    // SAFETY: the caller's contract.
    to_errno(|| unsafe {
        assigned(|| Ok(nonzero_pid(tid)?.map_or(TaskRef::OwnThread, TaskRef::Thread)), service)
    })
}

/// # Safety
/// `name` is NULL or points to `size` writable bytes that no other thread uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_service_of(tid: pid_t, name: *mut c_char, size: usize) -> c_int {
    to_errno(|| {
        let service = service_of(nonzero_pid(tid)?)?;
        // SAFETY: the caller's contract.
        unsafe { write_name(&service, name, size) }
    })
}

/// Writes a name with its NUL. Returns its length.
///
/// # Safety
/// As of `tollgate_service_of`.
unsafe fn write_name(text: &str, name: *mut c_char, size: usize) -> Result<c_int, ErrnoMessage> {
    if name.is_null() || size <= text.len() {
        let sentence = format!("the buffer is too small: the name has {} bytes", text.len());
        return Err(ErrnoMessage(libc::ERANGE, sentence));
    }
    // SAFETY: the caller's contract; the name and a NUL fit into `size` bytes.
    unsafe {
        name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        *name.add(text.len()) = 0;
    }
    Ok(text.len() as c_int)
}

/// Returns NULL on failure.
///
/// # Safety
/// `name` is a NUL-terminated string or NULL; NULL is rejected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_open(name: *const c_char) -> *mut Plugin {
    let mut opened = ptr::null_mut();
    // Unwind safety: `opened` is set last, so it is still NULL after a panic.
    to_errno(AssertUnwindSafe(|| {
        // SAFETY: the caller's contract.
        let name = unsafe { text(name) }
            .ok_or_else(|| Error::Refused("the name of a plugin must be a UTF-8 string".into()))?;
        opened = Box::into_raw(Box::new(Plugin::open(name)?));
        Ok(0)
    }));
    opened
}

/// # Safety
/// `plugin` is open, `arguments` points to `count` numbers, and `result` is NULL or points to a
/// writable int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_call(
    plugin: *const Plugin,
    arguments: *const u64,
    count: usize,
    result: *mut c_int,
) -> c_int {
    to_errno(|| {
        if arguments.is_null() && count > 0 {
            let sentence = format!("{count} arguments are given, and their address is NULL");
            return Err(ErrnoMessage(libc::EINVAL, sentence));
        }
        // SAFETY: the caller's contract.
        let (plugin, arguments) = unsafe {
            (&*plugin, if count == 0 { &[] } else { slice::from_raw_parts(arguments, count) })
        };
        let returned = plugin.call(arguments)?;
        if !result.is_null() {
            // SAFETY: the caller's contract.
            unsafe { *result = returned };
        }
        Ok(0)
    })
}

/// # Safety
/// `plugin` is open, `name` is NULL or a NUL-terminated string, and `size` is NULL or points to a
/// writable `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_variable(
    plugin: *const Plugin,
    name: *const c_char,
    size: *mut usize,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    let (name, plugin) = unsafe { (text(name), &*plugin) };
    let Some((address, bytes)) = name.and_then(|name| plugin.variable(name)) else {
        let name = name.unwrap_or("of this name");
        record_error(Error::Refused(format!("the plugin has no variable {name}")).into());
        return ptr::null_mut();
    };
    if !size.is_null() {
        // SAFETY: the caller's contract.
        unsafe { *size = bytes };
    }
    address.cast()
}

/// Returns 1 or 0.
///
/// # Safety
/// `plugin` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_is_stale(plugin: *const Plugin) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { (*plugin).is_stale() }.into()
}

/// # Safety
/// `plugin` is NULL or open. It must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_close(plugin: *mut Plugin) {
    if !plugin.is_null() {
        // SAFETY: the caller's contract; `tollgate_plugin_open` allocated the box.
        drop(unsafe { Box::from_raw(plugin) });
    }
}

/// The message of this thread's latest failed call, valid until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_error() -> *const c_char {
    LAST_ERROR.with_borrow(|sentence| sentence.as_ptr())
}

/// # Safety
/// `name` is a NUL-terminated string or NULL, which stands for an empty name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_pace_type(name: *const c_char) -> u64 {
    // SAFETY: the caller's contract.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    TaskType::new(name).id()
}

/// `include/tollgate.h` describes this function and those below.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_pace_begin(kind: u64) -> u64 {
    TaskType::from_id(kind).begin().id()
}

/// Ends a task.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_pace_end(task: u64) {
    Task::from_id(task).end();
}

/// Ends a task and begins the next one.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_pace_end_and_begin(task: u64, kind: u64) -> u64 {
    Task::from_id(task).end_and_begin(TaskType::from_id(kind)).id()
}

/// Changes the deadline of a task.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_pace_set_deadline(task: u64, nanoseconds: u64) {
    Task::from_id(task).set_deadline(Duration::from_nanos(nanoseconds));
}

/// Returns NULL on failure. `include/tollgate_in_band.h` describes this function and those below.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_records() -> *const c_void {
    let mut page = ptr::null();
    // Unwind safety: `page` is set last, so it is still NULL after a panic.
    to_errno(AssertUnwindSafe(|| {
        page = in_band::thread()?.page();
        Ok(0)
    }));
    page
}

/// # Safety
/// As of `tollgate_service_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_site_name(site: u32, name: *mut c_char, size: usize) -> c_int {
    // SAFETY: the caller's contract.
    to_errno(|| unsafe { write_name(&in_band::site_name(site)?, name, size) })
}

/// # Safety
/// As of `tollgate_service_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_site_source(
    site: u32,
    source: *mut c_char,
    size: usize,
) -> c_int {
    to_errno(|| {
        let unknown = || ErrnoMessage(libc::ENODATA, "the line of this site is not known".into());
        let text = in_band::site_source(site)?.ok_or_else(unknown)?;
        // SAFETY: the caller's contract.
        unsafe { write_name(&text, source, size) }
    })
}
