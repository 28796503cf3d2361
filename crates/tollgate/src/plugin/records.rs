//! The output of plugins by `print` and `emit`, and messages of Tollgate about them, as text and as
//! JSON.

use anyhow::{Context as _, Result};
use ecode::Program;
use ecode::records::{Record, RecordValue};
use kernel::clock::wall_clock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::format::{number_of, printable};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginOutput {
    Printed(String),
    Emitted {
        name: String,
        members: Map<String, Value>,
    },
    /// The number of records that were lost because the kernel's buffer was full.
    Lost(u64),
    /// The number of lines that one reader of the log did not get, because it was too slow.
    Skipped(u64),
    /// The plugin was unlinked, for this reason.
    #[serde(rename = "taken_out")]
    Unlinked(String),
    Unloaded {
        unlink_us: f64,
    },
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub plugin: String,
    pub time: String,
    #[serde(flatten)]
    pub output: PluginOutput,
}

/// Decodes records, each with its time.
pub fn decode_records(program: &Program, records: &[Vec<u8>]) -> Result<Vec<(u64, PluginOutput)>> {
    let read = |bytes: &Vec<u8>| {
        Record::read(program, bytes).context("a record that does not match the plugin")
    };
    records.iter().map(|bytes| read(bytes).map(|(record, at_ns)| (at_ns, record.into()))).collect()
}

impl From<Record> for PluginOutput {
    fn from(record: Record) -> Self {
        match record {
            Record::Printed(text) => Self::Printed(String::from_utf8_lossy(&text).into_owned()),
            Record::Emitted { name, members } => Self::Emitted { name, members: fields(members) },
        }
    }
}

fn fields(members: Vec<(String, RecordValue)>) -> Map<String, Value> {
    members.into_iter().map(|(name, datum)| (name, value(datum))).collect()
}

pub fn value(datum: RecordValue) -> Value {
    match datum {
        RecordValue::Number(number) => match u64::try_from(number) {
            Ok(number) => number.into(),
            Err(_) => (number as i64).into(),
        },
        RecordValue::Text(text) => String::from_utf8_lossy(&text).into(),
        RecordValue::Several(all) => all.into_iter().map(value).collect(),
        RecordValue::Struct(members) => fields(members).into(),
    }
}

impl PluginOutput {
    pub fn is_plugin_output(&self) -> bool {
        matches!(self, Self::Printed(_) | Self::Emitted { .. })
    }

    /// The output as one line, even if it contains a path with a newline.
    pub fn line(&self) -> String {
        match self {
            Self::Printed(text) => printable(text.strip_suffix('\n').unwrap_or(text)),
            Self::Emitted { name, members } => {
                let members: String =
                    members.iter().map(|(name, value)| format!(" {name}={value}")).collect();
                printable(&format!("{name}{members}"))
            }
            Self::Lost(records) => {
                format!(
                    "{} lost, because the buffer was full",
                    number_of(*records as usize, "record")
                )
            }
            Self::Skipped(lines) => {
                format!(
                    "{} skipped, because this reader of the log is too slow",
                    number_of(*lines as usize, "line")
                )
            }
            Self::Unlinked(why) => format!("disabled: {why}"),
            Self::Unloaded { .. } => "unloaded".into(),
        }
    }
}

impl Line {
    pub fn new(plugin: &str, at_ns: u64, output: PluginOutput) -> Self {
        let time = humantime::format_rfc3339_micros(wall_clock(at_ns)).to_string();
        Self { plugin: plugin.into(), time, output }
    }

    /// The line with the plugin's name, for a list with lines of several plugins.
    pub fn with_name(&self) -> String {
        let by = if self.output.is_plugin_output() { "" } else { "tollgate: plugin " };
        format!("{by}{}: {}", printable(&self.plugin), self.output.line())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_output_is_one_line() {
        let printed = |text: &str| PluginOutput::Printed(text.into()).line();
        assert_eq!(printed("of 1\n"), "of 1");
        assert_eq!(printed("a\nlog: b\u{202e}c\u{1b}\u{85}"), r"a\nlog: b\u202ec\x1b\u0085");
    }

    #[test]
    fn causes_of_losses_are_distinguished() {
        let texts = [
            (PluginOutput::Lost(1), r#"{"lost":1}"#, "1 record lost, because the buffer was full"),
            (
                PluginOutput::Skipped(2),
                r#"{"skipped":2}"#,
                "2 lines skipped, because this reader of the log is too slow",
            ),
        ];
        for (output, json, text) in texts {
            assert_eq!(serde_json::to_string(&output).expect("JSON"), json);
            assert_eq!(output.line(), text);
        }
    }

    #[test]
    fn lines_are_read_back() {
        let all = [
            PluginOutput::Printed("a".into()),
            PluginOutput::Emitted {
                name: "s".into(),
                members: Map::from_iter([("n".into(), 1.into())]),
            },
            PluginOutput::Lost(2),
            PluginOutput::Skipped(3),
            PluginOutput::Unlinked("why".into()),
            PluginOutput::Unloaded { unlink_us: 1.5 },
        ];
        for output in all {
            let line = Line::new("it", 0, output);
            let text = serde_json::to_string(&line).expect("JSON");
            assert_eq!(serde_json::from_str::<Line>(&text).expect(&text), line);
        }
    }
}
