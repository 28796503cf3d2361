//! `tollgate doctor`: tries what this kernel offers, and shows which extensions need it and what
//! replaces it.

mod bpf_lsm;
mod capabilities;
mod cgroups;
mod files;
mod finding;
mod report;
mod security;
mod text;

use anyhow::Result;
use kernel::probe;

use capabilities::GROUPS;
use finding::{Capability, Finding, KernelFacts};
use report::{DoctorReport, ExaminedCapability, SCHEMA};

use crate::output::without_numbers;

/// The report as JSON, or as text for a terminal of this width, if it goes to one; and whether
/// `tollgate run` can work on this machine.
pub fn report(json: bool, columns: Option<usize>) -> Result<(String, bool)> {
    let report = probe::quietly(examine);
    let can_run = report.can_run;
    let report = match json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => text::text(&report, columns),
    };
    Ok((report, can_run))
}

fn examine() -> DoctorReport {
    let machine = KernelFacts::read_all();
    let mut capabilities = Vec::new();
    for (group, members) in GROUPS {
        for capability in *members {
            capabilities.push(examined(group, capability, (capability.test)(&machine)));
        }
    }
    let (kernel, architecture) = probe::release();
    DoctorReport {
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
        detail: without_numbers(&finding.detail),
        required: capability.required,
    }
}

fn can_run(capabilities: &[ExaminedCapability]) -> bool {
    capabilities.iter().all(|capability| !capability.required || capability.have == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_have_no_error_numbers() {
        let (_, [capability, ..]) = GROUPS[0] else { panic!("a capability") };
        let finding = Finding::no("/run/lock: No space left on device (os error 28)");
        let detail = examined("the gate", capability, finding).detail;
        assert_eq!(detail, "/run/lock: No space left on device");
    }
}
