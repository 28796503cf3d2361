//! Two builds of Tollgate on one machine. This is not a live test, because all other tests would be
//! refused meanwhile.

use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use kernel::wire;
use libbpf_rs::libbpf_sys::{
    self, BPF_DW, BPF_F_MMAPABLE, BPF_IMM, BPF_LD, BPF_PROG_TYPE_RAW_TRACEPOINT, BPF_PSEUDO_MAP_FD,
    bpf_insn, bpf_map_create_opts,
};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use crate::harness::table_locks::Rows;
use crate::harness::{Job, tollgate, workload};

/// Creates the header of a gate that another build has loaded.
fn header_of_another_build() -> MapHandle {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags: BPF_F_MMAPABLE,
        ..Default::default()
    };
    let bytes = size_of::<wire::gate_header>();
    let map =
        MapHandle::create(MapType::Array, Some(".bss.tollgate"), 4, bytes as u32, 1, &options);
    let map = map.expect("root may make a map");
    // The header begins with these two fields (bpf/wire/gate.h).
    let mut header = vec![0; bytes];
    header[..8].copy_from_slice(&wire::GATE_MAGIC.to_ne_bytes());
    header[8..12].copy_from_slice(&(wire::BUILD + 1).to_ne_bytes());
    map.update(&0u32.to_ne_bytes(), &header, MapFlags::ANY).expect("it can be written");
    map
}

/// Attaches a program that only refers to a map, until the result is dropped.
fn attach_program_with(map: &MapHandle) -> OwnedFd {
    let insn = |code, registers: u8, imm| {
        let mut insn = bpf_insn { code, imm, ..Default::default() };
        insn.set_dst_reg(registers & 15);
        insn.set_src_reg(registers >> 4);
        insn
    };
    let source = (BPF_PSEUDO_MAP_FD << 4) as u8;
    let program = [
        insn((BPF_LD | BPF_DW | BPF_IMM) as u8, source | 1, map.as_fd().as_raw_fd()),
        insn(0, 0, 0),
        // r0 = 0; exit
        insn(0xb7, 0, 0),
        insn(0x95, 0, 0),
    ];
    // SAFETY: the program has as many instructions as stated, and the texts end with a NUL.
    let program = unsafe {
        libbpf_sys::bpf_prog_load(
            BPF_PROG_TYPE_RAW_TRACEPOINT,
            c"another".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            ptr::null_mut(),
        )
    };
    assert!(program >= 0, "the kernel has refused the program: {program}");
    // SAFETY: a new descriptor that only this test owns.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    // SAFETY: the name of a tracepoint, and a program of its kind.
    let link = unsafe {
        libbpf_sys::bpf_raw_tracepoint_open(c"sched_process_exit".as_ptr(), program.as_raw_fd())
    };
    assert!(link >= 0, "the program cannot be attached: {link}");
    // SAFETY: a new descriptor that only this test owns.
    unsafe { OwnedFd::from_raw_fd(link) }
}

#[test]
fn other_build_is_refused_while_attached() {
    let _alone = Rows::exclusive();
    let run = || {
        let words = [tollgate().into(), "run".into(), "--".into()].into_iter();
        Job::of(words.chain(workload("exit 0")).collect()).finish()
    };
    let header = header_of_another_build();
    let link = attach_program_with(&header);
    run().exits_with(125).says("another version of Tollgate has loaded the gate");
    drop(link);
    // The kernel frees the maps of a process that has ended later than its links.
    run().success();
}
