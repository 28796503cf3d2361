//! Which session's plugins a thread runs.

use std::sync::atomic::Ordering;

use crate::gate::Gate;
use crate::mapped_array::{atomic_field, field};
use crate::session::is_owner_alive;
use crate::wire;

impl Gate {
    /// Sets whether a session has plugins for its tasks alone. If so, its tasks run these plugins,
    /// and not those of an earlier session in which they count as well.
    pub fn set_own_plugins(&mut self, session: u32, has: bool) {
        if atomic_field!(self.sessions, session, has_own_plugins).swap(has.into(), Ordering::SeqCst)
            == has.into()
        {
            return;
        }
        self.assign_plugins(0);
        // A thread that was forked just now may have its parent's previous plugins. The next poll
        // corrects that; waiting for such threads here would take longer than loading a plugin.
        self.reassigns_plugins = true;
    }

    /// Assigns to each thread the session whose plugins it runs. Of the sessions in which the
    /// thread counts, this is the latest one with plugins. If none has plugins, it is the thread's
    /// own session, whose chain then has only the plugins of the whole machine. The gate does the
    /// same (`inherits_plugins` in bpf/plugin/hooks.bpf.h). The session `without` is ending, and no
    /// thread gets its plugins. It is 0 if no session is ending.
    pub(crate) fn assign_plugins(&self, without: u32) {
        for slot in 1..self.threads.entries() {
            // Reading all 16,384 entries as a whole would make the loading of a plugin slower.
            let row = field!(self.threads, slot, row);
            let plugins = field!(self.threads, slot, plugin_session);
            loop {
                let counts_in = row.read();
                let sessions = self.enclosing_sessions(counts_in.into());
                let now = self.plugin_session_of(&sessions, without) as u16;
                if plugins.read() != now {
                    plugins.write(now);
                }
                // Another session may take the thread over meanwhile.
                if row.read() == counts_in {
                    break;
                }
            }
        }
    }

    /// For a thread that counts in `sessions` (the innermost first), the session whose plugins it
    /// has. 0 stands for the plugins of the whole machine.
    fn plugin_session_of(&self, sessions: &[u32], without: u32) -> u32 {
        let sessions = || sessions.iter().copied().filter(|index| *index != without);
        let owning = sessions().filter(|index| self.sessions.read(*index).has_own_plugins != 0);
        let latest = owning.max_by_key(|index| self.sessions.read(*index).number);
        latest.or_else(|| sessions().next()).unwrap_or(0)
    }

    /// Drops the plugins of sessions whose owners were killed.
    pub(crate) fn drop_dead_owners_plugins(&mut self) {
        for index in 1..wire::SESSIONS {
            let session = self.sessions.read(index);
            let is_left =
                session.used != 0 && session.has_own_plugins != 0 && !is_owner_alive(&session);
            if is_left
                && atomic_field!(self.sessions, index, has_own_plugins).swap(0, Ordering::SeqCst)
                    != 0
            {
                self.assign_plugins(index);
                self.reassigns_plugins = true;
            }
        }
    }
}
