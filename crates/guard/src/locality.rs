//! The locality frame: which of a thread's latest 128 calls were anomalous. The length is pH's.

/// The locality frame of a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locality {
    /// One bit for each call.
    frame: u128,
    max: u32,
}

impl Locality {
    /// Adds the next call, anomalous or not.
    pub fn push(&mut self, anomalous: bool) {
        self.frame = (self.frame << 1) | u128::from(anomalous);
        self.max = self.max.max(self.count());
    }

    /// The locality frame count (LFC): the number of anomalies in the frame.
    pub fn count(&self) -> u32 {
        self.frame.count_ones()
    }

    /// The highest LFC so far.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Empties the frame and resets the highest count.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anomalies_leave_the_frame_after_128_calls() {
        let mut locality = Locality::default();
        locality.push(true);
        for _ in 1..u128::BITS {
            locality.push(false);
            assert_eq!(locality.count(), 1);
        }
        locality.push(false);
        assert_eq!((locality.count(), locality.max()), (0, 1));
    }

    #[test]
    fn a_frame_holds_128_at_the_most() {
        let mut locality = Locality::default();
        (0..1000).for_each(|_| locality.push(true));
        assert_eq!(locality.count(), u128::BITS);
        locality.reset();
        assert_eq!((locality.count(), locality.max()), (0, 0));
    }
}
