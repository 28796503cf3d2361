//! What a thread has of its own: its latest calls, its locality frame, and what its signal handlers interrupted.

use std::collections::VecDeque;

use crate::{Call, Locality, Window};

/// Handlers within handlers whose windows are kept.
const HANDLERS: usize = 4;

/// A fork copies it, an exec wipes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    pub(crate) window: Window,
    pub(crate) locality: Locality,
    /// The latest first, each with whether the interrupted call will be made again.
    interrupted: VecDeque<(Window, bool)>,
    again: bool,
}

impl Thread {
    pub fn wipe(&mut self) {
        *self = Self::default();
    }

    pub fn locality(&self) -> &Locality {
        &self.locality
    }

    /// A signal's handler begins, with an empty window of its own. `again`: the call that it interrupts will be made
    /// again after it.
    ///
    /// Of more than a few handlers within each other the outermost are forgotten: a program that leaves them by
    /// longjmp never returns from them.
    pub fn handler_begins(&mut self, again: bool) {
        self.interrupted.push_front((std::mem::take(&mut self.window), again));
        self.interrupted.truncate(HANDLERS);
        self.again = false;
    }

    /// To be asked at a sigreturn: whether it ends a handler, and so is no call of the program's own. The thread goes
    /// on with what the signal interrupted.
    pub fn handler_ends(&mut self) -> bool {
        let Some((window, again)) = self.interrupted.pop_front() else { return false };
        (self.window, self.again) = (window, again);
        true
    }

    /// It was stopped in a call, or a signal without a handler woke it: the kernel, or the program, makes the same call
    /// again.
    pub fn stopped(&mut self) {
        self.again = true;
    }

    /// A `restart_syscall`, by which the kernel makes some calls again: it is no call of the program's own.
    pub fn restarts(&mut self) {
        self.again = false;
    }

    pub(crate) fn is_made_again(&mut self, call: Call) -> bool {
        std::mem::take(&mut self.again) && self.window.current() == Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Parameters, Profile};

    fn profile() -> Profile {
        Profile::new(&[(Kind::Lookahead, 9), (Kind::Sequence, 6)], Parameters::default())
    }

    #[test]
    fn handlers_have_windows_of_their_own() {
        let mut thread = Thread::default();
        let mut profile = profile();
        for call in [1, 2, 3] {
            profile.call(&mut thread, call, std::time::Duration::ZERO);
        }
        let before = thread.clone();
        thread.handler_begins(false);
        assert_eq!(thread.window, Window::default());
        profile.call(&mut thread, 9, std::time::Duration::ZERO);
        assert!(thread.handler_ends());
        assert_eq!(thread.window, before.window);
        assert!(!thread.handler_ends(), "a sigreturn without a signal is a call like any other");
    }

    #[test]
    fn a_call_made_again_is_one_call() {
        let mut thread = Thread::default();
        let mut profile = profile();
        for call in [1, 2, 3] {
            profile.call(&mut thread, call, std::time::Duration::ZERO);
        }
        let before = thread.clone();
        thread.handler_begins(true);
        thread.handler_ends();
        profile.call(&mut thread, 3, std::time::Duration::ZERO);
        assert_eq!(thread.window, before.window);
        thread.stopped();
        profile.call(&mut thread, 4, std::time::Duration::ZERO);
        assert_eq!(thread.window.latest(2), Some(vec![3, 4]), "another call is not");
    }

    #[test]
    fn the_outermost_of_many_handlers_are_forgotten() {
        let mut thread = Thread::default();
        (0..100).for_each(|_| thread.handler_begins(false));
        assert!((0..HANDLERS).all(|_| thread.handler_ends()));
        assert!(!thread.handler_ends());
    }
}
