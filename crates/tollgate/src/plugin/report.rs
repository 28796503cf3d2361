//! The state of a plugin, as text and as JSON, for `list`, `show` and the report of `run`.

use std::fmt::Write as _;

use anyhow::Result;
use ecode::records::decode_value;
use kernel::plugin::LoadedPlugin;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::compile::CompiledPlugin;
use super::faults::FaultCounts;
use super::records::value;
use crate::format::{and_more, count, number_of, printable};
use crate::report::{Section, TextOptions, field};

/// The state as JSON (docs/ecode.md).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PluginState {
    pub name: String,
    pub priority: i32,
    pub handlers: Vec<HandlerState>,
    /// Whether the hooks run the plugin.
    pub is_linked: bool,
    /// Why the plugin was unlinked from its hooks.
    #[serde(rename = "taken_out")]
    pub unlink_reason: Option<String>,
    /// The number of lines by `print` and `emit` since the plugin was loaded.
    #[serde(rename = "told")]
    pub output_lines: u64,
    /// `None` in a list of plugins, which omits the variables and the maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variables: Option<Vec<VariableState>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maps: Option<Vec<MapState>>,
    #[serde(flatten)]
    pub faults: FaultCounts,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HandlerState {
    pub hook: String,
    pub selected: Vec<String>,
    pub instructions: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VariableState {
    pub name: String,
    /// Null if it is too large.
    pub value: Value,
    /// The size of a value that is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MapState {
    pub name: String,
    /// Current entries; `room` is the maximum.
    pub entries: usize,
    pub room: u32,
    /// The entries with the largest values.
    pub shown: Vec<MapEntry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MapEntry {
    pub key: Value,
    pub value: Value,
}

/// The plugins' section of a report.
pub struct PluginReport(pub Vec<PluginState>);

impl Section for PluginReport {
    fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        field("plugins", &self.0)
    }

    fn text(&self, out: &mut String, layout: &TextOptions, _is_only: bool) {
        for plugin in &self.0 {
            let _ = write!(out, "\nplugin {}{}", plugin.line(), plugin.memory(layout.top));
        }
    }

    fn calls_seen(&self) -> Option<u64> {
        None
    }
}

/// The maximum size of a variable that is shown. Only `call` reads larger ones.
const MAX_VARIABLE_BYTES: u64 = 4096;

/// A plugin's variables and maps, with up to `top` of each map's entries.
pub fn memory(
    built: &CompiledPlugin,
    plugin: &LoadedPlugin,
    top: usize,
) -> Result<(Vec<VariableState>, Vec<MapState>)> {
    let globals = built.program.globals.iter().zip(&built.object.offsets);
    let variables =
        globals.filter(|(global, _)| !global.is_const).filter_map(|(global, offset)| {
            let (name, bytes) = (global.name.clone(), global.ty.size());
            if bytes > MAX_VARIABLE_BYTES {
                return Some(VariableState { name, value: Value::Null, bytes: Some(bytes) });
            }
            let bytes = plugin.data().read(*offset as usize, bytes as usize);
            Some(VariableState {
                name,
                value: value(decode_value(&global.ty, &bytes)?),
                bytes: None,
            })
        });
    let variables = variables.collect();
    let mut maps = Vec::new();
    for (number, map) in built.program.maps.iter().enumerate() {
        let mut entries: Vec<_> = plugin
            .entries(number)?
            .into_iter()
            .filter_map(|(key, bytes)| {
                Some(MapEntry {
                    key: value(decode_value(&map.key, &key)?),
                    value: value(decode_value(&map.value, &bytes)?),
                })
            })
            .collect();
        entries.sort_by(largest_first);
        let all = entries.len();
        entries.truncate(top);
        maps.push(MapState {
            name: map.name.clone(),
            entries: all,
            room: map.length,
            shown: entries,
        });
    }
    Ok((variables, maps))
}

/// Orders entries by descending value, if that is a number, and then by key.
fn largest_first(one: &MapEntry, other: &MapEntry) -> std::cmp::Ordering {
    let number = |value: &Value| value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    number(&other.value).cmp(&number(&one.value)).then_with(|| {
        number(&one.key)
            .cmp(&number(&other.key))
            .then_with(|| one.key.to_string().cmp(&other.key.to_string()))
    })
}

impl HandlerState {
    pub fn title(&self) -> String {
        match self.selected.as_slice() {
            [] => self.hook.clone(),
            selected => format!("{}({})", self.hook, selected.join(", ")),
        }
    }
}

impl PluginState {
    /// The plugin's line in a list of plugins.
    pub fn line(&self) -> String {
        let mut hooks: Vec<_> = self.handlers.iter().map(HandlerState::title).collect();
        hooks.dedup();
        let how = match (&self.unlink_reason, self.is_linked) {
            (Some(why), _) => format!("disabled: {why}"),
            (None, true) => format!("priority {}", self.priority),
            (None, false) => "on demand".into(),
        };
        format!("{:<20} {:<40} {how}\n", printable(&self.name), printable(&hooks.join(" ")))
    }

    /// The plugin's variables and maps as text.
    pub fn memory(&self, top: usize) -> String {
        let mut out = String::new();
        for variable in self.variables.iter().flatten() {
            let _ = match variable.bytes {
                Some(bytes) => {
                    writeln!(
                        out,
                        "{}: {} bytes, too large to be shown",
                        variable.name,
                        count(bytes)
                    )
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
            // Keys are formatted without separators, because a number that is a key is usually an
            // ID and not an amount.
            let keys: Vec<_> =
                map.shown.iter().take(top).map(|entry| entry.key.to_string()).collect();
            let width = keys.iter().map(|key| key.chars().count()).max().unwrap_or(0);
            for (key, entry) in keys.iter().zip(&map.shown) {
                let _ = writeln!(out, "  {:<width$}  {}", printable(key), text(&entry.value));
            }
            out += &and_more(map.entries, top, "entry");
        }
        for line in self.faults.lines() {
            out += &format!("{line}\n");
        }
        out
    }
}

/// The text of a value in a line.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let escaped = text.replace('\\', r"\\").replace('"', r#"\""#);
            format!("\"{}\"", printable(&escaped))
        }
        Value::Number(number) => match number.as_u64() {
            Some(number) => count(number),
            None => number.to_string(),
        },
        other => printable(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotation_marks_within_texts_are_escaped() {
        for (value, shown) in [("a\"b", r#""a\"b""#), (r"a\n", r#""a\\n""#), ("a\n", r#""a\n""#)] {
            assert_eq!(text(&value.into()), shown);
        }
    }
}
