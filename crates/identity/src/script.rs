//! Scripts, and the interpreters that run them.

/// A program whose processes are identified by the scripts that they run.
#[derive(Debug, Clone, Copy)]
pub struct ScriptInterpreter {
    /// The file's name, without a version at the end.
    pub name: &'static str,
    /// If the last letter of an option is one of these (`-c`, `-lc`), the option's value is code,
    /// and there is no script.
    pub code_options: &'static str,
    /// If the last letter of an option is one of these, the option has a value that is not code.
    pub value_options: &'static str,
}

const fn interpreter(
    name: &'static str,
    code_options: &'static str,
    value_options: &'static str,
) -> ScriptInterpreter {
    ScriptInterpreter { name, code_options, value_options }
}

/// The known interpreters, with the options of their manuals. An option of several letters that
/// takes a value, such as Java's `-cp`, is not recognized.
pub const INTERPRETERS: [ScriptInterpreter; 17] = [
    interpreter("sh", "c", "oO"),
    interpreter("bash", "c", "oO"),
    interpreter("dash", "c", "oO"),
    interpreter("zsh", "c", "oO"),
    interpreter("ksh", "c", "oO"),
    interpreter("mksh", "c", "oO"),
    interpreter("fish", "c", ""),
    interpreter("python", "c", "WX"),
    interpreter("pypy", "c", "WX"),
    interpreter("perl", "eE", "I"),
    interpreter("ruby", "e", "rIC"),
    interpreter("node", "ep", "r"),
    interpreter("nodejs", "ep", "r"),
    interpreter("php", "rBRE", "dcz"),
    interpreter("lua", "e", "l"),
    interpreter("tclsh", "", ""),
    interpreter("java", "", ""),
];

/// The length of the longest option that is recognized, as on the kernel side.
const OPTION_LEN: usize = 5;

/// The script among the arguments of a program with this file name. `None` if the program is no
/// interpreter, or if it runs no script.
pub fn script_argument<'a>(file_name: &str, arguments: &'a [Vec<u8>]) -> Option<&'a [u8]> {
    let name = file_name.trim_end_matches(|letter: char| letter == '.' || letter.is_ascii_digit());
    let known = INTERPRETERS.iter().find(|known| known.name == name)?;
    let mut arguments = arguments.iter().skip(1).map(Vec::as_slice);
    while let Some(argument) = arguments.next() {
        match argument {
            [] | b"-" => return None,
            [b'-', b'-', ..] => {}
            [b'-', .., last] if argument.len() <= OPTION_LEN => {
                let is_in = |letters: &str| letters.as_bytes().contains(last);
                if is_in(known.code_options) {
                    return None;
                }
                if is_in(known.value_options) {
                    arguments.next();
                }
            }
            [b'-', ..] => {}
            script => return Some(script),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script_of(line: &str) -> Option<String> {
        let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let program = line.split(' ').next().unwrap_or_default();
        script_argument(program, &words).map(|script| String::from_utf8_lossy(script).into_owned())
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
}
