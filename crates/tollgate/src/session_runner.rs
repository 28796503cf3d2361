//! Runs a session for `run`, `lens`, the daemon and the cost lab: starts the extensions, gives them
//! the gate's records, and makes the report from their sections.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Error, Result};
use control::Response;
use kernel::clock::now_ns;
use kernel::extensions;
use kernel::gate::{Gate, Lock};
use kernel::guard::holds::is_stopped_by_guard;
use kernel::ring::RingReader;
use kernel::session::{PendingChildren, Session, SessionOptions};
use kernel::wire;
use serde_json::Value;

use crate::cgroup_walk;
use crate::extension::{
    Extension, ExtensionSetup, GAPS, Joining, LossReader, Losses, MESSAGES_NOT_WRITTEN, Request,
    SessionContext,
};
use crate::format::{number_of, shown_path};
use crate::output::{
    log_message, lost_messages, print_message, without_numbers, write_messages_in_background,
};
use crate::process_selection::Select;
use crate::report::{Header, Report};
use crate::session_toll;

/// How often to tend the gate.
pub const TEND_INTERVAL: Duration = Duration::from_millis(100);
/// How soon to try again to free rows. In this time, a shell that starts one short command after
/// the other uses some ten rows.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// After this wait for the lock, a message gives the reason. Loading a gate takes a tenth of this
/// time.
const LOCK_NOTICE_AFTER: Duration = Duration::from_secs(2);
/// How long a process that loaded a newer generation waits at its end for the others to follow.
const HANDOVER_LIMIT_NS: u64 = 2_000_000_000;

/// The bits of a session with a lens alone.
const LENS_ONLY: u32 = wire::LENS
    | wire::LENS_SITES
    | wire::LENS_SLOW
    | wire::LENS_SAMPLE
    | wire::LENS_FILES
    | wire::LENS_TRACE
    | wire::LENS_FLAME
    | wire::LENS_FLAME_CPU
    | wire::LENS_WHY;

/// What `run` and `lens` know at the end of a session.
pub struct SessionEnd {
    pub command: Vec<String>,
    pub exit: Option<i32>,
    /// When the command has ended.
    pub ended_ns: Option<u64>,
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
    pub notes: Vec<String>,
    pub measures_toll: bool,
}

pub struct SessionRunner {
    gate: Gate,
    session: Session,
    options: SessionOptions,
    extensions: Vec<Box<dyn Extension>>,
    ring: RingReader,
    /// Rows that have ended and are not read yet.
    ended_rows: BTreeSet<u32>,
    began_ns: u64,
    gaps: u64,
    begun: bool,
    ended: bool,
    /// Another session has existed while this one attached tasks, and may have taken them.
    was_shared: bool,
    /// The numbers of other sessions that guard processes, or that gate new ones.
    rivals: BTreeSet<u64>,
}

impl SessionRunner {
    /// Starts a session with these extensions, which are called in this order.
    pub fn start(setups: Vec<Box<dyn ExtensionSetup>>) -> Result<Self> {
        Self::start_with(setups, SessionOptions::default(), 0)
    }

    /// Starts a session of these processes. Call [`Self::follow_cgroups`] before the processes are
    /// attached.
    pub fn start_for(select: &Select, setups: Vec<Box<dyn ExtensionSetup>>) -> Result<Self> {
        Self::start_with(setups, SessionOptions::default(), gate_mask(select))
    }

    /// As [`Self::start_for`]. With a lens alone, what is attached before [`Self::begin`] does not
    /// count before.
    pub fn start_watch(select: &Select, setups: Vec<Box<dyn ExtensionSetup>>) -> Result<Self> {
        let options = SessionOptions { awaits_begin: true, ..Default::default() };
        Self::start_with(setups, options, gate_mask(select))
    }

