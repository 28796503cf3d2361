//! The events of a daemon's guard: in the journal, in a file, and for readers of `guard events`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use control::{EventSender, Response};

use super::event_log::EventLog;
use super::report::GuardEvent;
use crate::format::shown_path;
use crate::output::log_message;

/// Events that `guard events` can still show.
const MAX_RECENT_EVENTS: usize = 10_000;

/// Where the events of a daemon's guard go.
pub struct Events {
    journal: EventLog,
    file: Option<File>,
    recent: VecDeque<Arc<str>>,
    followers: Vec<EventSender>,
}

impl Events {
    /// Events are appended to the file as well, if there is one.
    pub fn start(path: Option<&Path>) -> Result<Self> {
        let file = path.map(|path| {
            let options = OpenOptions::new().create(true).append(true).open(path);
            options.with_context(|| format!("cannot write events to {}", shown_path(path)))
        });
        Ok(Self {
            journal: EventLog::new(),
            file: file.transpose()?,
            recent: VecDeque::new(),
            followers: Vec::new(),
        })
    }

    /// Logs an event, appends it to the file, sends it to all followers, and stores it for later
    /// readers.
    pub fn publish(&mut self, event: &GuardEvent) {
        self.journal.log_event(event);
        let line: Arc<str> = serde_json::to_string(event).unwrap_or_default().into();
        if let Some(Err(error)) = self.file.as_mut().map(|file| writeln!(file, "{line}")) {
            log_message(&format!("cannot write to the file of events, which ends here: {error}"));
            self.file = None;
        }
        if self.recent.len() == MAX_RECENT_EVENTS {
            self.recent.pop_front();
        }
        self.recent.push_back(Arc::clone(&line));
        for follower in &self.followers {
            follower.send_line(&line);
        }
    }

    /// The latest events, and with `follow` also new ones.
    pub fn lines(&mut self, follow: bool) -> Response {
        let recent = self.recent.iter().cloned().collect();
        let follower = follow.then(|| {
            let (sender, receiver) = EventSender::new();
            self.followers.push(sender);
            receiver
        });
        Response::Lines(recent, follower)
    }

    /// Removes followers that have disconnected, and logs how many events were not logged.
    pub fn tend(&mut self) {
        self.followers.retain(EventSender::is_followed);
        self.journal.tend();
    }
}
