//! The report of `tollgate doctor` as JSON.

use serde::Serialize;

/// The name and version of the schema.
pub const SCHEMA: &str = "tollgate.doctor/1";

#[derive(Serialize)]
pub struct DoctorReport {
    pub schema: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// The architecture.
    pub machine: String,
    pub capabilities: Vec<ExaminedCapability>,
    /// Whether `tollgate run` can work here.
    pub can_run: bool,
}

/// A capability and the result of its test.
#[derive(Serialize)]
pub struct ExaminedCapability {
    #[serde(skip)]
    pub group: &'static str,
    pub name: &'static str,
    /// Whether the kernel has the capability, or `None` if that could not be tried.
    pub have: Option<bool>,
    /// Extensions, or "all".
    pub needed_by: &'static [&'static str],
    /// What is used if the capability is missing; `None` if nothing replaces it.
    pub instead: Option<String>,
    /// How to get the capability if it is missing, or how to test it if it could not be tried.
    pub how: Option<String>,
    pub detail: String,
    #[serde(skip)]
    pub required: bool,
}
