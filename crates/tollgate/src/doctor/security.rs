//! Security modules and lockdown: why the kernel refuses what it has.

use std::fs;

use kernel::probe::{self, Refusal};

use super::finding::{Finding, Machine};

const LSM: &str = "/sys/kernel/security/lsm";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

pub struct Security {
    /// The active modules, in the form of the boot parameter lsm=; none: unknown.
    pub modules: Option<String>,
    /// "none", "integrity" or "confidentiality"; none: unknown.
    pub lockdown: Option<String>,
}

impl Security {
    pub fn read() -> Self {
        let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        let modules = fs::read_to_string(LSM)
            .ok()
            .map(|list| list.trim().to_owned())
            .or_else(|| probe::security_modules().map(|names| names.join(",")))
            .or_else(|| parameter(&command_line, "lsm").map(str::to_owned));
        let lockdown = fs::read_to_string(LOCKDOWN)
            .ok()
            .and_then(|modes| chosen(&modes).map(str::to_owned))
            .or_else(|| parameter(&command_line, "lockdown").map(str::to_owned));
        Self { modules, lockdown }
    }

    /// Who may have refused root something that the kernel has, as far as is known.
    pub fn policy(&self) -> String {
        format!("lockdown or a policy of this host refuses it ({})", self.known())
    }

    fn known(&self) -> String {
        let modules = self.modules.as_deref().unwrap_or("unknown");
        format!("security modules: {modules}; lockdown: {}", self.lockdown_mode())
    }

    fn lockdown_mode(&self) -> &str {
        match &self.lockdown {
            Some(mode) => mode,
            None if self.modules.is_some() && !self.is_active("lockdown") => "not active",
            None => "mode unknown, securityfs is not mounted",
        }
    }

    fn is_active(&self, module: &str) -> bool {
        self.modules.as_deref().is_some_and(|list| list.split(',').any(|name| name == module))
    }

    /// How BPF gets among the active security modules.
    fn boot_with_bpf(&self) -> String {
        match &self.modules {
            Some(list) => format!("boot with lsm={} on the kernel's command line", with_bpf(list)),
            None => format!(
                "boot with lsm=LIST,bpf on the kernel's command line, where LIST is what {LSM} says \
                 once securityfs is mounted (mount -t securityfs none /sys/kernel/security)"
            ),
        }
    }
}

/// The value of a boot parameter; the last one counts.
fn parameter<'a>(command_line: &'a str, name: &str) -> Option<&'a str> {
    let value = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
    command_line.split_ascii_whitespace().filter_map(value).next_back()
}

/// "integrity" of "none [integrity] confidentiality".
fn chosen(modes: &str) -> Option<&str> {
    modes.split_once('[')?.1.split_once(']').map(|(mode, _)| mode)
}

fn with_bpf(list: &str) -> String {
    let mut names: Vec<_> = list.split(',').filter(|name| !name.is_empty()).collect();
    if !names.contains(&"bpf") {
        names.push("bpf");
    }
    names.join(",")
}

/// BPF LSM: compiled in, active, and allowed are three things.
pub fn bpf_lsm(machine: &Machine) -> Finding {
    if machine.types.is_err() {
        return super::finding::without_types();
    }
    match probe::lsm_runs() {
        Ok(true) => Finding::yes("active"),
        Ok(false) => Finding::no("built in, not active").how(machine.security.boot_with_bpf()),
        Err(refusal) => lsm_refused(machine, &refusal),
    }
}

fn lsm_refused(machine: &Machine, refusal: &Refusal) -> Finding {
    let security = &machine.security;
    let finding = machine.refused(refusal);
    if finding.have.is_none() {
        return finding;
    }
    if !refusal.is_permission() {
        return finding.how(format!("a kernel with CONFIG_BPF_LSM=y, then {}", security.boot_with_bpf()));
    }
    if security.is_active("bpf") {
        return finding.how(format!(
            "not by lsm=, as bpf is active already: lockdown or a policy of this host refuses it ({})",
            security.known()
        ));
    }
    finding.how(format!(
        "{}; if it is refused even then, lockdown or a policy of this host does it ({})",
        security.boot_with_bpf(),
        security.known()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security(modules: Option<&str>) -> Security {
        Security { modules: modules.map(Into::into), lockdown: Some("integrity".into()) }
    }

    fn machine(modules: Option<&str>) -> Machine {
        let types = Err(Refusal { what: String::new(), errno: 2 });
        Machine { may_use_bpf: Ok(()), types, security: security(modules) }
    }

    fn refusal(errno: i32) -> Refusal {
        Refusal { what: "lsm".into(), errno }
    }

    const EPERM: i32 = 1;
    const ESRCH: i32 = 3;

    #[test]
    fn bpf_is_added_to_the_machines_own_list() {
        assert_eq!(with_bpf("lockdown,capability,yama"), "lockdown,capability,yama,bpf");
        assert_eq!(with_bpf("capability,bpf,yama"), "capability,bpf,yama");
        assert_eq!(with_bpf(""), "bpf");
        let how = security(Some("capability,apparmor")).boot_with_bpf();
        assert!(how.contains("lsm=capability,apparmor,bpf "), "{how}");
    }

    #[test]
    fn an_unknown_list_is_not_made_up() {
        let how = security(None).boot_with_bpf();
        assert!(how.contains("lsm=LIST,bpf") && how.contains(LSM), "{how}");
    }

    #[test]
    fn the_last_boot_parameter_counts() {
        let line = "quiet lsm=yama xlsm=no lsm=yama,apparmor nolsm\n";
        assert_eq!(parameter(line, "lsm"), Some("yama,apparmor"));
        assert_eq!(parameter(line, "lockdown"), None);
    }

    #[test]
    fn the_lockdown_mode_is_the_bracketed_one() {
        assert_eq!(chosen("none [integrity] confidentiality\n"), Some("integrity"));
        assert_eq!(chosen("none\n"), None);
    }

    #[test]
    fn an_unknown_lockdown_mode_is_told_from_no_lockdown() {
        let known = |modules| Security { lockdown: None, ..security(modules) }.known();
        assert!(known(Some("yama")).ends_with("lockdown: not active"));
        assert!(known(Some("lockdown,yama")).contains("unknown"));
        assert!(known(None).contains("unknown"));
    }

    #[test]
    fn a_refusal_although_bpf_is_active_is_told_apart() {
        let how = lsm_refused(&machine(Some("capability,bpf")), &refusal(EPERM)).how.unwrap();
        assert!(how.contains("not by lsm=") && how.contains("lockdown: integrity"), "{how}");
        let how = lsm_refused(&machine(Some("capability")), &refusal(EPERM)).how.unwrap();
        assert!(how.contains("lsm=capability,bpf") && how.contains("lockdown: integrity"), "{how}");
    }

    #[test]
    fn a_kernel_without_it_needs_another_kernel() {
        let how = lsm_refused(&machine(Some("capability")), &refusal(ESRCH)).how.unwrap();
        assert!(how.contains("CONFIG_BPF_LSM=y") && how.contains("lsm=capability,bpf"), "{how}");
    }

    #[test]
    fn without_root_nothing_is_known() {
        let mut machine = machine(Some("capability"));
        machine.may_use_bpf = Err(refusal(EPERM));
        assert_eq!(lsm_refused(&machine, &refusal(EPERM)).have, None);
    }
}
