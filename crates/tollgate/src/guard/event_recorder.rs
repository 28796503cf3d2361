//! Makes the events of a session's report from the gate's records.

use std::collections::BTreeMap;

use kernel::clock::{now_ns, wall_clock};
use kernel::guard::profile::window_symbols;
use kernel::wire;

use super::activity::held_ns;
use super::placement::UnitAndContainer;
use super::report::GuardEvent;
use super::tracked_program::{TrackedProgram, name};
use crate::user;

/// The maximum number of events in a report. Further events are only counted.
const MAX_EVENTS: usize = 10_000;

/// The events that have not been taken yet.
pub struct EventRecorder {
    began_ns: u64,
    events: Vec<GuardEvent>,
    left_out: u64,
    /// The names of the users of these events.
    users: BTreeMap<u32, Option<String>>,
}

impl EventRecorder {
    /// Times in events are relative to this moment.
    pub fn start() -> Self {
        Self { began_ns: now_ns(), events: Vec::new(), left_out: 0, users: BTreeMap::new() }
    }

    /// Sets the moment to which times in events are relative.
    pub fn begin(&mut self, began_ns: u64) {
        self.began_ns = began_ns;
    }

    /// The events since the last call of this function.
    pub fn take(&mut self) -> Vec<GuardEvent> {
        self.users.clear();
        std::mem::take(&mut self.events)
    }

    /// The number of events that were only counted.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Adds an event of a program, which returned to training because of it if `retrains`.
    pub fn record(
        &mut self,
        event: &wire::guard_event,
        program: &mut TrackedProgram,
        executable: Option<String>,
        retrains: bool,
    ) {
        if self.events.len() == MAX_EVENTS {
            self.left_out += 1;
            return;
        }
        let window = window_symbols(event.window);
        let before = window.len().checked_sub(2).map(|index| window[index]);
        let mismatches = event.mismatches & !(wire::GUARD_DENOUNCED as u16);
        let expected =
            before.filter(|_| mismatches > 0).map(|symbol| program.expected_after(symbol));
        let late_ns = now_ns().saturating_sub(event.time_ns);
        let UnitAndContainer { unit, container } = UnitAndContainer::of(event.tgid);
        let user = self.user_name(event.uid);
        self.events.push(GuardEvent {
            time: humantime::format_rfc3339_micros(wall_clock(event.time_ns)).to_string(),
            at_ns: event.time_ns.saturating_sub(self.began_ns),
            unit,
            container,
            pid: event.tgid,
            tid: event.pid,
            program: program.path_text(),
            scope: program.scope.clone(),
            command: wire::text(&event.comm),
            executable,
            uid: event.uid,
            user,
            parent_pid: (event.parent != 0).then_some(event.parent),
            parent_command: wire::text(&event.parent_comm),
            call: name(event.call),
            sequence: window.iter().map(|symbol| program.call(*symbol)).collect(),
            expected: expected.unwrap_or_default(),
            mismatches,
            is_denounced: mismatches != event.mismatches,
            lfc: event.lfc,
            action: action_name(event.action.into()).into(),
            restraint: restraint(event.restraint).map(str::to_owned),
            retrains,
            effect: effect(event).map(Into::into),
            held_ns: held_ns(event),
            late_ns,
        });
    }

    fn user_name(&mut self, uid: u32) -> Option<String> {
        self.users.entry(uid).or_insert_with(|| user::name(uid)).clone()
    }
}

fn action_name(action: u32) -> &'static str {
    match action {
        wire::GUARD_DELAY => "delay",
        wire::GUARD_DENY => "deny",
        wire::GUARD_STOP => "stop",
        wire::GUARD_KILL => "kill",
        _ => "observe",
    }
}

fn restraint(reason: u32) -> Option<&'static str> {
    match reason {
        wire::GUARD_EXEMPT => Some("never held"),
        wire::GUARD_MAX_HELD => Some("too many are held"),
        wire::GUARD_TERMINATING => Some("requested to end"),
        wire::GUARD_NEVER_RETURNS => Some("the call has no end"),
        wire::GUARD_TRACED => Some("its tracer decides"),
        wire::GUARD_UNIDENTIFIED => Some("not identified yet"),
        _ => None,
    }
}

/// The point of the call at which the response takes effect, as reports have it.
fn effect(event: &wire::guard_event) -> Option<&'static str> {
    match (u32::from(event.action), event.precall) {
        (wire::GUARD_OBSERVE, _) => None,
        (wire::GUARD_DELAY | wire::GUARD_STOP, 0) | (wire::GUARD_KILL, _) => Some("end"),
        (_, before) if before & wire::PRECALL_IP_ONLY != 0 => Some("before-ip"),
        (_, before) if before & wire::PRECALL_DEFER != 0 => Some("next"),
        _ => Some("before"),
    }
}
