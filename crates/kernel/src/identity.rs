//! Distinguishes the programs that one file may be, for processes that already run or are about to:
//! with the same names and numbers that bpf/gate/identity.bpf.h finds when a program begins.

use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use crate::wire;

/// Programs that are many, by the script that they are given; with the letters at the end of
/// options that code follows, and those that another value follows. From their manuals; options of
/// several letters with a value are not recognized.
const INTERPRETERS: [(&str, &str, &str); 17] = [
    ("sh", "c", "oO"),
    ("bash", "c", "oO"),
    ("dash", "c", "oO"),
    ("zsh", "c", "oO"),
    ("ksh", "c", "oO"),
    ("mksh", "c", "oO"),
    ("fish", "c", ""),
    ("python", "c", "WX"),
    ("pypy", "c", "WX"),
    ("perl", "eE", "I"),
    ("ruby", "e", "rIC"),
    ("node", "ep", "r"),
    ("nodejs", "ep", "r"),
    ("php", "rBRE", "dcz"),
    ("lua", "e", "l"),
    ("tclsh", "", ""),
    ("java", "", ""),
];

/// As in bpf/gate/identity.bpf.h.
const OPTION_LEN: usize = 5;
const GOLDEN_64: u64 = 0x9e37_79b9_7f4a_7c15;

fn letters(text: &str) -> u64 {
    text.bytes().fold(0, |letters, letter| letters | 1 << (letter - b'A'))
}

fn copy_c_chars<const N: usize>(place: &mut [c_char; N], bytes: &[u8]) {
    for (to, from) in place[..N - 1].iter_mut().zip(bytes) {
        *to = *from as c_char;
    }
}

/// For the gate's configuration.
pub fn interpreters() -> [wire::interpreter; wire::INTERPRETERS as usize] {
    let mut all = [wire::interpreter::default(); wire::INTERPRETERS as usize];
    for (place, (name, code, value)) in all.iter_mut().zip(INTERPRETERS) {
        copy_c_chars(&mut place.name, name.as_bytes());
        place.code = letters(code);
        place.value = letters(value);
    }
    all
}

/// The script among the arguments of a program with this file name, if that is an interpreter.
pub fn script_argument<'a>(file_name: &str, arguments: &'a [Vec<u8>]) -> Option<&'a [u8]> {
    let name = file_name.trim_end_matches(|letter: char| letter == '.' || letter.is_ascii_digit());
    let (_, code, value) = INTERPRETERS.iter().find(|(known, _, _)| *known == name)?;
    let mut arguments = arguments.iter().skip(1).map(Vec::as_slice);
    while let Some(argument) = arguments.next() {
        match argument {
            [] | b"-" => return None,
            [b'-', b'-', ..] => {}
            [b'-', .., last] if argument.len() <= OPTION_LEN => {
                let is_in = |letters: &str| letters.as_bytes().contains(last);
                if is_in(code) {
                    return None;
                }
                if is_in(value) {
                    arguments.next();
                }
            }
            [b'-', ..] => {}
            script => return Some(script),
        }
    }
    None
}

/// The innermost control group of a service, or else of a container, in /proc/PID/cgroup: in cgroup
/// v2, or in the hierarchy of v1 that controls the numbers of processes.
pub fn unit_or_container(kind: u32, cgroups: &str) -> Option<&str> {
    const CONTAINER_DIGITS: usize = 64;
    let fits = |part: &&str| match kind {
        wire::SCOPE_UNIT => part.len() > ".service".len() && part.ends_with(".service"),
        _ => part.len() >= CONTAINER_DIGITS,
    };
    let path = |is_meant: fn(&str) -> bool| {
        let mut lines = cgroups.lines().map(|line| line.splitn(3, ':').skip(1));
        lines.find_map(|mut line| {
            line.next().filter(|controllers| is_meant(controllers)).and(line.next())
        })
    };
    [path(str::is_empty), path(|controllers| controllers.split(',').any(|one| one == "pids"))]
        .into_iter()
        .flatten()
        .find_map(|path| path.rsplit('/').find(fits))
}

