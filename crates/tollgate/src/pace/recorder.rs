//! Collects the tasks of a session by their types.

use std::collections::BTreeMap;

use ::pace::{DEFAULT_GOAL, TaskRule, TaskRules, TraceTask};
use kernel::wire;

use super::rules::descriptor_name;
use super::trace_file::{Trace, TraceType};

/// Further tasks are counted, but not kept: some 50 MB.
const MAX_TASKS: usize = 1_000_000;

/// What makes a type: the program, and the rule with its key or the program's own type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum TypeKey {
    Rule { program: String, rule: u16, descriptor: u16, port: u32 },
    Program { program: String, type_id: u64 },
}

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
    rules: TaskRules,
    began_ns: u64,
    kinds: BTreeMap<TypeKey, usize>,
    types: Vec<TraceType>,
    /// The names that programs have given to their types.
    names: BTreeMap<(String, u64), String>,
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
        Self { rules, ..Self::default() }
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
        let kind = self.kind(record);
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

    pub fn add_abandoned(&mut self) {
        self.abandoned += 1;
    }

    pub fn name_type(&mut self, record: &wire::pace_type_record) {
        let (program, name) = (text(&record.program), text(&record.name));
        let key = TypeKey::Program { program: program.clone(), type_id: record.type_id };
        if let Some(kind) = self.kinds.get(&key) {
            self.types[*kind] = self.program_type(&program, &name);
        }
        self.names.insert((program, record.type_id), name);
    }

    fn kind(&mut self, record: &wire::pace_record) -> usize {
        let program = text(&record.program);
        let (key, one) = if record.type_id != 0 {
            let known = self.names.get(&(program.clone(), record.type_id));
            let name = known.cloned().unwrap_or_else(|| format!("type {:#x}", record.type_id));
            let one = self.program_type(&program, &name);
            (TypeKey::Program { program, type_id: record.type_id }, one)
        } else {
            let rule = self.rules.rules.get(usize::from(record.rule));
            let one = TraceType {
                name: rule_type_name(&program, rule, record),
                deadline_ms: rule.map_or(DEFAULT_GOAL.0, |rule| rule.deadline_ms),
                target: rule.map_or(DEFAULT_GOAL.1, |rule| rule.target),
            };
            let (descriptor, port) = (record.descriptor, record.port);
            (TypeKey::Rule { program, rule: record.rule, descriptor, port }, one)
        };
        *self.kinds.entry(key).or_insert_with(|| {
            self.types.push(one);
            self.types.len() - 1
        })
    }

    /// A type that a program has named.
    fn program_type(&self, program: &str, name: &str) -> TraceType {
        let found = self.rules.types.iter().find(|described| {
            described.name == name
                && described.program.as_deref().is_none_or(|own| is_same_program(own, program))
        });
        let (deadline_ms, target) =
            found.map_or(DEFAULT_GOAL, |found| (found.deadline_ms, found.target));
        TraceType { name: format!("{program}: {name}"), deadline_ms, target }
    }

    /// All tasks that have ended, sorted. `unfinished` tasks have not ended.
    pub fn finish(mut self, unfinished: usize) -> Recorded {
        for RecordedTask { task, .. } in
            self.tasks.iter_mut().filter(|one| one.task.deadline == 0.0)
        {
            task.deadline = self.types[task.kind].deadline_ms / 1e3;
        }
        self.tasks.sort_by(|a, b| a.task.begin.total_cmp(&b.task.begin));
        Recorded {
            types: self.types,
            tasks: self.tasks,
            unfinished,
            abandoned: self.abandoned,
            not_kept: self.not_kept,
        }
    }
}

/// "nginx: request (socket, port 8080)"
fn rule_type_name(program: &str, rule: Option<&TaskRule>, record: &wire::pace_record) -> String {
    let rule = rule.map_or("task", |rule| rule.name.as_str());
    let descriptor = descriptor_name(record.descriptor.into()).map(str::to_owned);
    let port = (record.port != 0).then(|| format!("port {}", record.port));
    let parts: Vec<_> = descriptor.into_iter().chain(port).collect();
    match parts.is_empty() {
        true => format!("{program}: {rule}"),
        false => format!("{program}: {rule} ({})", parts.join(", ")),
    }
}

/// Whether a whole name is the one of the kernel side, which is cut.
fn is_same_program(whole: &str, cut: &str) -> bool {
    let kept = wire::PACE_PROGRAM_LEN as usize - 1;
    whole.bytes().take(kept).eq(cut.bytes())
}

/// A text of the kernel side, which ends with a NUL.
fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
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
