//! Names of calls, as reports show them and as users write them.

use calls::Abi;
use kernel::wire;

/// Functions of the kernel and of the C library that are not calls, with the calls by which they
/// do their work.
const FUNCTIONS: [(&str, &str); 44] = [
    ("_exit", "exit_group"),
    ("abort", "tgkill"),
    ("exec", "execve"),
    ("execl", "execve"),
    ("execlp", "execve"),
    ("execv", "execve"),
    ("execvp", "execve"),
    ("fclose", "close"),
    ("fopen", "openat"),
    ("fread", "read"),
    ("fwrite", "write"),
    ("isatty", "ioctl"),
    ("killpg", "kill"),
    ("malloc", "mmap"),
    ("mkfifo", "mknodat"),
    ("mkstemp", "openat"),
    ("newfstat", "fstat"),
    ("newlstat", "lstat"),
    ("newstat", "stat"),
    ("newuname", "uname"),
    ("opendir", "openat"),
    ("pclose", "wait4"),
    ("popen", "execve"),
    ("posix_spawn", "execve"),
    ("pread", "pread64"),
    ("printf", "write"),
    ("pthread_create", "clone3"),
    ("pthread_join", "futex"),
    ("pthread_kill", "tgkill"),
    ("pthread_mutex_lock", "futex"),
    ("puts", "write"),
    ("pwrite", "pwrite64"),
    ("raise", "tgkill"),
    ("recv", "recvfrom"),
    ("remove", "unlink"),
    ("sbrk", "brk"),
    ("sem_wait", "futex"),
    ("send", "sendto"),
    ("sigqueue", "rt_sigqueueinfo"),
    ("sleep", "clock_nanosleep"),
    ("system", "execve"),
    ("tcgetattr", "ioctl"),
    ("tcsetattr", "ioctl"),
    ("usleep", "clock_nanosleep"),
];

/// The ABI and the name of a call.
pub fn call_name(slot: u32) -> (Abi, String) {
    let abi = Abi::ALL[(slot / wire::CALLS_PER_ABI) as usize];
    let number = slot % wire::CALLS_PER_ABI;
    if number == wire::CALL_UNKNOWN {
        return (abi, "unknown".into());
    }
    (abi, calls::display_name(abi, number).into_owned())
}

/// Whether 64-bit programs make a call of this name.
pub fn is_of_64_bits(name: &str) -> bool {
    calls::number(Abi::X86_64, name).is_some()
}

/// What a table of names has for this one.
pub fn entry(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, call)| *call)
}

/// Parses the name of a call of any ABI.
pub fn known_call(name: &str) -> Result<String, String> {
    if Abi::ALL.iter().any(|abi| calls::number(*abi, name).is_some()) {
        return Ok(name.to_owned());
    }
    Err(format!("there is no system call `{name}`{}", suggestion(name)))
}

/// What is probably meant by a name that no call has.
fn suggestion(name: &str) -> String {
    if let Some(call) = entry(&FUNCTIONS, name) {
        return format!("; this is a function that makes the call `{call}`");
    }
    let near = without_prefix(name).or_else(|| of_number(name)).or_else(|| {
        let known = calls::all(Abi::X86_64).map(|(_, name)| name);
        ecode::closest_name(name, known)
    });
    near.map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// The call's own name, if the kernel's functions or C's headers have it with a prefix.
fn without_prefix(name: &str) -> Option<&str> {
    const PREFIXES: [&str; 7] =
        ["sys_enter_", "sys_exit_", "__x64_sys_", "ksys_", "sys_", "SYS_", "__NR_"];
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let is_call = is_of_64_bits(rest);
    if is_call { Some(rest) } else { entry(&FUNCTIONS, rest).filter(|_| rest.starts_with("new")) }
}

/// The name of the call with this number.
fn of_number(number: &str) -> Option<&'static str> {
    calls::name(Abi::X86_64, number.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_lead_to_their_calls() {
        for (name, call) in [
            ("pread", "pread64"),
            ("pwrite", "pwrite64"),
            ("newfstat", "fstat"),
            ("newuname", "uname"),
            ("sys_newfstat", "fstat"),
            ("SYS_openat", "openat"),
            ("257", "openat"),
            ("opennat", "openat"),
        ] {
            assert!(suggestion(name).contains(&format!("`{call}`")), "{}", suggestion(name));
        }
        assert_eq!(suggestion("9999"), "");
    }

    #[test]
    fn functions_are_no_calls() {
        for (name, call) in FUNCTIONS {
            assert!(known_call(name).is_err() && is_of_64_bits(call), "{name}");
        }
        assert!(FUNCTIONS.is_sorted());
    }

    #[test]
    fn calls_of_every_abi_are_known() {
        for name in ["read", "waitpid", "break"] {
            assert_eq!(known_call(name), Ok(name.into()));
        }
        let refused = known_call("epoll_wayt").expect_err("there is no such call");
        assert_eq!(refused, "there is no system call `epoll_wayt`; did you mean `epoll_wait`?");
    }

    #[test]
    fn x32_and_i386_calls_have_their_own_names() {
        assert_eq!(call_name(wire::CALLS_PER_ABI + 20), (Abi::I386, "getpid".into()));
        assert_eq!(call_name(2 * wire::CALLS_PER_ABI + 39), (Abi::X32, "getpid".into()));
        assert_eq!(call_name(wire::CALL_UNKNOWN).1, "unknown");
    }
}
