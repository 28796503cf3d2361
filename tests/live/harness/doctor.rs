//! What `tollgate doctor` finds.

use std::process::{Command, Output};

use serde_json::Value;

use super::tollgate;

pub fn doctor(arguments: &[&str]) -> Output {
    Command::new(tollgate()).arg("doctor").args(arguments).output().expect("tollgate starts")
}

/// Whether a report in JSON has a capability of this machine.
pub fn has(report: &Value, name: &str) -> bool {
    let capabilities = report["capabilities"].as_array().expect("capabilities");
    let found = capabilities.iter().find(|capability| capability["name"] == name);
    found.unwrap_or_else(|| panic!("no capability {name}"))["have"] == true
}
