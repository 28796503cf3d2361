//! Two extensions in one gate cost less than the sum of each alone, because they share the
//! programs, the thread's state and the clock.

use crate::{lab, toll};

/// Other work on a shared machine occasionally spoils an attempt; a gate that shares nothing fails
/// all of them.
const ATTEMPTS: usize = 3;

#[test]
fn lens_and_guard_together_cost_less_than_their_sum() {
    let is_less = |_| {
        let document = lab("--bench getppid --arm lens --arm guard --arm lens+guard --budget 8s");
        let [lens, guard, both] = ["lens", "guard", "lens+guard"].map(|arm| toll(&document, arm));
        eprintln!("lens {lens:.0} ns, guard {guard:.0} ns, both {both:.0} ns");
        both < lens + guard
    };
    assert!((0..ATTEMPTS).any(is_less), "not in one of {ATTEMPTS} attempts");
}
