//! The systemd unit or the container of a process, found by its cgroup.

use identity::cgroup::Cgroups;
use kernel::process::read_text;

/// Where a process runs, for the events of its program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnitAndContainer {
    pub unit: Option<String>,
    pub container: Option<String>,
}

impl UnitAndContainer {
    /// The placement of a process that still runs.
    pub fn of(pid: u32) -> Self {
        let text = read_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let (unit, container) = Cgroups::parse(&text).unit_and_container();
        Self { unit: unit.map(str::to_owned), container: container.map(str::to_owned) }
    }
}