    /// `gate_mask`: what the gate needs besides what applies to the tasks.
    fn start_with(
        setups: Vec<Box<dyn ExtensionSetup>>,
        mut options: SessionOptions,
        gate_mask: u32,
    ) -> Result<Self> {
        // From here on, this thread must tend the gate in time.
        write_messages_in_background();
        setups.iter().for_each(|setup| setup.configure(&mut options));
        options.awaits_begin &= options.mask & !LENS_ONLY == 0;
        let lock = Lock::take_with_notice(LOCK_NOTICE_AFTER, |path| {
            let _ = print_message(&format!(
                "tollgate: waiting for another Tollgate process that holds the lock {} (`fuser` \
                shows which one)",
                shown_path(path)
            ));
        })?;
        let mut gate = Gate::open(&lock, options.mask | gate_mask, &extensions::ALL)?;
        let session = gate.start_session(&lock, &options).map_err(Error::from);
        drop(lock);
        let open = |session: &Session| RingReader::new(&session.ring, "opening the ring buffer");
        let started = session.and_then(|session| Ok((open(&session)?, session)));
        if started.is_err() {
            wait_for_followers(&mut gate, None);
        }
        let (ring, session) = started?;
        let mut runner = Self {
            gate,
            session,
            options,
            extensions: Vec::new(),
            ring,
            ended_rows: BTreeSet::new(),
            began_ns: now_ns(),
            gaps: 0,
            begun: false,
            ended: false,
            was_shared: false,
            rivals: BTreeSet::new(),
        };
        for setup in setups {
            let extension = setup
                .start(&mut SessionContext { gate: &mut runner.gate, session: &runner.session })?;
            runner.extensions.push(extension);
        }
        Ok(runner)
    }

    /// Calls all extensions; the first failure ends the round.
    fn each(
        &mut self,
        mut call: impl FnMut(&mut dyn Extension, &mut SessionContext<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut context = SessionContext { gate: &mut self.gate, session: &self.session };
        let mut extensions = self.extensions.iter_mut();
        extensions.try_for_each(|extension| call(extension.as_mut(), &mut context))
    }

    /// Prepares the extensions for tasks that join later.
    pub fn prepare_machine(&mut self) -> Result<()> {
        self.each(|extension, context| extension.prepare(context, &mut Joining::Later))
    }

    /// Prepares the extensions for a command.
    pub fn prepare_command(&mut self, program: &Path, words: &[OsString]) -> Result<()> {
        self.each(|extension, context| {
            extension.prepare(context, &mut Joining::Command { program, words })
        })
    }

    /// Attaches running processes. Returns how many processors could not be visited.
    pub fn attach(&mut self, pids: &[u32]) -> Result<u32> {
        let mut scopes = BTreeMap::new();
        self.each(|extension, context| {
            extension.prepare(context, &mut Joining::Processes { pids, scopes: &mut scopes })
        })?;
        let missed = self.gate.attach_tasks(&mut self.session, pids, &scopes)?;
        self.was_shared |= self.is_shared();
        Ok(missed)
    }

    /// From now on, a task that enters one of the selected control groups belongs to the session.
    pub fn follow_cgroups(&mut self, select: &Select) -> Result<()> {
        if !select.has_cgroups() {
            return Ok(());
        }
        self.gate.begin_following(&mut self.session)?;
        // A control group that is created meanwhile is in the walk, or is awaited by then.
        for awaited in cgroup_walk::awaited(select) {
            self.gate.await_cgroup(&self.session, &awaited)?;
        }
        let follow = |cgroup| Ok(self.gate.follow_cgroup(&self.session, cgroup)?);
        cgroup_walk::visit_selected(select, follow)
    }

    /// Gates all processes that start from now on.
    pub fn gate_new_processes(&mut self) {
        self.gate.gate_new_processes(&self.session);
    }

    /// Gates the next children of this thread, until the value is dropped.
    pub fn pending_children(&self) -> Result<PendingChildren<'_>> {
        Ok(self.gate.pending_children(&self.session, true)?)
    }

    pub fn has_threads(&self) -> bool {
        self.gate.has_threads(self.session.index)
    }

    /// Whether the gate has any other session.
    pub fn is_shared(&self) -> bool {
        self.gate.is_shared(&self.session)
    }

    /// Whether a session has ended, since the last call, that may have had processes which this
    /// session is to guard. Ends the sessions of killed processes.
    pub fn has_rival_ended(&mut self) -> bool {
        if self.gate.has_dead_sessions()
            && let Ok(Some(lock)) = Lock::try_take()
        {
            self.gate.clear_dead_sessions(&lock);
        }
        let others = self.gate.other_sessions(&self.session);
        let has_ended = self.rivals.iter().any(|number| !others.contains_key(number));
        // A session that is ending gates no new processes, but still has the old ones.
        let is_rival = |(number, takes): (u64, bool)| {
            (takes || self.rivals.contains(&number)).then_some(number)
        };
        self.rivals = others.into_iter().filter_map(is_rival).collect();
        has_ended
    }

