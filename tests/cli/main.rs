//! The exact texts that Tollgate prints: help, refusals and comparisons. No root needed. After an
//! intended change, `TRYCMD=overwrite cargo test -p tollgate --test cli` writes the new texts.

mod guard_store;
mod outputs;

/// Drops the right to load BPF programs, so that root gets the same texts as other users.
fn without_bpf() {
    // include/uapi/linux/capability.h
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    const CAP_BPF: libc::c_ulong = 39;
    for capability in [CAP_SYS_ADMIN, CAP_BPF] {
        // SAFETY: no pointers. Without root it fails, and there is none to drop.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

#[test]
fn goldens() {
    without_bpf();
    trycmd::TestCases::new().case("../../tests/cli/*.trycmd").run();
}
