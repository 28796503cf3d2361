//! The functions of `include/tollgate.h`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, UnwindSafe, catch_unwind};
use std::{ptr, slice};

use libc::pid_t;

use crate::{Error, Plugin, Who, assign, service_of};

thread_local! {
    static LATEST: RefCell<CString> = RefCell::default();
}

/// An errno, and why.
struct Failure(c_int, String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let number = match &error {
            Error::Unreachable(error, _) | Error::Kernel(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Error::Refused(_) => libc::EINVAL,
        };
        Self(number, error.to_string())
    }
}

/// Keeps the sentence for `tollgate_error`.
fn failed(Failure(number, sentence): Failure) -> c_int {
    let sentence = CString::new(sentence.replace('\0', "")).expect("no NUL is left");
    // A thread that is about to end has none any more.
    let _ = LATEST.try_with(|latest| latest.replace(sentence));
    -number
}

/// The number, if it is one of another.
fn other(pid: pid_t) -> Result<Option<u32>, Error> {
    match u32::try_from(pid) {
        Ok(0) => Ok(None),
        Ok(pid) => Ok(Some(pid)),
        Err(_) => Err(Error::Refused(format!("there is no process or thread {pid}"))),
    }
}

fn answer(act: impl FnOnce() -> Result<c_int, Failure> + UnwindSafe) -> c_int {
    let done =
        catch_unwind(act).unwrap_or_else(|_| Err(Failure(libc::EIO, "a fault of the library itself".into())));
    done.unwrap_or_else(failed)
}

/// # Safety
/// `text` is NULL or a NUL-terminated string, for as long as what is returned.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as promised.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// # Safety
/// `service` is NULL or a NUL-terminated string.
unsafe fn assigned(
    who: impl FnOnce() -> Result<Who, Error>,
    service: *const c_char,
) -> Result<c_int, Failure> {
    // SAFETY: as promised.
    let name = unsafe { text(service) }.ok_or_else(|| Error::Refused("a service's name is a text".into()))?;
    assign(who()?, name)?;
    Ok(0)
}

/// # Safety
/// `service` is a NUL-terminated string, or NULL, which is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_service_assign(pid: pid_t, service: *const c_char) -> c_int {
    // SAFETY: as promised.
    answer(|| unsafe { assigned(|| Ok(other(pid)?.map_or(Who::OwnProcess, Who::Process)), service) })
}

/// # Safety
/// As `tollgate_service_assign`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_service_assign_thread(tid: pid_t, service: *const c_char) -> c_int {
    // SAFETY: as promised.
    answer(|| unsafe { assigned(|| Ok(other(tid)?.map_or(Who::OwnThread, Who::Thread)), service) })
}

/// # Safety
/// There are `size` bytes at `name`, which nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_service_of(tid: pid_t, name: *mut c_char, size: usize) -> c_int {
    answer(|| {
        let service = service_of(other(tid)?)?;
        if name.is_null() || size <= service.len() {
            let sentence = format!("the service's name has {} bytes", service.len());
            return Err(Failure(libc::ERANGE, sentence));
        }
        // SAFETY: as promised, with room for the name and a NUL.
        unsafe {
            name.copy_from_nonoverlapping(service.as_ptr().cast(), service.len());
            *name.add(service.len()) = 0;
        }
        Ok(service.len() as c_int)
    })
}

/// NULL, where it fails.
///
/// # Safety
/// `name` is a NUL-terminated string, or NULL, which is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_open(name: *const c_char) -> *mut Plugin {
    let mut opened = ptr::null_mut();
    // Where it panics, nothing was opened.
    answer(AssertUnwindSafe(|| {
        // SAFETY: as promised.
        let name = unsafe { text(name) }.ok_or_else(|| Error::Refused("a plugin's name is a text".into()))?;
        opened = Box::into_raw(Box::new(Plugin::open(name)?));
        Ok(0)
    }));
    opened
}

/// # Safety
/// `plugin` is one that is open; there are `count` numbers at `arguments`, and a place for one at `result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_call(
    plugin: *const Plugin,
    arguments: *const u64,
    count: usize,
    result: *mut c_int,
) -> c_int {
    answer(|| {
        // SAFETY: as promised.
        let (plugin, arguments) =
            unsafe { (&*plugin, if count == 0 { &[] } else { slice::from_raw_parts(arguments, count) }) };
        let returned = plugin.call(arguments)?;
        if !result.is_null() {
            // SAFETY: as promised.
            unsafe { *result = returned };
        }
        Ok(0)
    })
}

/// # Safety
/// `plugin` is one that is open, `name` a NUL-terminated string, and there is a place for a number at `size`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_variable(
    plugin: *const Plugin,
    name: *const c_char,
    size: *mut usize,
) -> *mut c_void {
    // SAFETY: as promised.
    let found = unsafe { text(name).and_then(|name| (*plugin).variable(name)) };
    let Some((place, bytes)) = found else { return ptr::null_mut() };
    if !size.is_null() {
        // SAFETY: as promised.
        unsafe { *size = bytes };
    }
    place.cast()
}

/// # Safety
/// `plugin` is one that is open, which it is not any more then, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_plugin_close(plugin: *mut Plugin) {
    if !plugin.is_null() {
        // SAFETY: as promised; it was made by `tollgate_plugin_open`.
        drop(unsafe { Box::from_raw(plugin) });
    }
}

/// Of this thread's latest call that failed, until its next one does.
#[unsafe(no_mangle)]
pub extern "C" fn tollgate_error() -> *const c_char {
    LATEST.with_borrow(|sentence| sentence.as_ptr())
}
