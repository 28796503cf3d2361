//! Names that are written for calls, and the names of the calls that are meant.

use calls::Abi;
use ecode::HookWarning;

/// Calls that only 32-bit programs make, with those that 64-bit programs make instead. The others
/// of that kind differ by a prefix or a suffix only: see [`for_64_bits`].
const ONLY_I386: [(&str, &str); 16] = [
    ("_llseek", "lseek"),
    ("fstatat64", "newfstatat"),
    ("mmap2", "mmap"),
    ("nice", "setpriority"),
    ("oldolduname", "uname"),
    ("readdir", "getdents"),
    ("sigaction", "rt_sigaction"),
    ("signal", "rt_sigaction"),
    ("sigpending", "rt_sigpending"),
    ("sigprocmask", "rt_sigprocmask"),
    ("sigreturn", "rt_sigreturn"),
    ("sigsuspend", "rt_sigsuspend"),
    ("stime", "clock_settime"),
    ("ugetrlimit", "getrlimit"),
    ("umount", "umount2"),
    ("waitpid", "wait4"),
];

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

fn is_of_64_bits(name: &str) -> bool {
    calls::number(Abi::X86_64, name).is_some()
}

fn entry(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, call)| *call)
}

/// The call that 64-bit programs make in place of one that only 32-bit programs make.
fn for_64_bits(name: &str) -> Option<&str> {
    let affixed = || {
        let without_suffix =
            ["_time64", "_64", "64", "32"].iter().filter_map(|suffix| name.strip_suffix(suffix));
        let without_prefix = ["_new", "old"].iter().filter_map(|prefix| name.strip_prefix(prefix));
        without_suffix.chain(without_prefix).find(|name| is_of_64_bits(name))
    };
    entry(&ONLY_I386, name).or_else(affixed)
}

/// Warns about selected calls that only 32-bit programs make, unless the call of 64-bit programs is
/// selected as well.
pub fn warnings(selected: &[String]) -> Vec<HookWarning> {
    let mut warnings = Vec::new();
    for (at, name) in selected.iter().enumerate().filter(|(_, name)| !is_of_64_bits(name)) {
        let other = for_64_bits(name);
        if other.is_some_and(|other| selected.iter().any(|selected| selected == other)) {
            continue;
        }
        warnings.push(HookWarning {
            selected: at,
            message: format!("only 32-bit programs make the call `{name}`"),
            help: other.map(|other| format!("64-bit programs make the call `{other}` instead")),
        });
    }
    warnings
}

/// What is probably meant by a name that no call has.
pub fn suggestion(name: &str) -> String {
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
    fn tables_lead_to_calls_of_64_bits() {
        for (name, call) in ONLY_I386 {
            assert!(calls::number(Abi::I386, name).is_some() && !is_of_64_bits(name), "{name}");
            assert!(is_of_64_bits(call), "{call}");
        }
        for (name, call) in FUNCTIONS {
            let is_call = Abi::ALL.iter().any(|abi| calls::number(*abi, name).is_some());
            assert!(!is_call && is_of_64_bits(call), "{name}");
        }
        for table in [ONLY_I386.as_slice(), &FUNCTIONS] {
            assert!(table.is_sorted(), "{table:?}");
        }
    }

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
    fn calls_of_32_bit_programs_alone_are_warned_of() {
        let helps = |selected: &[&str]| -> Vec<(usize, Option<String>)> {
            let selected: Vec<_> = selected.iter().map(|name| String::from(*name)).collect();
            warnings(&selected)
                .into_iter()
                .map(|warning| (warning.selected, warning.help))
                .collect()
        };
        for (name, other) in [
            ("waitpid", "wait4"),
            ("stat64", "stat"),
            ("fcntl64", "fcntl"),
            ("fadvise64_64", "fadvise64"),
            ("clock_gettime64", "clock_gettime"),
            ("futex_time64", "futex"),
            ("getuid32", "getuid"),
            ("_newselect", "select"),
            ("oldlstat", "lstat"),
            ("sendfile64", "sendfile"),
        ] {
            let help = format!("64-bit programs make the call `{other}` instead");
            assert_eq!(helps(&["openat", name]), [(1, Some(help))], "{name}");
            assert_eq!(helps(&[name, other]), []);
        }
        assert_eq!(helps(&["vm86"]), [(0, None)]);
        let known = calls::all(Abi::I386).filter(|(_, name)| !is_of_64_bits(name));
        let without: Vec<_> =
            known.map(|(_, name)| name).filter(|name| for_64_bits(name).is_none()).collect();
        let wanted = [
            "break",
            "stty",
            "gtty",
            "ftime",
            "prof",
            "lock",
            "mpx",
            "ulimit",
            "profil",
            "sgetmask",
            "ssetmask",
            "socketcall",
            "idle",
            "vm86old",
            "ipc",
            "bdflush",
            "vm86",
        ];
        let sorted = |mut names: Vec<&'static str>| {
            names.sort_unstable();
            names
        };
        assert_eq!(sorted(without), sorted(wanted.into()));
    }
}
