//! The state of a thread: its latest calls, its locality frame, and the windows that its signal
//! handlers interrupted.

use std::collections::VecDeque;

use crate::{CallNumber, Locality, Window};

/// The maximum number of interrupted windows that are kept, one for each nested handler.
const HANDLERS: usize = 4;

/// A fork copies this state, and an exec resets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardThread {
    pub(crate) window: Window,
    pub(crate) locality: Locality,
    /// The interrupted windows, the latest first. The flag of each is true if the kernel restarts
    /// the interrupted call.
    interrupted: VecDeque<(Window, bool)>,
    restart_expected: bool,
}

impl GuardThread {
    /// Empties the window and the locality frame.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The thread's locality frame.
    pub fn locality(&self) -> &Locality {
        &self.locality
    }

    /// Begins a signal handler, with an empty window. `restarts` is true if the kernel restarts the
    /// interrupted call after the handler.
    ///
    /// Only the latest four windows are kept. Windows would otherwise accumulate in a program that
    /// leaves its handlers by longjmp, because it never returns from them.
    pub fn handler_enter(&mut self, restarts: bool) {
        self.interrupted.push_front((std::mem::take(&mut self.window), restarts));
        self.interrupted.truncate(HANDLERS);
        self.restart_expected = false;
    }

    /// Handles a sigreturn, and restores the window that the signal interrupted. Returns whether
    /// the sigreturn ends a handler. Such a sigreturn is not one of the program's calls.
    pub fn handler_return(&mut self) -> bool {
        let Some((window, restarts)) = self.interrupted.pop_front() else { return false };
        (self.window, self.restart_expected) = (window, restarts);
        true
    }

    /// Expects a restart of the latest call, by the kernel or by the program. The caller has seen
    /// that the thread was stopped in the call, or that a signal without a handler woke it.
    pub fn mark_restart(&mut self) {
        self.restart_expected = true;
    }

    /// Handles a `restart_syscall`, by which the kernel restarts some calls. It is not one of the
    /// program's calls.
    pub fn on_restart_syscall(&mut self) {
        self.restart_expected = false;
    }

    /// Whether this call is the expected restart of the latest one. It is expected only once.
    pub(crate) fn consume_restart(&mut self, call: CallNumber) -> bool {
        std::mem::take(&mut self.restart_expected) && self.window.current() == Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelKind, Parameters, Profile};

    fn profile() -> Profile {
        Profile::new(&[(ModelKind::Lookahead, 9), (ModelKind::Sequence, 6)], Parameters::default())
    }

    #[test]
    fn handlers_have_windows_of_their_own() {
        let mut thread = GuardThread::default();
        let mut profile = profile();
        for call in [1, 2, 3] {
            profile.process_syscall(&mut thread, call, std::time::Duration::ZERO);
        }
        let before = thread.clone();
        thread.handler_enter(false);
        assert_eq!(thread.window, Window::default());
        profile.process_syscall(&mut thread, 9, std::time::Duration::ZERO);
        assert!(thread.handler_return());
        assert_eq!(thread.window, before.window);
        assert!(!thread.handler_return(), "a sigreturn without a signal is a call like any other");
    }

    #[test]
    fn restarted_call_is_one_call() {
        let mut thread = GuardThread::default();
        let mut profile = profile();
        for call in [1, 2, 3] {
            profile.process_syscall(&mut thread, call, std::time::Duration::ZERO);
        }
        let before = thread.clone();
        thread.handler_enter(true);
        thread.handler_return();
        profile.process_syscall(&mut thread, 3, std::time::Duration::ZERO);
        assert_eq!(thread.window, before.window);
        thread.mark_restart();
        profile.process_syscall(&mut thread, 4, std::time::Duration::ZERO);
        assert_eq!(thread.window.latest(2), Some(vec![3, 4]), "another call is not");
    }

    #[test]
    fn handler_stack_drops_the_outermost() {
        let mut thread = GuardThread::default();
        (0..100).for_each(|_| thread.handler_enter(false));
        assert!((0..HANDLERS).all(|_| thread.handler_return()));
        assert!(!thread.handler_return());
    }
}
