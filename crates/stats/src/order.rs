//! The order of blocks: quads from Williams Latin squares.
//!
//! A *quad* has each arm twice: a row of the square, then the same row backwards. Thus a drift of
//! the machine that is linear over the quad affects all arms alike. For two arms this is ABBA or
//! BAAB. Over the rows of a square, each arm is once in each position and follows each other arm
//! equally often. Thus what an arm leaves behind (carry-over) affects all others alike, and it can
//! be distinguished from their cost.
//!
//! Source: Williams, "Experimental Designs Balanced for the Estimation of Residual Effects of
//! Treatments", Australian Journal of Scientific Research A 2 (1949).

/// Generates quads; each square is shuffled anew.
pub struct Quads {
    arms: usize,
    random: Random,
    /// The remaining rows of the current square, without their mirrors.
    rows: Vec<Vec<usize>>,
}

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled",
/// TOMS 42 (2016).
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        // Mix the seed, so that similar seeds give different sequences: SplitMix64 (Steele, Lea and
        // Flood, "Fast splittable pseudorandom number generators", 2014).
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The generator would never leave state 0.
        Self((mixed ^ (mixed >> 31)).max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        // 53 bits: the precision of an f64.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts the values into a random order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            let other = self.below(last + 1);
            values.swap(last, other);
        }
    }
}

impl Quads {
    /// # Panics
    /// If there are fewer than two arms.
    pub fn new(arms: usize, seed: u64) -> Self {
        assert!(arms >= 2, "{arms} arms cannot be compared");
        Self { arms, random: Random::new(seed), rows: Vec::new() }
    }

    /// The arms of the next quad's blocks, in order.
    pub fn next_quad(&mut self) -> Vec<usize> {
        if self.rows.is_empty() {
            self.rows = self.square();
        }
        let mut quad = self.rows.pop().expect("just filled");
        let mirror: Vec<_> = quad.iter().rev().copied().collect();
        quad.extend(mirror);
        quad
    }

    /// Half of the rows of a Williams square; the other half are their mirrors.
    fn square(&mut self) -> Vec<Vec<usize>> {
        let mut labels: Vec<_> = (0..self.arms).collect();
        self.random.shuffle(&mut labels);
        let first = zigzag(self.arms);
        // With an even number of arms, row r + arms / 2 is row r backwards. With an odd number, two
        // squares are needed, and the second is the first backwards.
        let rows = if self.arms.is_multiple_of(2) { self.arms / 2 } else { self.arms };
        let mut rows: Vec<Vec<_>> = (0..rows)
            .map(|shift| first.iter().map(|step| labels[(step + shift) % self.arms]).collect())
            .collect();
        for row in &mut rows {
            if self.random.below(2) == 1 {
                row.reverse();
            }
        }
        self.random.shuffle(&mut rows);
        rows
    }
}

/// 0, 1, n-1, 2, n-2 …: the differences of neighbours are all different.
fn zigzag(n: usize) -> Vec<usize> {
    (0..n).map(|i| if i % 2 == 1 { i.div_ceil(2) } else { (n - i / 2) % n }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quads(arms: usize, count: usize) -> Vec<Vec<usize>> {
        let mut quads = Quads::new(arms, 7);
        (0..count).map(|_| quads.next_quad()).collect()
    }

    #[test]
    fn two_arms_go_abba_or_baab() {
        let all = quads(2, 100);
        assert!(all.contains(&vec![0, 1, 1, 0]) && all.contains(&vec![1, 0, 0, 1]));
        assert!(all.iter().all(|quad| quad == &[0, 1, 1, 0] || quad == &[1, 0, 0, 1]));
    }

    #[test]
    fn linear_drift_meets_all_arms_alike() {
        for arms in 2..9 {
            for quad in quads(arms, 30) {
                for arm in 0..arms {
                    let positions = quad
                        .iter()
                        .enumerate()
                        .filter(|(_, of)| **of == arm)
                        .map(|(position, _)| position);
                    assert_eq!(positions.sum::<usize>(), 2 * arms - 1, "{quad:?}");
                }
            }
        }
    }

    #[test]
    fn each_arm_follows_each_other_equally_often_in_a_square() {
        for arms in 2..9 {
            let mut rows = if arms % 2 == 0 { arms / 2 } else { arms };
            let mut counts = vec![vec![0; arms]; arms];
            for quad in quads(arms, rows) {
                for row in quad.chunks(arms) {
                    for pair in row.windows(2) {
                        counts[pair[0]][pair[1]] += 1;
                    }
                }
            }
            rows = counts[0][1];
            for (before, counts) in counts.iter().enumerate() {
                for (after, count) in counts.iter().enumerate() {
                    assert_eq!(*count, if before == after { 0 } else { rows }, "{arms} arms");
                }
            }
        }
    }

    #[test]
    fn each_arm_takes_each_position_equally_often() {
        for arms in [3, 4, 7, 8] {
            let rows = if arms % 2 == 0 { arms / 2 } else { arms };
            let mut counts = vec![vec![0; arms]; arms];
            for quad in quads(arms, rows) {
                for row in quad.chunks(arms) {
                    for (position, arm) in row.iter().enumerate() {
                        counts[position][*arm] += 1;
                    }
                }
            }
            let all: Vec<_> = counts.concat();
            assert!(all.iter().all(|count| *count == all[0]), "{arms}: {counts:?}");
        }
    }

    #[test]
    fn order_depends_on_the_seed_only() {
        assert_eq!(quads(5, 40), quads(5, 40));
    }
}
