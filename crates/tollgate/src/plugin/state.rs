//! How a plugin is, as people and programs read it: `list`, `show`, and the report of `run`.

use std::fmt::Write as _;

use anyhow::Result;
use ecode::records::datum;
use kernel::plugins::Plugin;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::build::Built;
use super::counted::Counted;
use super::told::value;
use crate::format::{and_more, count, number_of, printable};

/// docs/ecode.md describes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    pub name: String,
    pub priority: i32,
    pub handlers: Vec<Handler>,
    /// Whether its hooks run it.
    pub is_linked: bool,
    /// Why they do not any more.
    pub taken_out: Option<String>,
    /// By `print` and `emit`, since it was loaded.
    pub told: u64,
    /// Of a list, these are not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variables: Option<Vec<Variable>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maps: Option<Vec<Map>>,
    #[serde(flatten)]
    pub counted: Counted,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Handler {
    pub hook: String,
    pub selected: Vec<String>,
    pub instructions: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Variable {
    pub name: String,
    /// Null: it is too large.
    pub value: Value,
    /// Of one that is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Map {
    pub name: String,
    /// That it has, and has room for.
    pub entries: usize,
    pub room: u32,
    /// The largest ones.
    pub shown: Vec<Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    pub key: Value,
    pub value: Value,
}

/// Larger ones are for `call`.
const MOST_VARIABLE_BYTES: u64 = 4096;

/// With so many of each map's entries.
pub fn memory(built: &Built, plugin: &Plugin, top: usize) -> Result<(Vec<Variable>, Vec<Map>)> {
    let globals = built.program.globals.iter().zip(&built.object.offsets);
    let variables = globals.filter(|(global, _)| !global.is_const).filter_map(|(global, offset)| {
        let (name, bytes) = (global.name.clone(), global.of.size());
        if bytes > MOST_VARIABLE_BYTES {
            return Some(Variable { name, value: Value::Null, bytes: Some(bytes) });
        }
        let bytes = plugin.data().read(*offset as usize, bytes as usize);
        Some(Variable { name, value: value(datum(&global.of, &bytes)?), bytes: None })
    });
    let variables = variables.collect();
    let mut maps = Vec::new();
    for (number, map) in built.program.maps.iter().enumerate() {
        let mut entries: Vec<_> = plugin
            .entries(number)?
            .into_iter()
            .filter_map(|(key, bytes)| {
                Some(Entry { key: value(datum(&map.key, &key)?), value: value(datum(&map.value, &bytes)?) })
            })
            .collect();
        entries.sort_by(largest_first);
        let all = entries.len();
        entries.truncate(top);
        maps.push(Map { name: map.name.clone(), entries: all, room: map.length, shown: entries });
    }
    Ok((variables, maps))
}

/// By value, where that is a number, and then by key.
fn largest_first(one: &Entry, other: &Entry) -> std::cmp::Ordering {
    let number = |value: &Value| value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    number(&other.value).cmp(&number(&one.value)).then_with(|| {
        number(&one.key)
            .cmp(&number(&other.key))
            .then_with(|| one.key.to_string().cmp(&other.key.to_string()))
    })
}

impl Handler {
    pub fn title(&self) -> String {
        match self.selected.as_slice() {
            [] => self.hook.clone(),
            selected => format!("{}({})", self.hook, selected.join(", ")),
        }
    }
}

impl State {
    /// Of a list.
    pub fn line(&self) -> String {
        let mut hooks: Vec<_> = self.handlers.iter().map(Handler::title).collect();
        hooks.dedup();
        let how = match (&self.taken_out, self.is_linked) {
            (Some(why), _) => format!("taken out: {why}"),
            (None, true) => format!("priority {}", self.priority),
            (None, false) => "on demand".into(),
        };
        format!("{:<20} {:<40} {how}\n", printable(&self.name), printable(&hooks.join(" ")))
    }

    /// Its variables and maps.
    pub fn memory(&self, top: usize) -> String {
        let mut out = String::new();
        for variable in self.variables.iter().flatten() {
            let _ = match variable.bytes {
                Some(bytes) => {
                    writeln!(out, "{}: {} bytes, too many to be shown", variable.name, count(bytes))
                }
                None => writeln!(out, "{} = {}", variable.name, text(&variable.value)),
            };
        }
        for map in self.maps.iter().flatten() {
            let _ = writeln!(
                out,
                "{}: {} (room for {})",
                map.name,
                number_of(map.entries, "entry"),
                count(map.room.into())
            );
            // A number here is a name more often than an amount.
            let keys: Vec<_> = map.shown.iter().take(top).map(|entry| entry.key.to_string()).collect();
            let width = keys.iter().map(|key| key.chars().count()).max().unwrap_or(0);
            for (key, entry) in keys.iter().zip(&map.shown) {
                let _ = writeln!(out, "  {:<width$}  {}", printable(key), text(&entry.value));
            }
            out += &and_more(map.entries, top, "entry");
        }
        for line in self.counted.lines() {
            out += &format!("{line}\n");
        }
        out
    }
}

/// As it stands in a line.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", printable(text)),
        Value::Number(number) => match number.as_u64() {
            Some(number) => count(number),
            None => number.to_string(),
        },
        other => printable(&other.to_string()),
    }
}
