//! The text form of a baseline: a header line with the version and a checksum, then one JSON
//! document that other programs can read as well.

use std::collections::HashSet;

use super::{ANY_OTHER, Baseline, Digest, MAX_CALLS};

/// The start of the header. The checksum that follows it covers everything after the header.
const VERSION: &str = "tollgate-baseline/1";

/// More than the longest name of a call has: `sched_rr_get_interval_time64`, 28 bytes.
const MAX_CALL_NAME: usize = 64;
/// include/uapi/linux/limits.h, PATH_MAX
const MAX_PATH: usize = 4096;

/// What is wrong with a text; each message completes "NAME: ".
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("it is not a baseline, or it was truncated: its first line is not a header")]
    Header,
    #[error("its version is {0:?}, but this version of Tollgate reads {VERSION:?}")]
    Version(String),
    #[error("it was truncated or changed: its checksum does not match its header")]
    Checksum,
    #[error("its content is not the JSON of a baseline: {0}")]
    Json(serde_json::Error),
    #[error("its windows have {lookahead} and {sequence} calls; 2 to 9 and 2 to 16 are possible")]
    Lengths { lookahead: usize, sequence: usize },
    #[error("it names {0} calls, but at most {MAX_CALLS} are possible")]
    Calls(usize),
    #[error(
        "its call {0:?} is not a valid name: it needs 1 to {MAX_CALL_NAME} printable characters"
    )]
    Name(String),
    #[error("its {part} has {found} bytes; 1 to {MAX_PATH} are possible")]
    Path { part: &'static str, found: usize },
    #[error("its {part} refers to call {index}, but there are only {calls}")]
    Index { part: String, index: u8, calls: usize },
    #[error("its {part} has calls further apart than its windows are long")]
    Distance { part: String },
    #[error("its {part} has {found} calls instead of {expected}")]
    Length { part: String, found: usize, expected: usize },
    #[error("its {part} occurs twice")]
    Twice { part: String },
}

impl Baseline {
    /// The header and the JSON.
    pub fn to_text(&self) -> serde_json::Result<String> {
        let body = serde_json::to_string(self)? + "\n";
        Ok(header(body.as_bytes()) + &body)
    }

    /// Reads a text, and checks its version, its checksum and its content.
    pub fn from_text(text: &[u8]) -> Result<Self, FormatError> {
        let end = text.iter().position(|byte| *byte == b'\n').ok_or(FormatError::Header)?;
        let (line, body) = text.split_at(end + 1);
        let line_text = str::from_utf8(line).map_err(|_| FormatError::Header)?;
        let version =
            line_text.split_once(' ').map(|(version, _)| version).ok_or(FormatError::Header)?;
        if !version.starts_with("tollgate-baseline/") {
            return Err(FormatError::Header);
        }
        if version != VERSION {
            return Err(FormatError::Version(version.to_owned()));
        }
        if line_text != header(body) {
            return Err(FormatError::Checksum);
        }
        let baseline: Self = serde_json::from_slice(body).map_err(FormatError::Json)?;
        baseline.check()?;
        Ok(baseline)
    }

    /// Checks what a checksum cannot: that lengths are in range and that every index refers to an
    /// existing call.
    pub fn check(&self) -> Result<(), FormatError> {
        let Self { lookahead, sequence, .. } = *self;
        if !(2..=9).contains(&lookahead) || !(2..=16).contains(&sequence) {
            return Err(FormatError::Lengths { lookahead, sequence });
        }
        if self.calls.len() > MAX_CALLS {
            return Err(FormatError::Calls(self.calls.len()));
        }
        let is_name = |name: &str| {
            (1..=MAX_CALL_NAME).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
        };
        if let Some(call) = self.calls.iter().find(|call| !is_name(call)) {
            return Err(FormatError::Name(call.chars().take(MAX_CALL_NAME).collect()));
        }
        let paths = self.paths.iter().map(|path| ("path", path));
        for (part, text) in paths.chain(self.scope.iter().map(|scope| ("scope", scope))) {
            let found = text.len();
            if !(1..=MAX_PATH).contains(&found) {
                return Err(FormatError::Path { part, found });
            }
        }
        let mut names = HashSet::new();
        if let Some(call) = self.calls.iter().find(|call| !names.insert(*call)) {
            return Err(FormatError::Twice { part: format!("call {call:?}") });
        }
        let mut pairs = HashSet::new();
        for (number, pair) in (1..).zip(&self.pairs) {
            let part = || format!("pair {number}");
            self.check_indices(&[pair.call, pair.earlier], part)?;
            if u32::from(pair.learned | pair.normal) >> (lookahead - 1) != 0 {
                return Err(FormatError::Distance { part: part() });
            }
            if !pairs.insert((pair.call, pair.earlier)) {
                return Err(FormatError::Twice { part: part() });
            }
        }
        let mut windows = HashSet::new();
        for (number, window) in (1..).zip(&self.windows) {
            let part = || format!("window {number}");
            self.check_indices(&window.calls, part)?;
            let found = window.calls.len();
            if found != sequence {
                return Err(FormatError::Length { part: part(), found, expected: sequence });
            }
            if !windows.insert(&window.calls) {
                return Err(FormatError::Twice { part: part() });
            }
        }
        Ok(())
    }

