//! Security modules and lockdown, which may deny what the kernel has.

use std::fs;

use kernel::probe;

const LSM: &str = "/sys/kernel/security/lsm";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

pub struct Security {
    /// The active modules in the form of the boot parameter lsm=, or `None` if they are unknown.
    pub modules: Option<String>,
    /// "none", "integrity" or "confidentiality"; `None` if the mode is unknown.
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
            .and_then(|modes| bracketed(&modes).map(str::to_owned))
            .or_else(|| parameter(&command_line, "lockdown").map(str::to_owned));
        Self { modules, lockdown }
    }

    /// What may have denied root a feature of the kernel, as far as is known.
    pub fn policy(&self) -> String {
        format!("lockdown or a policy of this host refuses it ({})", self.attached())
    }

    /// The active modules and the mode of lockdown, in words.
    pub fn attached(&self) -> String {
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

    /// Whether a module is known to be active.
    pub fn is_active(&self, module: &str) -> bool {
        self.modules.as_deref().is_some_and(|list| list.split(',').any(|name| name == module))
    }

    /// How to add BPF to the active security modules.
    pub fn boot_with_bpf(&self) -> String {
        match &self.modules {
            Some(list) => format!("boot with lsm={} on the kernel's command line", with_bpf(list)),
            None => format!(
                "boot with lsm=LIST,bpf on the kernel's command line, where LIST is what {LSM} \
                 says once securityfs is mounted (mount -t securityfs none /sys/kernel/security)"
            ),
        }
    }
}

/// The value of a boot parameter; the last one counts.
fn parameter<'a>(command_line: &'a str, name: &str) -> Option<&'a str> {
    let value = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
    command_line.split_ascii_whitespace().filter_map(value).next_back()
}

/// The mode in brackets: "integrity" in "none [integrity] confidentiality".
fn bracketed(modes: &str) -> Option<&str> {
    modes.split_once('[')?.1.split_once(']').map(|(mode, _)| mode)
}

fn with_bpf(list: &str) -> String {
    let mut names: Vec<_> = list.split(',').filter(|name| !name.is_empty()).collect();
    if !names.contains(&"bpf") {
        names.push("bpf");
    }
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security(modules: Option<&str>) -> Security {
        Security { modules: modules.map(Into::into), lockdown: Some("integrity".into()) }
    }

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
        assert_eq!(bracketed("none [integrity] confidentiality\n"), Some("integrity"));
        assert_eq!(bracketed("none\n"), None);
    }

    #[test]
    fn unknown_lockdown_differs_from_none() {
        let known = |modules| Security { lockdown: None, ..security(modules) }.attached();
        assert!(known(Some("yama")).ends_with("lockdown: not active"));
        assert!(known(Some("lockdown,yama")).contains("unknown"));
        assert!(known(None).contains("unknown"));
    }
}
