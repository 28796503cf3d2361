//! The limits of a service, which also cover the services below it.

use std::ops::RangeInclusive;

use crate::tree::Id;

/// The limits of one service. A field that is `None` sets no limit; the limits of the service's
/// ancestors apply in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// The weight of the service where processors are contended; 100 is the default.
    pub cpu_weight: Option<u32>,
    /// Processor time, in percent of one processor.
    pub cpu_max: Option<u32>,
    /// Bytes of memory.
    pub memory_max: Option<u64>,
    /// Processes and threads.
    pub tasks_max: Option<u64>,
    /// Open sockets.
    pub sockets_max: Option<u64>,
    /// Open connections.
    pub connections_max: Option<u64>,
    /// Bytes per second that the service may send.
    pub network_max: Option<u64>,
    /// What happens at the limits on sockets and connections.
    pub over_limit: OverLimit,
}

/// What happens when a thread would exceed the limit on sockets or connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimit {
    /// The call fails with this errno.
    Fails(Errno),
    /// The thread works for this service from then on, and the socket belongs to this service.
    WorksFor(Id),
}

/// An index into [`ERRNOS`]; the first entry is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Errno(usize);

/// The errors that programs expect from calls on sockets
/// (include/uapi/asm-generic/errno-base.h and errno.h).
const ERRNOS: [(&str, i32); 13] = [
    ("EAGAIN", 11),
    ("EACCES", 13),
    ("ECONNREFUSED", 111),
    ("EDQUOT", 122),
    ("EHOSTUNREACH", 113),
    ("EMFILE", 24),
    ("ENETUNREACH", 101),
    ("ENFILE", 23),
    ("ENOBUFS", 105),
    ("ENOMEM", 12),
    ("EPERM", 1),
    ("ETIMEDOUT", 110),
    ("EUSERS", 87),
];

/// What happens at the end of Tollgate to the control groups that enforce limits. This also applies
/// if Tollgate is killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AtEnd {
    /// Every thread returns to its original control group.
    #[default]
    Lift,
    /// The threads stay in the control groups.
    Keep,
}

/// The default is EAGAIN, as in the paper's example:
/// `servctl(SET_FORK_POLICY, VSIDx, ..., EAGAIN, ...)`.
impl Default for OverLimit {
    fn default() -> Self {
        Self::Fails(Errno::default())
    }
}

impl Errno {
    /// Finds an errno by its name, such as `EAGAIN`.
    pub fn parse(name: &str) -> Option<Self> {
        ERRNOS.iter().position(|(known, _)| *known == name).map(Self)
    }

    /// The name of the errno.
    pub fn name(self) -> &'static str {
        ERRNOS[self.0].0
    }

    /// The number of the errno.
    pub fn number(self) -> i32 {
        ERRNOS[self.0].1
    }

    /// The names of all errnos that a limit can use.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        ERRNOS.iter().map(|(name, _)| *name)
    }
}

impl Limits {
    /// Whether control groups enforce any of these limits.
    pub fn needs_cgroup(&self) -> bool {
        self.cpu_weight.is_some() || self.cpu_max.is_some() || self.applies_from_start()
    }

    /// Whether a limit applies from the start of a process, and not only under contention.
    pub fn applies_from_start(&self) -> bool {
        self.memory_max.is_some() || self.tasks_max.is_some()
    }

    /// Whether a limit is enforced where sockets are created and used.
    pub fn needs_socket_hooks(&self) -> bool {
        self.sockets_max.is_some() || self.connections_max.is_some() || self.network_max.is_some()
    }
}

/// Weights of cgroup v2: Documentation/admin-guide/cgroup-v2.rst, "Weights".
pub const WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// The maximum of `pids.max` (include/linux/threads.h, PID_MAX_LIMIT).
pub const TASKS: RangeInclusive<u32> = 1..=4 << 20;
/// The kernel side counts in signed integers of 32 bits.
pub const SOCKETS: RangeInclusive<u32> = 0..=i32::MAX as u32;

/// Parses a weight in the range of [`WEIGHTS`].
pub fn parse_weight(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(weight) if WEIGHTS.contains(&weight) => Ok(weight),
        _ => Err("a weight must be an integer from 1 to 10000; the default is 100".into()),
    }
}

/// Parses a percentage of one processor, such as "150%".
pub fn parse_percent(text: &str) -> Result<u32, String> {
    // The kernel accepts no quota below 1 ms, which is 1% of the period of 100 ms, and supports at
    // most 8192 processors.
    match text.strip_suffix('%').and_then(|number| number.trim_end().parse().ok()) {
        Some(percent @ 1..=819_200) => Ok(percent),
        _ => {
            Err("processor time must be a whole percentage of one processor, from 1% to 819200%: \
                \"50%\", \"150%\""
                .into())
        }
    }
}

/// Parses an amount such as "512M". `unit` is 1024 for memory and 1000 for networks.
pub fn parse_bytes(text: &str, unit: u64) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let power = match text[digits.len()..].trim_start() {
        "" => Some(0),
        "K" => Some(1),
        "M" => Some(2),
        "G" => Some(3),
        "T" => Some(4),
        _ => None,
    };
    let bytes = power.and_then(|power| digits.parse::<u64>().ok()?.checked_mul(unit.pow(power)));
    bytes.filter(|bytes| (1..=1 << 60).contains(bytes)).ok_or_else(|| {
        format!(
            "an amount must be a whole number of bytes from 1 to 2^60, such as \"512K\", \
            \"64M\" or \"2G\" (1K is {unit} bytes)"
        )
    })
}

/// The number of bytes in a K of memory.
pub const MEMORY_UNIT: u64 = 1024;
/// The number of bytes in a K of a rate.
pub const NETWORK_UNIT: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(parse_bytes("512M", MEMORY_UNIT), Ok(512 << 20));
        assert_eq!(parse_bytes("10 K", NETWORK_UNIT), Ok(10_000));
        assert_eq!(parse_bytes("4096", MEMORY_UNIT), Ok(4096));
        for text in ["", "M", "1.5M", "-1", "1Q", "0", "99999999999999999999", "2000000T", "1 é"] {
            assert!(parse_bytes(text, MEMORY_UNIT).is_err(), "{text:?}");
        }
    }

    #[test]
    fn parts_of_processors_are_percents() {
        assert_eq!(parse_percent("150%"), Ok(150));
        assert_eq!(parse_percent("1 %"), Ok(1));
        for text in ["", "%", "50", "0%", "0.5%", "1000000%", "-1%"] {
            assert!(parse_percent(text).is_err(), "{text:?}");
        }
        assert_eq!(parse_weight("10000"), Ok(10_000));
        assert!(parse_weight("0").is_err());
    }

    #[test]
    fn errors_have_names() {
        for name in Errno::names() {
            assert_eq!(Errno::parse(name).map(Errno::name), Some(name));
        }
        assert_eq!(Errno::parse("EMFILE").map(Errno::number), Some(24));
        assert_eq!(Errno::parse("EWHAT"), None);
    }
}