/// Encodes the text of a scope; a script's relative name begins in the folder.
pub fn encode_scope(text: &[u8], folder: Option<&Path>) -> Box<wire::scope_name> {
    let mut name = Box::<wire::scope_name>::default();
    copy_c_chars(&mut name.text, text);
    let Some(folder) = folder else { return name };
    let parts: Vec<_> =
        folder.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    for (place, part) in name.folder.part.iter_mut().zip(parts.iter().rev()) {
        copy_c_chars(place, part.as_os_str().as_bytes());
    }
    name.folder.parts = parts.len().min(name.folder.part.len()) as u16;
    // With this many parts, the kernel side does not reach the root.
    name.folder.complete = (parts.len() < name.folder.part.len()).into();
    name
}

/// The number by which the kernel side knows a scope.
pub fn scope_hash(name: &wire::scope_name) -> u64 {
    let bytes = name.text.iter().chain(name.folder.part.iter().flatten()).map(|byte| *byte as u8);
    let bytes: Vec<_> = bytes.collect();
    let (words, _) = bytes.as_chunks::<8>();
    let add = |hash: u64, word: &[u8; 8]| {
        (hash ^ hash >> 32 ^ u64::from_ne_bytes(*word)).wrapping_mul(GOLDEN_64)
    };
    words.iter().fold(0, add).max(u64::from(wire::SCOPE_ANY) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script_of(line: &str) -> Option<String> {
        let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let program = line.split(' ').next().unwrap_or_default();
        script_argument(program, &words).map(|script| String::from_utf8_lossy(script).into_owned())
    }

    /// As append_path_part() in bpf/lib/path.bpf.h.
    #[test]
    fn path_of_twelve_parts_is_incomplete() {
        let complete = |depth: usize| {
            encode_scope(b"app.py", Some(Path::new(&"/in".repeat(depth)))).folder.complete
        };
        assert_eq!([11, 12, 13].map(complete), [1, 0, 0]);
    }

    #[test]
    fn the_script_is_the_first_argument_that_is_no_option() {
        for (line, script) in [
            ("python3.11 app.py --verbose x", Some("app.py")),
            ("python3 -Es -W error app.py", Some("app.py")),
            ("python3 -m http.server 8000", Some("http.server")),
            ("python3 -c print(1) app.py", None),
            ("python3 - app.py", None),
            ("python3", None),
            ("bash -e -- /etc/rc.local", Some("/etc/rc.local")),
            ("bash -euo pipefail run.sh", Some("run.sh")),
            ("dash -lc ls /", None),
            ("bash --norc run.sh", Some("run.sh")),
            ("perl -w -I lib tool.pl", Some("tool.pl")),
            ("perl5.36.0 -lane print", None),
            ("java -Dapp.home=/opt/app -jar app.jar", Some("app.jar")),
            ("node -r ./trace index.js", Some("index.js")),
            ("php8.2 -d memory_limit=1G artisan", Some("artisan")),
            ("ls /etc", None),
            ("php-fpm8.2 pool", None),
        ] {
            assert_eq!(script_of(line).as_deref(), script, "{line}");
        }
    }

    #[test]
    fn innermost_cgroup_and_v2_first() {
        let digits = "3f2a".repeat(16);
        let of = |kind, cgroups: &str| unit_or_container(kind, cgroups).map(str::to_owned);
        let v2 = "0::/user.slice/user@1.service/app.slice/db.service/worker\n";
        assert_eq!(of(wire::SCOPE_UNIT, v2).as_deref(), Some("db.service"));
        assert_eq!(of(wire::SCOPE_IMAGE, v2), None);
        let v1 =
            "9:pids:/system.slice/old.service\n1:name=systemd:/system.slice/no.service\n0::/\n";
        assert_eq!(of(wire::SCOPE_UNIT, v1).as_deref(), Some("old.service"));
        let scope = format!("docker-{digits}.scope");
        assert_eq!(of(wire::SCOPE_IMAGE, &format!("0::/system.slice/{scope}/init\n")), Some(scope));
        assert_eq!(of(wire::SCOPE_UNIT, "0::/user.slice/session-3.scope\n"), None);
    }

    #[test]
    fn scope_hash_depends_on_name_and_folder() {
        let number = |text: &str, folder: Option<&str>| {
            super::scope_hash(&encode_scope(text.as_bytes(), folder.map(Path::new)))
        };
        let all = [
            number("app.py", None),
            number("app.py", Some("/srv/a")),
            number("app.py", Some("/srv/b")),
            number("app.p", Some("/srv/a")),
            number(&"x".repeat(255), None),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        // The kernel side keeps this many bytes.
        assert_eq!(number(&"x".repeat(300), None), all[4]);
        assert_eq!(number("app.py", Some("/")), all[0]);
    }
}