    fn check_indices(&self, indices: &[u8], part: impl Fn() -> String) -> Result<(), FormatError> {
        let calls = self.calls.len();
        match indices.iter().find(|index| usize::from(**index) >= calls && **index != ANY_OTHER) {
            Some(index) => Err(FormatError::Index { part: part(), index: *index, calls }),
            None => Ok(()),
        }
    }
}

fn header(body: &[u8]) -> String {
    format!("{VERSION} sha256={}\n", Digest::of(body))
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::super::{BaselineState, BaselineWindow};
    use super::*;

    fn text() -> Vec<u8> {
        example().to_text().expect("JSON").into_bytes()
    }

    fn with_header(body: &str) -> String {
        header(body.as_bytes()) + body
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        let with_scope = Baseline { scope: Some("nginx.service".into()), ..example() };
        for state in [
            BaselineState::Training,
            BaselineState::Normal,
            BaselineState::Frozen { normal_at: u64::MAX },
        ] {
            let baseline = Baseline { state, ..with_scope.clone() };
            let text = baseline.to_text().expect("JSON");
            assert_eq!(Baseline::from_text(text.as_bytes()).expect("whole"), baseline);
        }
    }

    #[test]
    fn body_is_one_line_of_json() {
        let text = example().to_text().expect("JSON");
        let (_, body) = text.split_once('\n').expect("a header");
        let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!((&json["state"], &json["normal_at"]), (&"frozen".into(), &1_700_600_000.into()));
        assert_eq!(json["windows"][0]["calls"], serde_json::json!([0, 1, 2]));
        assert_eq!(body.lines().count(), 1);
    }

    #[test]
    fn no_cut_and_no_flipped_bit_goes_unseen() {
        let text = text();
        for length in 0..text.len() {
            assert!(Baseline::from_text(&text[..length]).is_err(), "{length}");
        }
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Baseline::from_text(&flipped).is_err(), "{bit}");
        }
    }

    #[test]
    fn every_fault_has_its_sentence() {
        let fault =
            |text: &str| Baseline::from_text(text.as_bytes()).expect_err("faulty").to_string();
        let whole = String::from_utf8(text()).expect("UTF-8");
        assert_eq!(
            fault(""),
            "it is not a baseline, or it was truncated: its first line is not a header"
        );
        assert_eq!(
            fault(&whole.replacen("/1", "/2", 1)),
            "its version is \"tollgate-baseline/2\", but this version of Tollgate reads \
            \"tollgate-baseline/1\""
        );
        assert_eq!(
            fault(&whole.replacen("500", "501", 1)),
            "it was truncated or changed: its checksum does not match its header"
        );
        assert!(
            fault(&with_header("{]\n"))
                .starts_with("its content is not the JSON of a baseline: key must")
        );
        assert!(fault(&with_header("{}\n")).ends_with("missing field `digest` at line 1 column 2"));
    }

    #[test]
    fn names_and_paths_have_sensible_lengths() {
        fn fault<T>(change: impl FnOnce(&mut Baseline) -> T) -> Result<(), String> {
            let mut baseline = example();
            change(&mut baseline);
            baseline.check().map_err(|error| error.to_string())
        }
        let call = "is not a valid name: it needs 1 to 64 printable characters";
        assert_eq!(fault(|it| it.calls[0].clear()), Err(format!("its call \"\" {call}")));
        let long = fault(|it| it.calls[0] = "x".repeat(65));
        assert!(long.is_err_and(|error| error.ends_with(call)));
        assert!(fault(|it| it.calls[0] = "a\nb".into()).is_err());
        let with_path = |path: String| fault(|it| it.paths.insert(path));
        let path = |length: usize| format!("its path has {length} bytes; 1 to 4096 are possible");
        assert_eq!(with_path(String::new()), Err(path(0)));
        assert_eq!(with_path("p".repeat(4097)), Err(path(4097)));
        assert!(fault(|it| it.scope = Some(String::new())).is_err());
        assert_eq!(with_path("p".repeat(4096)), Ok(()));
    }

    #[test]
    fn dangling_indices_are_found() {
        let fault = |change: fn(&mut Baseline)| {
            let mut baseline = example();
            change(&mut baseline);
            let text = baseline.to_text().expect("JSON");
            Baseline::from_text(text.as_bytes()).expect_err("faulty").to_string()
        };
        assert_eq!(
            fault(|it| it.pairs[2].earlier = 3),
            "its pair 3 refers to call 3, but there are only 3"
        );
        assert_eq!(
            fault(|it| it.windows[0].calls[1] = 126),
            "its window 1 refers to call 126, but there are only 3"
        );
        assert_eq!(
            fault(|it| it.calls = (0..127).map(|n| n.to_string()).collect()),
            "it names 127 calls, but at most 126 are possible"
        );
        assert_eq!(fault(|it| it.calls[2] = "open".into()), "its call \"open\" occurs twice");
        assert_eq!(fault(|it| it.pairs.push(it.pairs[0])), "its pair 6 occurs twice");
        assert_eq!(
            fault(|it| it.lookahead = 2),
            "its pair 2 has calls further apart than its windows are long"
        );
        assert_eq!(
            fault(|it| it.lookahead = 10),
            "its windows have 10 and 3 calls; 2 to 9 and 2 to 16 are possible"
        );
        assert_eq!(
            fault(|it| it.windows.push(BaselineWindow {
                calls: vec![0],
                learned: true,
                normal: true
            })),
            "its window 3 has 1 calls instead of 3"
        );
        assert_eq!(fault(|it| it.windows.push(it.windows[0].clone())), "its window 3 occurs twice");
    }
}
