//! What a plugin tells by `print` and `emit`, and Tollgate of it, as people and programs read it.

use anyhow::{Context as _, Result};
use ecode::Program;
use ecode::records::{Datum, Record};
use kernel::clock::wall_clock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::format::{number_of, printable};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    Printed(String),
    Emitted {
        name: String,
        members: Map<String, Value>,
    },
    /// So many of what it would have told.
    Lost(u64),
    /// Why.
    TakenOut(String),
    Unloaded {
        unlink_us: f64,
    },
}

/// Of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub plugin: String,
    pub time: String,
    #[serde(flatten)]
    pub told: Told,
}

/// Each with when it was told.
pub fn told(program: &Program, records: &[Vec<u8>]) -> Result<Vec<(u64, Told)>> {
    let read =
        |bytes: &Vec<u8>| Record::read(program, bytes).context("a record that is none of the plugin's");
    records.iter().map(|bytes| read(bytes).map(|(record, at_ns)| (at_ns, record.into()))).collect()
}

impl From<Record> for Told {
    fn from(record: Record) -> Self {
        match record {
            Record::Printed(text) => Self::Printed(String::from_utf8_lossy(&text).into_owned()),
            Record::Emitted { name, members } => Self::Emitted { name, members: fields(members) },
        }
    }
}

fn fields(members: Vec<(String, Datum)>) -> Map<String, Value> {
    members.into_iter().map(|(name, datum)| (name, value(datum))).collect()
}

pub fn value(datum: Datum) -> Value {
    match datum {
        Datum::Number(number) => match u64::try_from(number) {
            Ok(number) => number.into(),
            Err(_) => (number as i64).into(),
        },
        Datum::Text(text) => String::from_utf8_lossy(&text).into(),
        Datum::Several(all) => all.into_iter().map(value).collect(),
        Datum::Struct(members) => fields(members).into(),
    }
}

impl Told {
    pub fn is_of_plugin(&self) -> bool {
        matches!(self, Self::Printed(_) | Self::Emitted { .. })
    }

    /// One line, whatever is in it: a path with a newline is not to look like two.
    pub fn line(&self) -> String {
        match self {
            Self::Printed(text) => printable(text.strip_suffix('\n').unwrap_or(text)),
            Self::Emitted { name, members } => {
                let members: String =
                    members.iter().map(|(name, value)| format!(" {name}={value}")).collect();
                printable(&format!("{name}{members}"))
            }
            Self::Lost(records) => {
                format!("{} lost: there was no room for more", number_of(*records as usize, "record"))
            }
            Self::TakenOut(why) => {
                format!("taken out: {why}; `tollgate plugin swap` puts a better one in its place")
            }
            Self::Unloaded { .. } => "unloaded".into(),
        }
    }
}

impl Line {
    pub fn new(plugin: &str, at_ns: u64, told: Told) -> Self {
        let time = humantime::format_rfc3339_micros(wall_clock(at_ns)).to_string();
        Self { plugin: plugin.into(), time, told }
    }

    /// Among those of others.
    pub fn named(&self) -> String {
        let by = if self.told.is_of_plugin() { "" } else { "tollgate: plugin " };
        format!("{by}{}: {}", printable(&self.plugin), self.told.line())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one() {
        let printed = |text: &str| Told::Printed(text.into()).line();
        assert_eq!(printed("of 1\n"), "of 1");
        assert_eq!(printed("a\nlog: b\u{202e}c\u{1b}\u{85}"), r"a\nlog: b\u202ec\x1b\u0085");
    }

    #[test]
    fn lines_are_read_back() {
        let all = [
            Told::Printed("a".into()),
            Told::Emitted { name: "s".into(), members: Map::from_iter([("n".into(), 1.into())]) },
            Told::Lost(2),
            Told::TakenOut("why".into()),
            Told::Unloaded { unlink_us: 1.5 },
        ];
        for told in all {
            let line = Line::new("it", 0, told);
            let text = serde_json::to_string(&line).expect("JSON");
            assert_eq!(serde_json::from_str::<Line>(&text).expect(&text), line);
        }
    }
}
