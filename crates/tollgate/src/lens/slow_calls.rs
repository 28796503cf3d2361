//! `--slower-than`: the slowest calls, each with its arguments and the stack of its longest sleep.

use calls::ArgumentKind;
use kernel::symbols::KernelSymbols;
use kernel::wire;

use super::report::SlowCall;
use super::user_symbols::UserSymbols;
use super::why_report::{self, PartyNames};
use crate::call_name::call_name;
use crate::kernel_text;

/// The maximum number of slow calls in a report.
const MAX_SLOW_CALLS: usize = 100;

/// The slowest calls so far, slowest first.
pub struct SlowCalls {
    began_ns: u64,
    symbols: UserSymbols,
    calls: Vec<SlowCall>,
    /// The number of all slow calls.
    seen: u64,
}

impl SlowCalls {
    /// No calls yet. Times in the report count from `began_ns`.
    pub fn new(began_ns: u64) -> Self {
        Self { began_ns, symbols: UserSymbols::default(), calls: Vec::new(), seen: 0 }
    }

    /// Adds a record. Addresses are resolved at once, while the process lives, if it does.
    pub fn add_record(&mut self, record: &wire::slow_call) {
        self.seen += 1;
        let index = self.calls.partition_point(|call| call.wall_ns >= record.wall_ns);
        if index >= MAX_SLOW_CALLS {
            return;
        }
        let call = self.describe(record);
        self.calls.insert(index, call);
        self.calls.truncate(MAX_SLOW_CALLS);
    }

    /// The calls, and the number of all slow calls.
    pub fn finish(self) -> (Vec<SlowCall>, u64) {
        (self.calls, self.seen)
    }

    fn describe(&self, record: &wire::slow_call) -> SlowCall {
        let (abi, name) = call_name(record.call);
        let began = record.ended_ns - record.wall_ns;
        let variables =
            if record.has_why != 0 { KernelSymbols::variables() } else { KernelSymbols::none() };
        let names = PartyNames { functions: KernelSymbols::get(), variables };
        SlowCall {
            at_ns: began.saturating_sub(self.began_ns),
            pid: record.tgid,
            tid: record.pid,
            command: wire::text(&record.comm),
            call: format!(
                "{name}({})",
                if replaces_registers(&name, record.result) {
                    "…".into()
                } else {
                    arguments(record)
                }
            ),
            name,
            abi: abi.as_str().into(),
            result: result(record.result),
            wall_ns: record.wall_ns,
            cpu_ns: record.wall_ns.saturating_sub(record.blocked_ns + record.runqueue_ns),
            blocked_ns: record.blocked_ns,
            runqueue_ns: record.runqueue_ns,
            kernel_stack: Self::kernel_stack(frames(&record.kernel_stack, record.kernel_frames)),
            user_stack: self.symbols.stack(record),
            why: why_report::of_slow_call(record, &names),
        }
    }

    fn kernel_stack(addresses: &[u64]) -> Vec<String> {
        let symbols = KernelSymbols::get();
        let name = |address: &u64| {
            let function = symbols.function(*address);
            function.map_or_else(|| format!("{address:#x}"), str::to_owned)
        };
        addresses.iter().map(name).collect()
    }
}

fn frames(stack: &[u64], count: u32) -> &[u64] {
    &stack[..(count as usize).min(stack.len())]
}

/// The result of a call, as a report shows it.
pub fn result(value: i64) -> String {
    match i32::try_from(-value) {
        Ok(errno @ 1..=4095) => format!("-{}", calls::display_errno(errno)),
        // An address, for example the result of mmap or brk.
        _ if !(-4095..=0xffff_ffff).contains(&value) => format!("{value:#x}"),
        _ => value.to_string(),
    }
}

/// Whether the arguments are lost. Arguments are read from the registers when the call ends, and
/// these calls have replaced the registers by then.
fn replaces_registers(name: &str, result: i64) -> bool {
    (name.starts_with("execve") && result == 0) || name.ends_with("sigreturn")
}

fn arguments(record: &wire::slow_call) -> String {
    let (abi, _) = call_name(record.call);
    let number = record.call % wire::CALLS_PER_ABI;
    let count = calls::argument_count(abi, number);
    let kinds = calls::arguments(abi, number);
    let one = |index: usize| argument(record, abi, index, kinds[index]);
    (0..count).map(one).collect::<Vec<_>>().join(", ")
}

