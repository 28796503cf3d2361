//! Warnings about names of calls that only 32-bit programs make.

use ecode::HookWarning;

use crate::call_name::{entry, is_of_64_bits};

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

#[cfg(test)]
mod tests {
    use calls::Abi;

    use super::*;

    #[test]
    fn tables_lead_to_calls_of_64_bits() {
        for (name, call) in ONLY_I386 {
            assert!(calls::number(Abi::I386, name).is_some() && !is_of_64_bits(name), "{name}");
            assert!(is_of_64_bits(call), "{call}");
        }
        assert!(ONLY_I386.is_sorted());
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
