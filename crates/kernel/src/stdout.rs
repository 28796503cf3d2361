//! Whether this process was given a stdout: the standard library opens /dev/null in place of a
//! closed one, and output to that would be lost without a message.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn record_stdout() {
    // SAFETY: a plain query.
    let is_closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

// SAFETY: functions in this section are called before `main`, with arguments that C ignores; `look`
// needs nothing that is initialized later.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_STD_FDS: extern "C" fn() = record_stdout;

pub fn was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
