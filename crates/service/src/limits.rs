//! What a service, with all below it, may use.

use std::ops::RangeInclusive;

use crate::tree::Id;

/// Of one service. What is not said has no limit of its own; those above hold besides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Its share of the processors where several want them: 100 is what everybody has.
    pub cpu_weight: Option<u32>,
    /// Hundredths of one processor.
    pub cpu_max: Option<u32>,
    pub memory_max: Option<u64>,
    /// Processes and threads.
    pub tasks_max: Option<u64>,
    pub sockets_max: Option<u64>,
    pub connections_max: Option<u64>,
    /// Bytes a second, to send.
    pub network_max: Option<u64>,
    pub beyond: Beyond,
}

/// What becomes of whoever would have more sockets or connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// The call fails with this errno.
    Fails(Errno),
    /// It works for this service from then on, which has the socket.
    WorksFor(Id),
}

/// By its place in [`ERRNOS`], of which the first is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Errno(usize);

/// include/uapi/asm-generic/errno-base.h and errno.h: what programs expect of calls on sockets.
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

/// What becomes of the control groups that have limits when Tollgate ends, also if it is killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AtEnd {
    /// Everybody is where it was before.
    #[default]
    Lift,
    /// Whoever is in them stays there.
    Keep,
}

/// The paper's example: `servctl(SET_FORK_POLICY, VSIDx, ..., EAGAIN, ...)`.
impl Default for Beyond {
    fn default() -> Self {
        Self::Fails(Errno::default())
    }
}

impl Errno {
    pub fn parse(name: &str) -> Option<Self> {
        ERRNOS.iter().position(|(known, _)| *known == name).map(Self)
    }

    pub fn name(self) -> &'static str {
        ERRNOS[self.0].0
    }

    pub fn number(self) -> i32 {
        ERRNOS[self.0].1
    }

    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        ERRNOS.iter().map(|(name, _)| *name)
    }
}

impl Limits {
    /// Some that control groups have.
    pub fn has_group(&self) -> bool {
        self.cpu_weight.is_some() || self.cpu_max.is_some() || self.is_for_own()
    }

    /// Some that count from the first moment of a process, and not only where it competes.
    pub fn is_for_own(&self) -> bool {
        self.memory_max.is_some() || self.tasks_max.is_some()
    }

    /// Some that are kept where sockets are made and used.
    pub fn has_sockets(&self) -> bool {
        self.sockets_max.is_some() || self.connections_max.is_some() || self.network_max.is_some()
    }
}

/// Weights of cgroup v2: Documentation/admin-guide/cgroup-v2.rst, "Weights".
pub const WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// include/linux/threads.h, PID_MAX_LIMIT: `pids.max` takes no more.
pub const TASKS: RangeInclusive<u32> = 1..=4 << 20;
/// The counts of the kernel side are signed.
pub const SOCKETS: RangeInclusive<u32> = 0..=i32::MAX as u32;

/// As [`WEIGHTS`] has it.
pub fn parse_weight(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(weight) if WEIGHTS.contains(&weight) => Ok(weight),
        _ => Err("a weight is an integer from 1 to 10000; 100 is what everybody has".into()),
    }
}

/// "150%" of one processor.
pub fn parse_percent(text: &str) -> Result<u32, String> {
    // The kernel has no quota of less than 1 ms, and the period is 100 ms; nor machines of more than 8192 processors.
    match text.strip_suffix('%').and_then(|number| number.trim_end().parse().ok()) {
        Some(percent @ 1..=819_200) => Ok(percent),
        _ => {
            Err("a part of the processors' time is like \"50%\", or \"150%\": of one processor, a whole number from 1 to 819200"
                .into())
        }
    }
}

/// "512M": in units of 1024, as memory is, or of 1000, as networks are.
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
        format!("an amount is a whole number of bytes from 1 to 2^60, or like \"512K\", \"64M\" or \"2G\" ({unit} bytes are 1K)")
    })
}

pub const MEMORY_UNIT: u64 = 1024;
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
