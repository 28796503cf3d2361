//! Options that several commands have, and the parsers of their values.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser as _};

// The format and destination of a result.
#[derive(Args)]
pub struct ResultOptions {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file; - is stdout (default: stdout, or stderr if a command is run)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show at most this many rows of each list in the text output
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

#[derive(Args)]
pub struct SocketOption {
    /// The daemon's control socket
    #[arg(
        long = "socket",
        value_name = "PATH",
        env = control::SOCKET_VARIABLE,
        hide_env_values = true,
        default_value = control::DEFAULT_SOCKET,
        value_parser = PathBufValueParser::new().try_map(socket_path)
    )]
    pub path: PathBuf,
}

/// Refuses a path that is too long for a socket.
fn socket_path(path: PathBuf) -> Result<PathBuf, String> {
    /// unix(7): the kernel takes 108 bytes with the NUL at the end.
    const MAX_SOCKET_PATH_LEN: usize = 107;
    match path.as_os_str().len() {
        0..=MAX_SOCKET_PATH_LEN => Ok(path),
        length => Err(format!(
            "the path of a socket has at most {MAX_SOCKET_PATH_LEN} bytes, and this one has \
            {length}"
        )),
    }
}

/// Parses "10ms", "2s", "1.5s", "2m" or "300us".
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} is not a time such as 10ms, 1.5s or 2m"))?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "" => return Err(format!("{text:?} has no unit: write {text}ms or {text}s")),
        _ => {
            return Err(format!("{unit:?} is not a unit of time: ns, us, ms, s, m, h or d"));
        }
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("{text:?} is too long"))
}

/// Parses the same, but not 0.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("the time must be above 0".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn paths_of_sockets_are_as_long_as_the_kernel_takes_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let start = folder.path().as_os_str().len() + 1;
        let of_length = |length: usize| folder.path().join("s".repeat(length - start));
        UnixListener::bind(socket_path(of_length(107)).expect("short enough")).expect("our folder");
        UnixListener::bind(of_length(108)).expect_err("too long");
        let refused = socket_path(of_length(108)).expect_err("too long");
        assert_eq!(refused, "the path of a socket has at most 107 bytes, and this one has 108");
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        assert!(duration("10").unwrap_err().contains("10ms"));
        assert!(duration("10x").unwrap_err().contains("unit"));
        assert!(duration("fast").is_err());
        assert!(duration("-1s").is_err());
    }
}
