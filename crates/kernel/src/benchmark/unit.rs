//! What a benchmark consists of: units of work.

/// Does the given number of units.
pub type BenchmarkFn = Box<dyn FnMut(u32)>;

/// Runs a chain of steps, each of which needs the result of the one before.
pub fn spin(steps: u64) {
    let mut value = steps;
    for _ in 0..steps {
        // Multiplier and increment: Knuth, TAOCP 2, section 3.3.4 (MMIX).
        value = std::hint::black_box(
            value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
        );
    }
}