    /// Whether a guard has stopped this process, or may have.
    pub fn is_stopped_by_guard(&self, process: u32) -> bool {
        is_stopped_by_guard(&self.gate, process)
    }

    /// A descriptor that is readable when a record has arrived.
    pub fn descriptor(&self) -> i32 {
        self.ring.descriptor()
    }

    /// Restarts the elapsed time. `pids`: processes that may also count in another session, and
    /// could not be attached before, or that another session has taken since. Returns how many
    /// processors could not be visited.
    pub fn begin(&mut self, pids: &[u32]) -> Result<u32> {
        // Another process may have activated a newer generation meanwhile.
        self.follow_generation()?;
        self.begun = true;
        let shared = if self.was_shared || self.is_shared() { pids } else { &[] };
        let beginning = self.gate.begin(&mut self.session, shared)?;
        self.began_ns = beginning.began_ns;
        self.extensions.iter_mut().for_each(|extension| extension.begin(self.began_ns));
        Ok(beginning.missed)
    }

    /// The time until the next call of [`Self::tend`].
    pub fn deadline(&self) -> Duration {
        // Rows that have ended could not be freed, because another process had the lock.
        let longest = if self.ended_rows.is_empty() { TEND_INTERVAL } else { LOCK_RETRY_INTERVAL };
        let extensions = self.extensions.iter();
        extensions.fold(longest, |longest, extension| extension.deadline(longest))
    }

    /// The summaries of the extensions; for `processes`, see [`Extension::summary`].
    pub fn summaries(&self, processes: Option<usize>) -> Vec<String> {
        self.extensions.iter().filter_map(|extension| extension.summary(processes)).collect()
    }

    /// Must be called at least once in each [`TEND_INTERVAL`].
    pub fn tend(&mut self) -> Result<()> {
        self.follow_generation()?;
        self.process_records()?;
        self.each(|extension, context| extension.tend(context))?;
        self.ended_rows.extend(self.gate.rows_handed_over(self.session.index));
        if !self.ended_rows.is_empty()
            && let Some(lock) = Lock::try_take()?
        {
            let rows = std::mem::take(&mut self.ended_rows);
            self.each(|extension, context| extension.finish_rows(context, &lock, &rows))?;
            if self.options.mask & wire::LENS == 0 {
                self.gate.free_ended_rows(&lock, self.session.index, &rows);
            }
        }
        Ok(())
    }

    /// Calls [`Extension::settle`] of all extensions.
    pub fn settle(&mut self) -> Result<()> {
        self.each(|extension, context| extension.settle(context))
    }

    fn process_records(&mut self) -> Result<()> {
        let mut entered = BTreeSet::new();
        for record in &self.ring.read()? {
            if let Some(process) = kernel::ring::cgroup_entered(record) {
                entered.insert(process.tgid);
                continue;
            }
            if let Some(done) = kernel::ring::row_done(record) {
                self.ended_rows.insert(done.row);
                continue;
            }
            let mut context = SessionContext { gate: &mut self.gate, session: &self.session };
            for extension in &mut self.extensions {
                if extension.on_record(&mut context, record)? {
                    break;
                }
            }
        }
        // The session's PID namespace does not contain a process with number 0.
        entered.remove(&0);
        if !entered.is_empty() {
            self.attach(&Vec::from_iter(entered))?;
        }
        Ok(())
    }

    fn follow_generation(&mut self) -> Result<()> {
        let acted = self.gate.tend_session(&self.session)?;
        // A session without threads has missed nothing.
        if !acted && (self.begun || self.has_threads()) {
            self.gaps += 1;
        }
        Ok(())
    }

    /// Calls [`Extension::refresh`] of all extensions, and returns their failures.
    pub fn refresh(&mut self) -> Vec<Error> {
        let mut failures = Vec::new();
        let refreshed = self.each(|extension, context| {
            failures.extend(extension.refresh(context).err());
            Ok(())
        });
        failures.extend(refreshed.err());
        failures
    }

