//! Collects the tasks of a session by their types.

use ::pace::{TaskRules, TraceTask};
use kernel::wire;

use super::trace_file::{Trace, TraceType};
use super::types::TypeTable;

/// Further tasks are counted, but not kept: some 50 MB.
const MAX_TASKS: usize = 1_000_000;

/// A task that has ended.
#[derive(Debug, Clone, Copy)]
pub struct RecordedTask {
    pub task: TraceTask,
    /// The time from its beginning to its end, in seconds.
    pub took: f64,
    /// Its processor time, in seconds.
    pub cpu: f64,
}

/// The tasks of a session.
#[derive(Default)]
pub struct Recorder {
    types: TypeTable,
    began_ns: u64,
    tasks: Vec<RecordedTask>,
    not_kept: usize,
    abandoned: usize,
}

/// All tasks of a session.
pub struct Recorded {
    pub types: Vec<TraceType>,
    /// In the order of their beginnings.
    pub tasks: Vec<RecordedTask>,
    pub unfinished: usize,
    pub abandoned: usize,
    pub not_kept: usize,
}

impl Recorded {
    pub fn trace(&self) -> Trace {
        let tasks = self.tasks.iter().map(|recorded| recorded.task).collect();
        Trace { types: self.types.clone(), tasks }
    }
}

impl Recorder {
    pub fn new(rules: TaskRules) -> Self {
        Self { types: TypeTable::new(rules), ..Self::default() }
    }

    /// Sets the time from which tasks count.
    pub fn begin(&mut self, began_ns: u64) {
        self.began_ns = began_ns;
    }

    pub fn add(&mut self, record: &wire::pace_record) {
        if record.begin_ns < self.began_ns {
            return;
        }
        if self.tasks.len() >= MAX_TASKS {
            self.not_kept += 1;
            return;
        }
        let kind = self.types.kind(record);
        let seconds = |ns: u64| ns as f64 / 1e9;
        self.tasks.push(RecordedTask {
            task: TraceTask {
                kind,
                begin: seconds(record.begin_ns - self.began_ns),
                cycles: record.cycles as f64,
                // 0 stands for that of the type, which the program may name later.
                deadline: seconds(record.deadline_ns),
            },
            took: seconds(record.end_ns.saturating_sub(record.begin_ns)),
            cpu: seconds(record.cpu_ns),
        });
    }

    pub fn add_abandoned(&mut self, tasks: usize) {
        self.abandoned += tasks;
    }

    pub fn name_type(&mut self, record: &wire::pace_type_record) {
        self.types.name_type(record);
    }

    /// All tasks that have ended, sorted. `unfinished` tasks have not ended.
    pub fn finish(mut self, unfinished: usize) -> Recorded {
        for RecordedTask { task, .. } in
            self.tasks.iter_mut().filter(|one| one.task.deadline == 0.0)
        {
            task.deadline = self.types.types()[task.kind].deadline_ms / 1e3;
        }
        self.tasks.sort_by(|a, b| a.task.begin.total_cmp(&b.task.begin));
        Recorded {
            types: self.types.into_types(),
            tasks: self.tasks,
            unfinished,
            abandoned: self.abandoned,
            not_kept: self.not_kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    fn record(program: &str, begin_ns: u64) -> wire::pace_record {
        let mut record = wire::pace_record::new_zeroed();
        for (to, byte) in record.program.iter_mut().zip(program.bytes()) {
            *to = byte as _;
        }
        record.begin_ns = begin_ns;
        record.end_ns = begin_ns + 3_000_000;
        record.cycles = 5_000_000;
        record
    }

    fn rules() -> TaskRules {
        let text = "[[rule]]\nname = \"request\"\ncalls = \"read\"\ndeadline-ms = 20\n\
            target = 0.9\n[[type]]\nname = \"frame\"\ntarget = 0.8";
        ::pace::parse_task_rules(text).unwrap()
    }

    #[test]
    fn types_are_program_rule_and_key() {
        let mut recorder = Recorder::new(rules());
        recorder.begin(1_000_000_000);
        let mut socket = record("nginx", 2_500_000_000);
        (socket.descriptor, socket.port) = (wire::PACE_SOCKET as u16, 8080);
        recorder.add(&socket);
        recorder.add(&record("nginx", 1_500_000_000));
        recorder.add(&record("sh", 3_000_000_000));
        recorder.add(&record("sh", 3_100_000_000));
        recorder.add(&record("sh", 999_999_999));
        let recorded = recorder.finish(2);
        let names: Vec<_> = recorded.types.iter().map(|kind| kind.name.as_str()).collect();
        assert_eq!(names, ["nginx: request (socket, port 8080)", "nginx: request", "sh: request"]);
        let tasks: Vec<_> =
            recorded.tasks.iter().map(|one| (one.task.kind, one.task.begin)).collect();
        assert_eq!(tasks, [(1, 0.5), (0, 1.5), (2, 2.0), (2, 2.1)]);
        assert_eq!((recorded.tasks[0].task.deadline, recorded.unfinished), (0.02, 2));
    }

    #[test]
    fn programs_name_their_types() {
        let mut recorder = Recorder::new(rules());
        let mut own = record("game", 1);
        (own.type_id, own.deadline_ns) = (7, 16_000_000);
        recorder.add(&own);
        let mut named = wire::pace_type_record::new_zeroed();
        named.program = own.program;
        named.type_id = 7;
        for (to, byte) in named.name.iter_mut().zip("frame".bytes()) {
            *to = byte as _;
        }
        recorder.name_type(&named);
        recorder.add(&own);
        let recorded = recorder.finish(0);
        assert_eq!(recorded.types.len(), 1);
        assert_eq!(
            (recorded.types[0].name.as_str(), recorded.types[0].target),
            ("game: frame", 0.8)
        );
        assert_eq!(recorded.tasks[1].task.deadline, 0.016);
    }
}
