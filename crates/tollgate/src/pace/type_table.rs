//! The types of a session's tasks, with their names and goals.

use std::collections::{BTreeMap, VecDeque};

use ::pace::{DEFAULT_GOAL, TaskRule, TaskRules, is_same_program};
use control::task_type_id;
use kernel::pace::TypeKey;
use kernel::wire;

use super::rules::descriptor_name;
use super::trace_file::TraceType;

/// include/uapi/linux/input-event-codes.h: a key or a button.
const EV_KEY: u32 = 1;
/// The maximum number of names that are kept of types that programs have named: some 10 MB.
const MAX_NAMES: usize = 65_536;

/// The types of the tasks that have ended.
#[derive(Default)]
pub struct TypeTable {
    rules: TaskRules,
    kinds: BTreeMap<TypeKey, usize>,
    types: Vec<TraceType>,
    /// The keys of `types` in `kinds`.
    keys: Vec<TypeKey>,
    /// The names that programs have given to their types.
    names: BTreeMap<(String, u64), String>,
    /// The keys of `names`. The first one was named first.
    named: VecDeque<(String, u64)>,
}

impl TypeTable {
    pub fn new(rules: TaskRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// By their indices.
    pub fn types(&self) -> &[TraceType] {
        &self.types
    }

    pub fn into_types(self) -> Vec<TraceType> {
        self.types
    }

    /// A program has named a type. Returns the type's index if it has had a task, and now has
    /// another name, deadline or target.
    pub fn name_type(&mut self, record: &wire::pace_type_record) -> Option<usize> {
        let (program, name) = (wire::text(&record.program), wire::text(&record.name));
        let key = own_type(record.program, record.type_id);
        let kind = self.kinds.get(&key).copied();
        let changed = kind.filter(|kind| {
            let named = self.program_type(&program, &name);
            let is_other = self.types[*kind] != named;
            self.types[*kind] = named;
            is_other
        });
        let key = (program, record.type_id);
        if self.names.insert(key.clone(), name).is_none() {
            self.named.push_back(key);
        }
        if self.named.len() > MAX_NAMES {
            self.named.pop_front().and_then(|first| self.names.remove(&first));
        }
        changed
    }

    /// The index of a task's type. A type without a task is added.
    pub fn find_or_add(&mut self, record: &wire::pace_record) -> usize {
        self.find(record).unwrap_or_else(|| self.add(record))
    }

    /// The index of a task's type, if it has had a task.
    pub fn find(&self, record: &wire::pace_record) -> Option<usize> {
        self.kinds.get(&key_of(record)).copied()
    }

    /// Adds the type of a task. Returns its index.
    pub fn add(&mut self, record: &wire::pace_record) -> usize {
        let (kind, key) = (self.types.len(), key_of(record));
        self.types.push(self.type_of(record));
        self.keys.push(key.clone());
        self.kinds.insert(key, kind);
        kind
    }

    /// Gives the index of a type to that of a task.
    pub fn replace(&mut self, kind: usize, record: &wire::pace_record) {
        self.types[kind] = self.type_of(record);
        let key = key_of(record);
        self.kinds.remove(&std::mem::replace(&mut self.keys[kind], key.clone()));
        self.kinds.insert(key, kind);
    }

    fn type_of(&self, record: &wire::pace_record) -> TraceType {
        let program = wire::text(&record.program);
        if record.type_id != 0 {
            return self.program_type(&program, &self.name(&program, record.type_id));
        }
        let rule = self.rules.rules.get(usize::from(record.rule));
        TraceType {
            name: rule_type_name(&program, rule, record),
            deadline_ms: rule.map_or(DEFAULT_GOAL.0, |rule| rule.deadline_ms),
            target: rule.map_or(DEFAULT_GOAL.1, |rule| rule.target),
        }
    }

    /// The name of a type. A program that had named it before it was attached does not name it
    /// again. Then the file of rules may have the name.
    fn name(&self, program: &str, id: u64) -> String {
        let known = self.names.get(&(program.to_owned(), id)).filter(|name| !name.is_empty());
        let is_its = |name: &&String| task_type_id(name.as_bytes()) == id;
        let of_rules = || self.rules.types.iter().map(|one| &one.name).find(is_its);
        known.or_else(of_rules).cloned().unwrap_or_else(|| format!("type {id:#x}"))
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
}

/// Whether a program has begun a task, and has ended or executed another program without ending it.
pub fn is_abandoned(record: &wire::pace_record) -> bool {
    record.type_id != 0 && record.end == wire::PACE_END_EXIT
}

fn key_of(record: &wire::pace_record) -> TypeKey {
    match record.type_id {
        0 => TypeKey::of_task(record),
        id => own_type(record.program, id),
    }
}

/// The type of tasks that a program begins itself. The gate fills in only what is here.
fn own_type(program: [std::ffi::c_char; wire::PACE_PROGRAM_LEN as usize], id: u64) -> TypeKey {
    TypeKey { program, type_id: id, rule: 0, descriptor: 0, detail: 0 }
}

/// "nginx: request (socket, port 8080)"
fn rule_type_name(program: &str, rule: Option<&TaskRule>, record: &wire::pace_record) -> String {
    let rule = rule.map_or("task", |rule| rule.name.as_str());
    let descriptor = descriptor_name(record.descriptor.into()).map(str::to_owned);
    let detail = (record.detail != 0).then(|| detail(record));
    let parts: Vec<_> = descriptor.into_iter().chain(detail).collect();
    match parts.is_empty() {
        true => format!("{program}: {rule}"),
        false => format!("{program}: {rule} ({})", parts.join(", ")),
    }
}

/// "port 8080", or "key 30" of an input device, by the numbers of linux/input-event-codes.h
fn detail(record: &wire::pace_record) -> String {
    if u32::from(record.descriptor) != wire::PACE_INPUT {
        return format!("port {}", record.detail);
    }
    match record.detail >> 16 {
        EV_KEY => format!("key {}", record.detail & 0xffff),
        _ => "motion".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    #[test]
    fn only_a_changed_type_is_reported() {
        let rules = "[[type]]\nname = \"frame\"\ndeadline-ms = 20\n";
        let mut table = TypeTable::new(::pace::parse_task_rules(rules).unwrap());
        let mut named = wire::pace_type_record::new_zeroed();
        named.type_id = 7;
        for (to, byte) in named.name.iter_mut().zip("frame".bytes()) {
            *to = byte as _;
        }
        assert_eq!(table.name_type(&named), None);
        let mut task = wire::pace_record::new_zeroed();
        task.type_id = 7;
        assert_eq!(table.find_or_add(&task), 0);
        // Another process of the program names it again.
        assert_eq!(table.name_type(&named), None);
        task.type_id = 8;
        assert_eq!(table.find_or_add(&task), 1);
        // A task ended before its type had a name.
        named.type_id = 8;
        assert_eq!(table.name_type(&named), Some(1));
        assert_eq!(table.types()[1].deadline_ms, 20.0);
    }

    #[test]
    fn latest_names_are_kept() {
        let mut table = TypeTable::default();
        let mut named = wire::pace_type_record::new_zeroed();
        named.name[0] = b'a' as _;
        for id in 1..=MAX_NAMES as u64 + 2 {
            named.type_id = id;
            // The second time, it is known.
            assert_eq!((table.name_type(&named), table.name_type(&named)), (None, None));
        }
        assert_eq!((table.names.len(), table.named.len()), (MAX_NAMES, MAX_NAMES));
        assert_eq!((table.name("", 2), table.name("", 3)), ("type 0x2".into(), "a".into()));
    }

    /// The program had named its types before it was attached.
    #[test]
    fn types_of_running_programs_have_the_names_of_the_rules() {
        let rules = "[[type]]\nname = \"frame\"\ndeadline-ms = 16.7\n";
        let mut table = TypeTable::new(::pace::parse_task_rules(rules).unwrap());
        let mut task = wire::pace_record::new_zeroed();
        // What libtollgate has made of "frame", and another type.
        for id in [0xd8d4_3356_28b3_5226, 7] {
            task.type_id = id;
            table.find_or_add(&task);
        }
        let types: Vec<_> =
            table.types().iter().map(|one| (one.name.as_str(), one.deadline_ms)).collect();
        assert_eq!(types, [(": frame", 16.7), (": type 0x7", 50.0)]);
    }
}
