//! Two builds of Tollgate on one machine. This is not a live test, because all other tests would be
//! refused meanwhile.

use std::mem::size_of;

use kernel::wire;
use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use crate::harness::table_locks::Rows;
use crate::harness::{Job, tollgate, workload};

/// Creates the header of a gate that another build has loaded.
fn gate_of_another_build() -> MapHandle {
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

#[test]
fn other_build_is_refused() {
    let _alone = Rows::exclusive();
    let run = || {
        let words = [tollgate().into(), "run".into(), "--".into()].into_iter();
        Job::of(words.chain(workload("exit 0")).collect()).finish()
    };
    let other = gate_of_another_build();
    run().exits_with(125).says("another version of Tollgate has loaded the gate");
    drop(other);
    run().success();
}
