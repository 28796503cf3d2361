//! What a plugin tells by `print` and `emit`, as people and programs read it.

use anyhow::{Context as _, Result};
use ecode::Program;
use ecode::interpret::Faults;
use ecode::records::{Datum, Record};
use kernel::plugins::Plugin;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::format::{number_of, printable};

/// What went otherwise than it was written.
pub fn faults(faults: &Faults) -> Vec<String> {
    let Faults { outside, cut_short, full, lost } = *faults;
    let told = [
        (outside, "an element outside of its array"),
        (cut_short, "a loop that was cut short"),
        (full, "an entry for which a map had no room"),
        (lost, "a record for which there was no room"),
    ];
    let told = told.into_iter().filter(|(times, _)| *times > 0);
    told.map(|(times, what)| format!("{}: {what}", number_of(times as usize, "time"))).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    Printed(String),
    Emitted { name: String, members: Map<String, Value> },
}

/// Since this was asked last.
pub fn told(program: &Program, plugin: &Plugin) -> Result<Vec<Told>> {
    let read =
        |bytes: &Vec<u8>| Record::read(program, bytes).context("a record that is none of the plugin's");
    plugin.records()?.iter().map(|bytes| read(bytes).map(Told::from)).collect()
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
    /// What steers a terminal is shown, and does not.
    pub fn line(&self) -> String {
        match self {
            Self::Printed(text) => {
                let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
                lines.map(|line| format!("{}\n", printable(line))).collect()
            }
            Self::Emitted { name, members } => {
                let members: String =
                    members.iter().map(|(name, value)| format!(" {name}={value}")).collect();
                format!("{}\n", printable(&format!("{name}{members}")))
            }
        }
    }
}
