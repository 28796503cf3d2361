//! Two extensions in one gate cost less than the sum of each alone: they share the programs, the thread's
//! state and the clock.

use crate::{lab, toll};

#[test]
fn two_extensions_cost_less_than_the_sum_of_each() {
    let document =
        lab("--bench getppid --arm lens-no-sites --arm tally --arm lens-no-sites+tally --budget 15s");
    let [lens, tally, both] =
        ["lens-no-sites", "tally", "lens-no-sites+tally"].map(|arm| toll(&document, arm));
    eprintln!("lens {lens:.0} ns, tally {tally:.0} ns, both {both:.0} ns");
    assert!(both < lens + tally, "both {both:.0} ns, lens {lens:.0} ns + tally {tally:.0} ns");
    // Tally alone pays for the programs and the look-up; beside lens it pays for neither.
    assert!(both - lens < tally / 2.0, "beside lens, tally costs {:.0} of its {tally:.0} ns", both - lens);
}
