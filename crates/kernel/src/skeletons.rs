//! The BPF objects, generated from `bpf/*.bpf.c`.

macro_rules! skeleton {
    ($module:ident, $file:literal) => {
        #[allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, unused)]
        pub mod $module {
            include!(concat!(env!("OUT_DIR"), $file));
        }
    };
}

skeleton!(gate, "/gate.skel.rs");
skeleton!(floor, "/floor.skel.rs");
skeleton!(probe, "/probe.skel.rs");
skeleton!(service_limits, "/service_limits.skel.rs");
