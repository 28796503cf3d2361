//! Collects the tasks of a session by their types.

use std::collections::BTreeMap;

use ::pace::{DEADLINE_MS, TaskRules, TraceTask};
use kernel::wire;

use super::report_format::quantile;
use super::trace_file::{BEGIN_S, CYCLES, Trace, TraceType};
use super::type_table::{TypeTable, is_abandoned};

/// Waits within tasks are noted from this part of the deadline on: shorter ones hardly change a
/// comparison, which does not know of them.
const NOTABLE_WAITS: f64 = 0.1;
/// The maximum number of recorded tasks, which need some 50 MB. Further ones are only counted, as
/// are those that begin later than a trace can say.
pub const MAX_TASKS: usize = 1_000_000;

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
    /// The tasks of each type.
    pub fn by_type(&self) -> Vec<Vec<&RecordedTask>> {
        let mut by_type = vec![Vec::new(); self.types.len()];
        self.tasks.iter().for_each(|one| by_type[one.task.kind].push(one));
        by_type
    }

    /// A note about the type whose tasks waited longest, if that was a notable part of the
    /// deadline.
    pub fn waits_note(&self) -> Option<String> {
        let of_type = |(kind, own): (usize, Vec<&RecordedTask>)| {
            let parts = own.iter().map(|one| (one.took - one.cpu) / one.task.deadline);
            let mut parts: Vec<_> = parts.collect();
            parts.sort_by(f64::total_cmp);
            Some((quantile(&parts, 0.5)?, kind))
        };
        let of_types = self.by_type().into_iter().enumerate().filter_map(of_type);
        let longest = of_types.max_by(|a, b| a.0.total_cmp(&b.0));
        let (part, kind) = longest.filter(|(part, _)| *part > NOTABLE_WAITS)?;
        Some(format!(
            "tasks of {:?} waited {:.0} % of the deadline (median); the comparison of policies \
            does not know of waits within tasks, so the policies would have missed more deadlines",
            self.types[kind].name,
            part * 1e2
        ))
    }

    /// The tasks as a trace. A trace cannot have each deadline that a program can set, nor each
    /// amount of work, so both are clamped.
    pub fn trace(&self) -> Trace {
        let [least, most] = [DEADLINE_MS.start(), DEADLINE_MS.end()].map(|ms| ms / 1e3);
        let tasks = self.tasks.iter().map(|RecordedTask { task, .. }| TraceTask {
            deadline: task.deadline.clamp(least, most),
            cycles: task.cycles.min(*CYCLES.end()),
            ..*task
        });
        let tasks = tasks.collect();
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
        if is_abandoned(record) {
            self.abandoned += 1;
            return;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let begin = seconds(record.begin_ns - self.began_ns);
        if self.tasks.len() >= MAX_TASKS || begin > *BEGIN_S.end() {
            self.not_kept += 1;
            return;
        }
        let kind = self.types.find_or_add(record);
        self.tasks.push(RecordedTask {
            task: TraceTask {
                kind,
                begin,
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
        let types = joined(self.types.into_types(), &mut self.tasks);
        Recorded {
            types,
            tasks: self.tasks,
            unfinished,
            abandoned: self.abandoned,
            not_kept: self.not_kept,
        }
    }
}

/// Joins types with the same name, such as a type of one program and an equal one of another whose
/// name the gate has cut.
fn joined(types: Vec<TraceType>, tasks: &mut [RecordedTask]) -> Vec<TraceType> {
    let (mut kept, mut indices) = (Vec::<TraceType>::new(), BTreeMap::new());
    let new: Vec<usize> = types
        .into_iter()
        .map(|one| {
            *indices.entry(one.name.clone()).or_insert_with(|| {
                kept.push(one);
                kept.len() - 1
            })
        })
        .collect();
    tasks.iter_mut().for_each(|recorded| recorded.task.kind = new[recorded.task.kind]);
    kept
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;
    use crate::pace::trace_file;
    use crate::pace::watch_report::ObservedTasks;

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
        (socket.descriptor, socket.detail) = (wire::PACE_SOCKET as u16, 8080);
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
    fn types_with_the_same_name_are_joined() {
        let mut recorder = Recorder::new(rules());
        for descriptor in [9, 10] {
            let mut one = record("sh", 1);
            one.descriptor = descriptor;
            recorder.add(&one);
        }
        let recorded = recorder.finish(0);
        assert_eq!(recorded.types.len(), 1);
        assert!(recorded.tasks.iter().all(|one| one.task.kind == 0) && recorded.tasks.len() == 2);
    }

    #[test]
    fn ten_thousand_types_are_reported() {
        const TYPES: u32 = 10_000;
        let mut recorder = Recorder::new(rules());
        for task in 0..3 * TYPES {
            let mut one = record("client", u64::from(task));
            (one.descriptor, one.detail) = (wire::PACE_SOCKET as u16, 1 + task % TYPES);
            recorder.add(&one);
        }
        let recorded = recorder.finish(0);
        assert_eq!(recorded.types.len(), TYPES as usize);
        assert!(recorded.by_type().iter().all(|own| own.len() == 3));
        let observed = ObservedTasks::of(&recorded);
        assert!(observed.types.iter().all(|one| one.tasks == 3));
    }

    #[test]
    fn long_waits_are_noted() {
        let of = |cpu_ns| {
            let mut recorder = Recorder::new(rules());
            let mut one = record("sh", 1);
            one.cpu_ns = cpu_ns;
            recorder.add(&one);
            recorder.finish(0).waits_note()
        };
        // The task took 3 ms of 20.
        assert!(of(0).unwrap().contains("\"sh: request\" waited 15 % of the deadline"));
        assert_eq!(of(2_000_000), None);
    }

    #[test]
    fn key_and_motion_are_types() {
        let mut recorder = Recorder::new(rules());
        for detail in [1 << 16 | 30, 1 << 16 | 272, 2 << 16] {
            let mut one = record("sh", 1);
            (one.descriptor, one.detail) = (wire::PACE_INPUT as u16, detail);
            recorder.add(&one);
        }
        let recorded = recorder.finish(0);
        let names: Vec<_> = recorded.types.iter().map(|kind| kind.name.as_str()).collect();
        let of = |event: &str| format!("sh: request (input, {event})");
        assert_eq!(names, [of("key 30"), of("key 272"), of("motion")]);
    }

    #[test]
    fn task_that_its_program_did_not_end_is_counted_apart() {
        let mut recorder = Recorder::new(rules());
        let mut own = record("game", 1);
        (own.type_id, own.end) = (7, wire::PACE_END_EXIT);
        recorder.add(&own);
        own.type_id = 0;
        recorder.add(&own);
        let recorded = recorder.finish(0);
        assert_eq!((recorded.tasks.len(), recorded.abandoned), (1, 1));
    }

    #[test]
    fn trace_of_any_tasks_can_be_read() {
        const WEEK_NS: u64 = 7 * 24 * 3_600 * 1_000_000_000;
        let mut recorder = Recorder::new(rules());
        for (begin_ns, cycles, deadline_ns) in [
            (1, 0, 1),
            (2, 5, 1000),
            (3, u64::MAX, 20_000_000),
            (WEEK_NS, 6, u64::MAX),
            (WEEK_NS + 1_000_000, 7, 1000),
        ] {
            let mut own = record("game", begin_ns);
            (own.type_id, own.cycles, own.deadline_ns) = (7, cycles, deadline_ns);
            recorder.add(&own);
        }
        let recorded = recorder.finish(0);
        assert_eq!(recorded.not_kept, 1);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        trace_file::write(&recorded.trace(), &mut file).unwrap();
        let read = trace_file::read(&[file.path()]).unwrap();
        let tasks: Vec<_> = read.tasks.iter().map(|task| (task.cycles, task.deadline)).collect();
        assert_eq!(tasks, [(0.0, 1e-6), (5.0, 1e-6), (1.8e13, 0.02), (6.0, 3600.0)]);
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
