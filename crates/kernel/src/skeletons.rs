//! The skeletons of the BPF objects: libbpf-cargo generates them from the sources in `bpf/`.

macro_rules! skeleton {
    ($module:ident, $file:literal) => {
        // Generated code has its own style, and no comments.
        #[allow(clippy::all, clippy::undocumented_unsafe_blocks, dead_code, missing_docs, unused)]
        pub mod $module {
            include!(concat!(env!("OUT_DIR"), $file));
        }
    };
}

skeleton!(gate, "/gate.skel.rs");
skeleton!(floor, "/floor.skel.rs");
skeleton!(probe, "/probe.skel.rs");
skeleton!(service_limits, "/service_limits.skel.rs");
skeleton!(plugin_entry, "/plugin_entry.skel.rs");
