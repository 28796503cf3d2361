//! The time of day, as baselines have it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time in Unix seconds; 0 if the clock is set to a time before 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
