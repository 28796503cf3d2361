//! Rules by which tasks begin, and the deadlines of tasks.

use std::ops::RangeInclusive;

use toml_reader::At;

/// The results of a call with which a task begins. With an error, no task begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginningResult {
    /// 0.
    Zero,
    /// A positive number.
    Positive,
    /// A positive number, or 0 after the thread has slept: the time to wait has passed.
    PositiveOrTimeout,
}

/// The calls whose return can begin a task.
pub const BEGINNING_CALLS: [(&str, BeginningResult); 22] = [
    ("accept", BeginningResult::Positive),
    ("accept4", BeginningResult::Positive),
    ("clock_nanosleep", BeginningResult::Zero),
    ("epoll_pwait", BeginningResult::PositiveOrTimeout),
    ("epoll_pwait2", BeginningResult::PositiveOrTimeout),
    ("epoll_wait", BeginningResult::PositiveOrTimeout),
    ("futex", BeginningResult::Zero),
    ("io_uring_enter", BeginningResult::Positive),
    ("ioctl", BeginningResult::Zero),
    ("mq_timedreceive", BeginningResult::Positive),
    ("msgrcv", BeginningResult::Positive),
    ("nanosleep", BeginningResult::Zero),
    ("poll", BeginningResult::PositiveOrTimeout),
    ("ppoll", BeginningResult::PositiveOrTimeout),
    ("pselect6", BeginningResult::PositiveOrTimeout),
    ("read", BeginningResult::Positive),
    ("readv", BeginningResult::Positive),
    ("recvfrom", BeginningResult::Positive),
    ("recvmmsg", BeginningResult::Positive),
    ("recvmsg", BeginningResult::Positive),
    ("rt_sigtimedwait", BeginningResult::Positive),
    ("select", BeginningResult::PositiveOrTimeout),
];

/// The kinds of descriptors that a rule can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorKind {
    /// A socket.
    Socket,
    /// A pipe.
    Pipe,
    /// A terminal.
    Terminal,
    /// An input device, such as a mouse.
    Input,
    /// An epoll instance.
    Epoll,
    /// A timer (timerfd).
    Timer,
    /// An event counter (eventfd).
    Event,
}

impl DescriptorKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Socket,
        Self::Pipe,
        Self::Terminal,
        Self::Input,
        Self::Epoll,
        Self::Timer,
        Self::Event,
    ];

    /// The name in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Pipe => "pipe",
            Self::Terminal => "terminal",
            Self::Input => "input",
            Self::Epoll => "epoll",
            Self::Timer => "timer",
            Self::Event => "event",
        }
    }
}

/// The maximum number of rules in a file.
pub const MAX_RULES: usize = 16;
/// The actuators that a file can name.
pub const ACTUATORS: [&str; 4] = ["setspeed", "bounds", "preference", "clamp"];

/// The maximum number of exempt programs in a file.
pub const MAX_EXEMPT: usize = 16;
/// The maximum number of users in a file.
pub const MAX_USERS: usize = 16;
/// The maximum length of a type's name in bytes: the kernel side reads no more (PACE_NAME_LEN).
pub const MAX_TYPE_NAME: usize = 63;
/// The number of bytes of a program's name that are compared: the kernel side keeps no more
/// (PACE_PROGRAM_LEN).
pub const COMPARED_PROGRAM_LEN: usize = 15;

/// The deadlines that are possible, in milliseconds: from 1 µs to an hour.
pub const DEADLINE_MS: RangeInclusive<f64> = 0.001..=3_600_000.0;
/// The targets that are possible.
pub const TARGET: RangeInclusive<f64> = 0.01..=1.0;

