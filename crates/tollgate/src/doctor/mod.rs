//! `tollgate doctor`: tries what this kernel offers, and shows which extensions need it and what
//! replaces it.

mod capabilities;
mod cgroups;
mod files;
mod finding;
mod security;
mod text;

use anyhow::Result;
use kernel::probe;
use serde::Serialize;

use capabilities::GROUPS;
use finding::{Capability, Finding, KernelFacts};

/// The name and version of the document's schema.
const SCHEMA: &str = "tollgate.doctor/1";

#[derive(Serialize)]
struct DoctorDocument {
    schema: &'static str,
    /// The kernel's release.
    kernel: String,
    /// The architecture.
    machine: String,
    capabilities: Vec<ExaminedCapability>,
    /// Can `tollgate run` work here?
    can_run: bool,
}

/// A capability and the result of its test.
#[derive(Serialize)]
struct ExaminedCapability {
    #[serde(skip)]
    group: &'static str,
    name: &'static str,
    /// None: could not be tried.
    have: Option<bool>,
    /// Extensions, or "all".
    needed_by: &'static [&'static str],
    /// What is used if it is missing; none: nothing.
    instead: Option<String>,
    /// How to get it if it is missing, or tested.
    how: Option<String>,
    detail: String,
    #[serde(skip)]
    required: bool,
}

/// The text or JSON, and whether `tollgate run` can work on this machine.
pub fn report(json: bool) -> Result<(String, bool)> {
    let document = probe::quietly(examine);
    let can_run = document.can_run;
    let report =
        if json { serde_json::to_string_pretty(&document)? + "\n" } else { text::text(&document) };
    Ok((report, can_run))
}

fn examine() -> DoctorDocument {
    let machine = KernelFacts::read_all();
    let mut capabilities = Vec::new();
    for (group, members) in GROUPS {
        for capability in *members {
            capabilities.push(examined(group, capability, (capability.test)(&machine)));
        }
    }
    let (kernel, architecture) = probe::release();
    DoctorDocument {
        schema: SCHEMA,
        kernel,
        machine: architecture,
        can_run: can_run(&capabilities),
        capabilities,
    }
}

fn examined(group: &'static str, capability: &Capability, finding: Finding) -> ExaminedCapability {
    let missing = finding.have == Some(false);
    let instead = finding.fallback.unwrap_or_else(|| capability.fallback.into());
    let how = finding.remedy.unwrap_or_else(|| capability.remedy.into());
    ExaminedCapability {
        group,
        name: capability.name,
        have: finding.have,
        needed_by: capability.needed_by,
        instead: (missing && !instead.is_empty()).then_some(instead),
        how: (finding.have != Some(true)).then_some(how),
        detail: finding.detail,
        required: capability.required,
    }
}

fn can_run(capabilities: &[ExaminedCapability]) -> bool {
    capabilities.iter().all(|capability| !capability.required || capability.have == Some(true))
}
