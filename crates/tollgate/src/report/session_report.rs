//! The report of a session. `--json` prints it as one JSON document, which `lens diff` reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::section::{Section, field, fields};

/// The name and version of the JSON's schema.
pub const SCHEMA: &str = "tollgate.lens/1";

/// The report of a session. Times are in nanoseconds.
pub struct Report {
    pub header: Header,
    pub sections: Vec<Box<dyn Section>>,
    pub toll: Toll,
    /// Losses by reason.
    pub losses: BTreeMap<String, u64>,
    /// What a reader has to know about the values, each as one sentence.
    pub notes: Vec<String>,
    /// A file that the user asked for could not be written. A note says which one.
    pub has_unwritten_file: bool,
}

/// What ran, and for how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Header {
    /// The command that ran, or the `lens` command that watched.
    pub command: Vec<String>,
    /// The exit status as a shell reports it (128 + N for signal N); none for `lens`.
    pub exit: Option<i32>,
    pub elapsed_ns: u64,
    /// CPU time of the command and of the children that it waited for, as the kernel accounts it;
    /// none for `lens`.
    pub user_ns: Option<u64>,
    pub system_ns: Option<u64>,
}

/// The toll of the measurement.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Toll {
    /// Calls that at least one extension has seen.
    pub calls: u64,
    /// The median of the paired differences between times of getppid, and its interval; `None` if
    /// the toll was not measured.
    pub ns_per_call: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub confidence: Option<f64>,
    /// What the calls were compared with: "detached" for calls without a gate; "bystander" for
    /// calls of a thread that is not gated, because another session keeps the gate attached.
    pub against: String,
}

impl Report {
    /// The report as JSON. Its fields are in the order in which they are added here.
    pub fn to_json(&self) -> serde_json::Result<Value> {
        let mut json = field("schema", SCHEMA)?;
        json.extend(fields(&self.header)?);
        for section in &self.sections {
            json.extend(section.fields()?);
        }
        json.extend(field("toll", &self.toll)?);
        json.extend(field("losses", &self.losses)?);
        if !self.notes.is_empty() {
            json.extend(field("notes", &self.notes)?);
        }
        Ok(Value::Object(json))
    }

    /// A report with these sections, and the rest from JSON.
    #[cfg(test)]
    pub fn with_sections(json: &str, sections: Vec<Box<dyn Section>>) -> Self {
        let value: Value = serde_json::from_str(json).expect("JSON");
        let part = |name: &str| value.get(name).cloned().unwrap_or_default();
        Self {
            header: serde_json::from_str(json).expect("a header"),
            sections,
            toll: serde_json::from_value(part("toll")).expect("a toll"),
            losses: serde_json::from_value(part("losses")).expect("losses"),
            notes: serde_json::from_value::<Option<_>>(part("notes"))
                .expect("notes")
                .unwrap_or_default(),
            has_unwritten_file: false,
        }
    }

    /// Calls that at least one extension has seen.
    pub fn calls_seen(&self) -> u64 {
        self.sections.iter().filter_map(|section| section.calls_seen()).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::report::TextOptions;

    struct Fixed(&'static str, Option<u64>);

    impl Section for Fixed {
        fn fields(&self) -> serde_json::Result<Map<String, Value>> {
            field(self.0, self.1)
        }

        fn text(&self, out: &mut String, _layout: &TextOptions, _is_only: bool) {
            *out += self.0;
        }

        fn calls_seen(&self) -> Option<u64> {
            self.1
        }
    }

    #[test]
    fn sections_stand_between_header_and_toll() {
        let header = Header {
            command: vec!["true".into()],
            exit: Some(0),
            elapsed_ns: 1,
            user_ns: None,
            system_ns: None,
        };
        let report = Report {
            header,
            sections: vec![
                Box::new(Fixed("first", Some(3))),
                Box::new(Fixed("second", None)),
                Box::new(Fixed("third", Some(5))),
            ],
            toll: Toll::default(),
            losses: BTreeMap::new(),
            notes: Vec::new(),
            has_unwritten_file: false,
        };
        let json = report.to_json().expect("it has names only");
        let names: Vec<_> = json.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(
            names.join(" "),
            "schema command exit elapsed_ns user_ns system_ns first second third toll losses"
        );
        assert_eq!(report.calls_seen(), 5);
    }
}
