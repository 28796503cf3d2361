//! Whether this process was given a stdout: the standard library opens /dev/null in place of one that is closed, and what is written
//! there would be lost without a word.

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    // SAFETY: a plain query.
    let is_closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

// SAFETY: what is in this section is called before `main`, with arguments that C leaves aside; `look` needs nothing that is made later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

pub fn was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