    /// Gives a request to the extension with its key. Returns `None` if no extension has the key.
    pub fn reply(&mut self, process: u32, request: Value) -> Option<Result<Response>> {
        let losses = self.loss_reader();
        let mut context = SessionContext { gate: &mut self.gate, session: &self.session };
        let has_key = |extension: &&mut Box<dyn Extension>| {
            extension.request_key().is_some_and(|key| request.get(key).is_some())
        };
        self.extensions.iter_mut().for_each(|one| one.note_client(&mut context, process));
        let extension = self.extensions.iter_mut().find(has_key)?;
        Some(extension.reply(&mut context, Request { process, value: request, losses }))
    }

    /// The page of metrics.
    pub fn metrics(&mut self) -> Result<String> {
        let (mut page, losses) = (String::new(), self.losses()?);
        self.each(|extension, context| extension.metrics(context, &losses, &mut page))?;
        crate::metrics::losses(&mut page, &losses);
        crate::metrics::build_info(&mut page);
        Ok(page)
    }

    /// Saves what must outlast the session. All extensions save, even if one fails. Returns the
    /// first failure.
    pub fn save(&mut self) -> Result<()> {
        let extensions = self.extensions.iter_mut();
        extensions.map(|extension| extension.save()).fold(Ok(()), Result::and)
    }

    /// Ends the session without a report.
    pub fn cancel(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        // As soon as the session has ended, another one may get its number.
        self.extensions.iter_mut().for_each(|extension| extension.leave());
        wait_for_followers(&mut self.gate, Some(self.session.index));
        self.gate.end_session(&self.session)?;
        self.extensions.iter_mut().for_each(|extension| extension.end());
        Ok(())
    }

    /// Detaches the tasks, collects the sections of the report, measures the toll and frees the
    /// session. A failure becomes a note of the report, because what was measured must not be lost.
    pub fn finish(mut self, ending: SessionEnd) -> Report {
        let mut notes = ending.notes;
        let mut note =
            |done: Result<()>| notes.extend(done.err().map(|error| format!("{error:#}")));
        note(self.tend().and_then(|()| self.settle()));
        let live = self.gate.live_threads(self.session.index);
        self.extensions.iter_mut().for_each(|extension| extension.before_detach(&live));
        let saved = self.save();
        // The report may be in a file that nobody reads before the next run needs what is lost.
        if let Err(error) = &saved {
            log_message(&format!("{error:#}"));
        }
        note(saved);
        let detached_ns = self.detach_tasks().unwrap_or_else(|error| {
            note(Err(error));
            now_ns()
        });
        // A command is measured until its end, and a watch until its tasks are detached.
        let ended_ns = ending.ended_ns.unwrap_or(detached_ns);
        self.extensions.iter_mut().for_each(|extension| extension.stop(ended_ns));
        if !live.is_empty() && ending.exit.is_some() {
            let threads = number_of(live.len(), "thread");
            let are = if live.len() == 1 { "is" } else { "are" };
            notes.push(format!("{threads} of the command {are} still running and no longer gated"));
        }
        let (mut sections, mut failures) = (Vec::new(), Vec::new());
        let collected = self.each(|extension, context| {
            match extension.section(context, &mut notes) {
                Ok(section) => sections.extend(section),
                Err(error) => failures.push(error),
            }
            Ok(())
        });
        // A session that is ending hands its losses over. Without the lock, they could count twice.
        let locked = Lock::take().map_err(Error::from).and_then(|_lock| self.losses());
        let losses = locked.unwrap_or_else(|error| {
            failures.push(error);
            Losses::default()
        });
        let measure = || session_toll::measure(&mut self.gate, &self.session, &self.options);
        let toll = ending.measures_toll.then(measure).transpose().unwrap_or_else(|error| {
            notes.push(format!("the toll could not be measured: {error:#}"));
            None
        });
        failures.extend([collected, self.end()].into_iter().filter_map(Result::err));
        notes.extend(failures.iter().map(|error| format!("{error:#}")));
        let header = Header {
            command: ending.command,
            exit: ending.exit,
            elapsed_ns: ended_ns - self.began_ns,
            user_ns: ending.user_ns,
            system_ns: ending.system_ns,
        };
        let notes = notes.iter().map(|note| without_numbers(note)).collect();
        let has_unwritten_file =
            self.extensions.iter().any(|extension| extension.has_unwritten_file());
        let toll = toll.unwrap_or_default();
        let mut report = Report { header, sections, toll, losses, notes, has_unwritten_file };
        report.toll.calls = report.calls_seen();
        report
    }

