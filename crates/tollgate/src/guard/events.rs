//! The events of a daemon's guard: in the journal, in a file, and for readers of `guard events`.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use control::{EventSender, Response};

use super::event_file::EventFile;
use super::event_log::EventLog;
use super::report::GuardEvent;
use crate::extension::{EVENTS_NOT_WRITTEN, Losses};

/// Events that `guard events` can still show.
const MAX_RECENT_EVENTS: usize = 10_000;

/// Where the events of a daemon's guard go.
pub struct Events {
    journal: EventLog,
    file: Option<EventFile>,
    recent: VecDeque<Arc<str>>,
    followers: Vec<EventSender>,
}

impl Events {
    /// Events are appended to the file as well, if there is one.
    pub fn start(path: Option<&Path>) -> Result<Self> {
        Ok(Self {
            journal: EventLog::new()?,
            file: path.map(EventFile::open).transpose()?,
            recent: VecDeque::new(),
            followers: Vec::new(),
        })
    }

    /// Logs an event, appends it to the file, sends it to all followers, and stores it for later
    /// readers.
    pub fn publish(&mut self, event: &GuardEvent) {
        self.journal.log_event(event);
        let line: Arc<str> = serde_json::to_string(event).unwrap_or_default().into();
        if let Some(file) = &mut self.file {
            file.append(&line);
        }
        if self.recent.len() == MAX_RECENT_EVENTS {
            self.recent.pop_front();
        }
        self.recent.push_back(Arc::clone(&line));
        for follower in &self.followers {
            follower.send_line(&line);
        }
    }

    /// The events that are missing in the file.
    pub fn losses(&self) -> Losses {
        let lost = self.file.as_ref().map_or(0, EventFile::lost);
        (lost > 0).then(|| (EVENTS_NOT_WRITTEN.to_owned(), lost)).into_iter().collect()
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
