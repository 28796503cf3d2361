//! The document of `tollgate doctor`.

use serde::Serialize;

/// The name and version of the document's schema.
pub const SCHEMA: &str = "tollgate.doctor/1";

#[derive(Serialize)]
pub struct DoctorDocument {
    pub schema: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// The architecture.
    pub machine: String,
    pub capabilities: Vec<ExaminedCapability>,
    /// Can `tollgate run` work here?
    pub can_run: bool,
}

/// A capability and the result of its test.
#[derive(Serialize)]
pub struct ExaminedCapability {
    #[serde(skip)]
    pub group: &'static str,
    pub name: &'static str,
    /// None: could not be tried.
    pub have: Option<bool>,
    /// Extensions, or "all".
    pub needed_by: &'static [&'static str],
    /// What is used if it is missing; none: nothing.
    pub instead: Option<String>,
    /// How to get it if it is missing, or tested.
    pub how: Option<String>,
    pub detail: String,
    #[serde(skip)]
    pub required: bool,
}