fn argument(record: &wire::slow_call, abi: calls::Abi, index: usize, kind: ArgumentKind) -> String {
    let register = record.args[index];
    if let Some(path) = record.path.iter().find(|path| path.arg == index as u32) {
        let cut = if kernel_text::is_truncated(&path.text) { "…" } else { "" };
        return format!("{:?}{cut}", wire::text(&path.text));
    }
    let file = record.fd.iter().find(|fd| fd.arg == index as u32);
    let value = kind.value(abi, register);
    match kind {
        ArgumentKind::DirFd if value == i64::from(calls::AT_FDCWD) => "AT_FDCWD".into(),
        ArgumentKind::Fd | ArgumentKind::DirFd | ArgumentKind::Int | ArgumentKind::Long => file
            .map_or_else(
                || value.to_string(),
                |file| format!("{value}<{}>", kernel_text::path(file)),
            ),
        ArgumentKind::Mode if value != 0 => format!("0{value:o}"),
        ArgumentKind::Mode => "0".into(),
        ArgumentKind::None | ArgumentKind::Hex | ArgumentKind::Path if register == 0 => "0".into(),
        ArgumentKind::None | ArgumentKind::Hex | ArgumentKind::Path => format!("{register:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(call: u32, args: &[u64]) -> wire::slow_call {
        let mut record = wire::slow_call { call, ..wire::slow_call::default() };
        record.fd.iter_mut().for_each(|fd| fd.arg = wire::CALL_ARGS);
        record.path.iter_mut().for_each(|path| path.arg = wire::CALL_ARGS);
        record.args[..args.len()].copy_from_slice(args);
        record
    }

    fn set(buffer: &mut [std::ffi::c_char], value: &str) {
        for (to, from) in buffer.iter_mut().zip(value.bytes()) {
            *to = from as std::ffi::c_char;
        }
    }

    #[test]
    fn descriptors_are_shown_as_paths() {
        let mut read = record(0, &[3, 0x7fff_0000_1000, 4096]);
        read.fd[0].arg = 0;
        read.fd[0].mode = libc::S_IFREG as u16;
        read.fd[0].parts = 2;
        read.fd[0].complete = 1;
        set(&mut read.fd[0].part[0], "syslog");
        set(&mut read.fd[0].part[1], "log");
        assert_eq!(arguments(&read), "3</log/syslog>, 0x7fff00001000, 4096");
        set(&mut read.fd[0].part[0], &"n".repeat(47));
        read.fd[0].complete = 0;
        assert!(arguments(&read).starts_with("3<…/log/nnn"), "{}", arguments(&read));
        assert!(arguments(&read).contains("nnn…>, "), "{}", arguments(&read));
        read.fd[0].mode = libc::S_IFSOCK as u16;
        read.fd[0].inode = 77;
        assert_eq!(arguments(&read), "3<socket:[77]>, 0x7fff00001000, 4096");
    }

    #[test]
    fn strings_are_shown_as_such() {
        let number = calls::number(calls::Abi::X86_64, "openat").unwrap();
        let mut open = record(number, &[(-100i32) as u32 as u64, 0x1000, 0, 0]);
        open.path[0].arg = 1;
        set(&mut open.path[0].text, "/tmp/x");
        assert!(arguments(&open).starts_with("AT_FDCWD, \"/tmp/x\", "), "{}", arguments(&open));
        let mut rename = record(82, &[0x1000, 0x2000]);
        for (arg, name) in ["old", "new"].into_iter().enumerate() {
            rename.path[arg].arg = arg as u32;
            set(&mut rename.path[arg].text, name);
        }
        assert_eq!(arguments(&rename), r#""old", "new""#);
    }

    #[test]
    fn results_are_errors_numbers_or_addresses() {
        assert_eq!(result(-2), "-ENOENT");
        assert_eq!(result(4096), "4096");
        assert_eq!(result(-512), "-ERESTARTSYS");
        assert_eq!(result(0x7f00_0000_0000), "0x7f0000000000");
    }
}
