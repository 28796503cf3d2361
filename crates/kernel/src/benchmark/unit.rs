//! The units of work that a benchmark consists of.

/// A function that does the given number of units.
pub type BenchmarkFn = Box<dyn FnMut(u32)>;

/// Computes for some steps. Each needs the result of the one before, so that they cannot overlap.
pub fn spin(steps: u64) {
    let mut value = steps;
    for _ in 0..steps {
        // Multiplier and increment: Knuth, TAOCP 2, section 3.3.4 (MMIX).
        value = std::hint::black_box(
            value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
        );
    }
}
