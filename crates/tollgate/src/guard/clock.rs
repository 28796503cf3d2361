//! The time of day, as baselines have it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time of day; 0 for a clock before 1970, which is set wrongly and not worth a failure.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
