//! The report of a session: `--json` prints it as a document, the text is rendered from it, and
//! `lens diff` reads the document.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::section::{Section, field, fields};

/// The name and version of the document's schema.
pub const SCHEMA: &str = "tollgate.lens/1";

/// Times are nanoseconds.
pub struct Report {
    pub header: Header,
    pub sections: Vec<Box<dyn Section>>,
    pub toll: Toll,
    pub losses: BTreeMap<String, u64>,
    pub notes: Vec<String>,
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
    /// The median of paired differences of getppid, and its interval; none: it was not measured.
    pub ns_per_call: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub confidence: Option<f64>,
    /// "detached": in relation to no gate. "bystander": another session kept the gate attached, so
    /// the toll is in relation to what the gate costs every thread anyway.
    pub against: String,
}

impl Report {
    /// The document; its fields are in this order.
    pub fn document(&self) -> serde_json::Result<Value> {
        let mut document = field("schema", SCHEMA)?;
        document.extend(fields(&self.header)?);
        for section in &self.sections {
            document.extend(section.fields()?);
        }
        document.extend(field("toll", &self.toll)?);
        document.extend(field("losses", &self.losses)?);
        if !self.notes.is_empty() {
            document.extend(field("notes", &self.notes)?);
        }
        Ok(Value::Object(document))
    }

    /// A report with the facts of a document and these sections.
    #[cfg(test)]
    pub fn with_sections(document: &str, sections: Vec<Box<dyn Section>>) -> Self {
        let value: Value = serde_json::from_str(document).expect("JSON");
        let part = |name: &str| value.get(name).cloned().unwrap_or_default();
        Self {
            header: serde_json::from_str(document).expect("a header"),
            sections,
            toll: serde_json::from_value(part("toll")).expect("a toll"),
            losses: serde_json::from_value(part("losses")).expect("losses"),
            notes: serde_json::from_value::<Option<_>>(part("notes"))
                .expect("notes")
                .unwrap_or_default(),
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
        };
        let document = report.document().expect("it has names only");
        let names: Vec<_> = document.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(
            names.join(" "),
            "schema command exit elapsed_ns user_ns system_ns first second third toll losses"
        );
        assert_eq!(report.calls_seen(), 5);
    }
}
