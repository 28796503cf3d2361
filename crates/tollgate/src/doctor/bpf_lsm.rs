//! BPF LSM as a capability, which a security module or lockdown may deny.

use kernel::probe::{self, ProbeError};

use super::finding::{Finding, KernelFacts, without_types};

/// BPF LSM, which must be compiled in, active and permitted.
pub fn bpf_lsm(machine: &KernelFacts) -> Finding {
    if machine.types.is_err() {
        return without_types();
    }
    match probe::lsm_runs() {
        Ok(true) => Finding::yes("active"),
        Ok(false) => Finding::no("built in, not active").remedy(machine.security.boot_with_bpf()),
        Err(refusal) => lsm_refused(machine, &refusal),
    }
}

fn lsm_refused(machine: &KernelFacts, refusal: &ProbeError) -> Finding {
    let security = &machine.security;
    let finding = machine.refusal_finding(refusal);
    if finding.have.is_none() {
        return finding;
    }
    if !refusal.is_permission() {
        return finding
            .remedy(format!("a kernel with CONFIG_BPF_LSM=y, then {}", security.boot_with_bpf()));
    }
    if security.is_active("bpf") {
        return finding.remedy(format!(
            "lsm= does not help, because bpf is active already: lockdown or a policy of this host \
            refuses it ({})",
            security.attached()
        ));
    }
    finding.remedy(format!(
        "{}; if it is still refused, lockdown or a policy of this host refuses it ({})",
        security.boot_with_bpf(),
        security.attached()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::security::Security;
    use super::*;

    fn machine(modules: Option<&str>) -> KernelFacts {
        let security =
            Security { modules: modules.map(Into::into), lockdown: Some("integrity".into()) };
        let types = Err(ProbeError { what: String::new(), errno: 2 });
        KernelFacts { may_use_bpf: Ok(()), types, security }
    }

    fn refusal(errno: i32) -> ProbeError {
        ProbeError { what: "lsm".into(), errno }
    }

    const EPERM: i32 = 1;
    const ESRCH: i32 = 3;

    #[test]
    fn refusal_with_active_bpf_lsm() {
        let how = lsm_refused(&machine(Some("capability,bpf")), &refusal(EPERM)).remedy.unwrap();
        assert!(how.contains("lsm= does not help") && how.contains("lockdown: integrity"), "{how}");
        let how = lsm_refused(&machine(Some("capability")), &refusal(EPERM)).remedy.unwrap();
        assert!(how.contains("lsm=capability,bpf") && how.contains("lockdown: integrity"), "{how}");
    }

    #[test]
    fn missing_bpf_lsm_needs_another_kernel() {
        let how = lsm_refused(&machine(Some("capability")), &refusal(ESRCH)).remedy.unwrap();
        assert!(how.contains("CONFIG_BPF_LSM=y") && how.contains("lsm=capability,bpf"), "{how}");
    }

    #[test]
    fn without_root_is_unknown() {
        let mut machine = machine(Some("capability"));
        machine.may_use_bpf = Err(refusal(EPERM));
        assert_eq!(lsm_refused(&machine, &refusal(EPERM)).have, None);
    }
}