/// Whether two names of programs are the same as far as they are compared.
pub fn is_same_program(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|name| name.bytes().take(COMPARED_PROGRAM_LEN));
    one.eq(other)
}

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRule {
    /// The name of its tasks in reports.
    pub name: String,
    /// The file name of the executable; `None`: any program.
    pub program: Option<String>,
    /// Entries of [`BEGINNING_CALLS`].
    pub calls: Vec<(&'static str, BeginningResult)>,
    /// The kinds of the call's descriptor; empty: any, or none.
    pub descriptors: Vec<DescriptorKind>,
    /// The local port of the socket; `None`: any.
    pub port: Option<u16>,
    /// In milliseconds.
    pub deadline_ms: f64,
    /// The share of the tasks that should meet the deadline.
    pub target: f64,
    /// Waits in other calls than those of the rule are part of the task.
    pub includes_waits: bool,
}

/// A type of tasks that a program begins and ends itself.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramType {
    /// The name that the program gives to the type.
    pub name: String,
    /// The file name of the executable; `None`: any program.
    pub program: Option<String>,
    /// In milliseconds.
    pub deadline_ms: f64,
    /// The share of the tasks that should meet the deadline.
    pub target: f64,
}

/// What counts the cycles of tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CycleCounter {
    /// No counter: the cycles are processor time, times the speed of the processor.
    None,
    /// The counter `cpu-cycles`.
    CpuCycles,
    /// An event of a performance monitoring unit, as perf names it: `PMU/config=NUMBER/`.
    Event {
        /// The unit: a folder of `/sys/bus/event_source/devices`.
        pmu: String,
        /// The number of the event.
        config: u64,
    },
}

impl CycleCounter {
    /// The counter of this name. `None`: there is no such name.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "none" => return Some(Self::None),
            "cpu-cycles" => return Some(Self::CpuCycles),
            _ => {}
        }
        let (pmu, event) = name.strip_suffix('/')?.split_once('/')?;
        let number = event.strip_prefix("config=")?;
        let (digits, radix) = number.strip_prefix("0x").map_or((number, 10), |digits| (digits, 16));
        // from_str_radix() would allow a sign.
        let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let config = u64::from_str_radix(digits, radix).ok().filter(|_| is_number)?;
        // It is a part of a path.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let is_pmu = !pmu.is_empty() && pmu.bytes().all(is_name);
        is_pmu.then_some(Self::Event { pmu: pmu.to_owned(), config })
    }
}

/// The content of a file of rules.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskRules {
    /// The set of levels: the name of a built-in one, or a file. `None`: that of the machine.
    pub levels: Option<At<String>>,
    /// The entry of [`ACTUATORS`] by which speeds are set. `None`: the best one of the machine.
    pub actuator: Option<At<String>>,
    /// What counts the cycles of tasks. `None`: the counter `cpu-cycles`, where the machine has it;
    /// otherwise as [`CycleCounter::None`].
    pub cycle_counter: Option<At<CycleCounter>>,
    /// The file names of the executables that have no tasks.
    pub exempt: Vec<String>,
    /// The names or numbers of the users whose programs may begin tasks themselves, besides those
    /// of root. `None`: the file does not say.
    pub users: Option<Vec<At<String>>>,
    /// In the order of the file. The first rule that matches decides.
    pub rules: Vec<TaskRule>,
    /// In the order of the file. The first one that matches decides.
    pub types: Vec<ProgramType>,
}

/// The deadline, in milliseconds, and the target of a type that no file describes. The deadline is
/// RightSpeed's for events of the user interface; the target is a choice of ours.
pub const DEFAULT_GOAL: (f64, f64) = (50.0, 0.95);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_of_perf() {
        let event = |pmu: &str, config| CycleCounter::Event { pmu: pmu.into(), config };
        for (name, expected) in [
            ("cpu-cycles", Some(CycleCounter::CpuCycles)),
            ("none", Some(CycleCounter::None)),
            ("msr/config=1/", Some(event("msr", 1))),
            ("cpu_core/config=0x3c/", Some(event("cpu_core", 0x3c))),
            ("msr/config=0xffffffffffffffff/", Some(event("msr", u64::MAX))),
            ("msr/config=0x10000000000000000/", None),
            ("msr/aperf/", None),
            ("msr/config=1", None),
            ("msr/config=/", None),
            ("msr/config=-1/", None),
            ("msr/config=+1/", None),
            ("msr/config=0x+1/", None),
            ("/config=1/", None),
            ("../config=1/", None),
            ("a/b/config=1/", None),
            ("cycles", None),
            ("", None),
        ] {
            assert_eq!(CycleCounter::of_name(name), expected, "{name:?}");
        }
    }
}