    fn detach_tasks(&mut self) -> Result<u64> {
        let lock = Lock::take()?;
        let read = self.each(|extension, context| extension.at_detach(context, &lock));
        let detached_ns = self.gate.detach_tasks(&lock, self.session.index);
        read.map(|()| detached_ns)
    }

    pub fn losses(&self) -> Result<Losses> {
        self.loss_reader().read(&self.gate)
    }

    fn loss_reader(&self) -> LossReader {
        let mut others: Losses =
            self.extensions.iter().flat_map(|extension| extension.losses()).collect();
        let own = [(GAPS, self.gaps), (MESSAGES_NOT_WRITTEN, lost_messages())];
        let own = own.into_iter().filter(|(_, lost)| *lost > 0);
        others.extend(own.map(|(reason, lost)| (reason.to_owned(), lost)));
        LossReader { session: self.session.index, others }
    }
}

/// What the gate needs for a session of these processes, besides what applies to them.
fn gate_mask(select: &Select) -> u32 {
    if select.has_cgroups() { wire::FOLLOW_CGROUPS } else { 0 }
}

/// Before this process ends, waits until other processes hold the links of the generation that it
/// loaded.
fn wait_for_followers(gate: &mut Gate, own: Option<u32>) {
    let began = now_ns();
    while gate.toggle().is_some()
        && !gate.have_all_followed(own)
        && now_ns() - began < HANDOVER_LIMIT_NS
    {
        std::thread::sleep(TEND_INTERVAL / 10);
    }
}

impl Drop for SessionRunner {
    /// Ends the session after an error, without affecting other sessions.
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kernel::losses::LOSS_REASONS;

    use super::*;
    use crate::extension::{
        CALLS_OF_INNER_SESSIONS, EVENTS_NOT_WRITTEN, PLUGIN_RECORDS_LOST, PROGRAMS_NOT_IDENTIFIED,
    };

    /// The lines of a page's section about losses.
    fn losses_of(page: &str) -> impl Iterator<Item = &str> {
        let rest = page.lines().skip_while(|line| {
            !line.starts_with("## Losses") && !line.starts_with("## What is lost")
        });
        rest.skip(1).take_while(|line| !line.starts_with("## "))
    }

    /// The reasons that a page documents: in the first column of a table, or in a list.
    fn documented_losses(page: &str) -> Vec<String> {
        let cells = losses_of(page).filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        let mut in_table: Vec<_> = cells.collect();
        if in_table.first() == Some(&"reason") {
            in_table.remove(0);
        } else {
            in_table.clear();
        }
        let in_list = losses_of(page)
            .filter_map(|line| line.split_once("| losses: "))
            .flat_map(|(_, reasons)| reasons.split('`').skip(1).step_by(2));
        in_table.into_iter().chain(in_list).map(str::to_owned).collect()
    }

    #[test]
    fn documentation_names_the_losses() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let pages = fs::read_dir(folder).expect("the folder of the documentation");
        let pages = pages.map(|page| page.expect("an entry of the folder").path());
        // The losses on this page are those of an example.
        let pages = pages.filter(|page| !page.ends_with("extending.md"));
        let texts = pages.filter_map(|page| fs::read_to_string(page).ok());
        let documented: BTreeSet<_> = texts.flat_map(|text| documented_losses(&text)).collect();
        let counted = LOSS_REASONS.iter().map(|reason| reason.text);
        let own = [
            GAPS,
            PLUGIN_RECORDS_LOST,
            EVENTS_NOT_WRITTEN,
            MESSAGES_NOT_WRITTEN,
            PROGRAMS_NOT_IDENTIFIED,
            CALLS_OF_INNER_SESSIONS,
        ];
        let counted = counted.chain(own);
        assert_eq!(documented, counted.map(str::to_owned).collect());
    }
}
