//! The speeds of a processor, and which of them are worthwhile.

use thiserror::Error;

/// A speed at which a processor can run, and its power while it does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Cycles a second.
    pub hz: f64,
    /// The power while a task runs, in watts.
    pub watts: f64,
}

impl Level {
    fn mhz(&self) -> f64 {
        self.hz / 1e6
    }
}

/// The reason why a list of levels makes no sense.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LevelsError {
    /// The list is empty.
    #[error("there is no level")]
    Empty,
    /// A speed or a power is not a positive, finite number.
    #[error("a level of {hz} Hz and {watts} W: speed and power must be positive numbers")]
    NotPositive {
        /// Its speed.
        hz: f64,
        /// Its power.
        watts: f64,
    },
    /// The power of an idle processor is negative or not a number.
    #[error("the power of an idle processor is {0} W: it must be 0 or more")]
    Idle(f64),
    /// A level does not need more power than an idle processor.
    #[error(
        "the level of {mhz} MHz needs {watts} W, which is not more than the {idle_watts} W of an \
        idle processor"
    )]
    BelowIdle {
        /// Its speed, in MHz.
        mhz: f64,
        /// Its power.
        watts: f64,
        /// The power of an idle processor.
        idle_watts: f64,
    },
    /// Two levels have the same speed.
    #[error("there are two levels of {mhz} MHz")]
    Twice {
        /// Their speed, in MHz.
        mhz: f64,
    },
}

/// The speeds of a processor, in ascending order.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels {
    all: Vec<Level>,
    idle_watts: f64,
    worthwhile: Vec<Level>,
}

impl Levels {
    /// `idle_watts` is the power while no task runs.
    ///
    /// # Errors
    /// If the levels make no sense, for example because two have the same speed.
    pub fn new(mut all: Vec<Level>, idle_watts: f64) -> Result<Self, LevelsError> {
        if all.is_empty() {
            return Err(LevelsError::Empty);
        }
        if !(idle_watts >= 0.0 && idle_watts.is_finite()) {
            return Err(LevelsError::Idle(idle_watts));
        }
        let is_positive = |value: f64| value > 0.0 && value.is_finite();
        if let Some(level) =
            all.iter().find(|level| !is_positive(level.hz) || !is_positive(level.watts))
        {
            return Err(LevelsError::NotPositive { hz: level.hz, watts: level.watts });
        }
        if let Some(level) = all.iter().find(|level| level.watts <= idle_watts) {
            let (mhz, watts) = (level.mhz(), level.watts);
            return Err(LevelsError::BelowIdle { mhz, watts, idle_watts });
        }
        all.sort_by(|a, b| a.hz.total_cmp(&b.hz));
        if let Some(pair) = all.windows(2).find(|pair| pair[0].hz == pair[1].hz) {
            return Err(LevelsError::Twice { mhz: pair[0].mhz() });
        }
        let mut worthwhile = lower_hull(&all, idle_watts);
        worthwhile.remove(0);
        Ok(Self { all, idle_watts, worthwhile })
    }

    /// All levels, the slowest first.
    pub fn all(&self) -> &[Level] {
        &self.all
    }

    /// The worthwhile levels, the slowest first. Such a level needs less power than every mix of
    /// other levels and idle time that has the same average speed. The fastest level is always
    /// worthwhile, because no mix is as fast.
    pub fn worthwhile(&self) -> &[Level] {
        &self.worthwhile
    }

    /// The power while no task runs.
    pub fn idle_watts(&self) -> f64 {
        self.idle_watts
    }

    /// The paper's efficiency of a level: the power that it saves compared with the cheapest mix of
    /// other levels and idle time that has the same average speed, as a fraction of the mix's
    /// power. A level with an efficiency of 0 or less is not worthwhile. Returns `None` for the
    /// fastest level, which no mix replaces.
    ///
    /// # Panics
    /// If there is no level with this index.
    pub fn efficiency(&self, index: usize) -> Option<f64> {
        let level = self.all[index];
        let mut others = self.all.clone();
        others.remove(index);
        let hull = lower_hull(&others, self.idle_watts);
        let pair = hull.windows(2).find(|pair| pair[0].hz < level.hz && level.hz < pair[1].hz)?;
        let share = (level.hz - pair[0].hz) / (pair[1].hz - pair[0].hz);
        let mixed = pair[0].watts + share * (pair[1].watts - pair[0].watts);
        Some(1.0 - level.watts / mixed)
    }

    /// The energy of a cycle at a worthwhile level, beyond that of an idle processor.
    pub(crate) fn energy_per_cycle(&self, worthwhile: usize) -> f64 {
        let level = self.worthwhile[worthwhile];
        (level.watts - self.idle_watts) / level.hz
    }
}

/// The relative size of rounding errors. A level that saves less is not worthwhile.
const ROUNDING: f64 = 1e-9;

/// The lower convex hull of power over speed, from the idle processor (speed 0) to the fastest
/// level. The levels must be in ascending order. A level on the line between its neighbours is left
/// out.
fn lower_hull(levels: &[Level], idle_watts: f64) -> Vec<Level> {
    let mut hull = vec![Level { hz: 0.0, watts: idle_watts }];
    for level in levels {
        while let [.., a, b] = hull[..]
            && (b.watts - a.watts) * (level.hz - b.hz)
                >= (level.watts - b.watts) * (b.hz - a.hz) * (1.0 - ROUNDING)
        {
            hull.pop();
        }
        hull.push(*level);
    }
    hull
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn levels(pairs: &[(f64, f64)]) -> Vec<Level> {
        pairs.iter().map(|(mhz, watts)| Level { hz: mhz * 1e6, watts: *watts }).collect()
    }

    /// RightSpeed, section 3: the efficiencies are 10 % and 7.4 %.
    #[test]
    fn efficiencies_of_the_paper() {
        let levels = Levels::new(levels(&[(700.0, 6.0), (300.0, 2.0), (500.0, 3.6)]), 0.0).unwrap();
        let percent = |index| levels.efficiency(index).map(|part| (part * 1000.0).round() / 10.0);
        assert_eq!([0, 1, 2].map(percent), [Some(7.4), Some(10.0), None]);
        assert_eq!(levels.worthwhile().len(), 3);
    }

    #[test]
    fn level_on_a_line_or_above_is_not_worthwhile() {
        let of = |pairs: &[(f64, f64)], idle| {
            let all = Levels::new(levels(pairs), idle).unwrap();
            all.worthwhile().iter().map(|level| level.mhz()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(300.0, 2.0), (500.0, 4.0), (700.0, 6.0)], 0.0), [300.0, 700.0]);
        assert_eq!(of(&[(300.0, 4.0), (700.0, 6.0)], 0.0), [700.0]);
        assert_eq!(of(&[(300.0, 4.0), (700.0, 6.0)], 3.0), [300.0, 700.0]);
    }

    #[test]
    fn senseless_levels_are_refused() {
        let text =
            |pairs: &[(f64, f64)], idle| Levels::new(levels(pairs), idle).unwrap_err().to_string();
        assert_eq!(text(&[], 0.0), "there is no level");
        assert_eq!(text(&[(500.0, 1.0), (500.0, 2.0)], 0.0), "there are two levels of 500 MHz");
        assert!(text(&[(0.0, 1.0)], 0.0).contains("must be positive"));
        assert!(text(&[(500.0, f64::NAN)], 0.0).contains("must be positive"));
        assert!(text(&[(500.0, 1.0)], -1.0).contains("must be 0 or more"));
        assert!(text(&[(500.0, 1.0)], 1.0).contains("not more than the 1 W of an idle processor"));
    }

    proptest! {
        /// The levels with a positive efficiency are those of the hull. A cycle costs more at each
        /// faster level.
        #[test]
        fn worthwhile_levels_have_a_positive_efficiency(
            pairs in prop::collection::btree_map(1u32..5000, 1u32..100_000, 1..8),
            idle in 0.0..0.9,
        ) {
            let all: Vec<_> = pairs
                .iter()
                .map(|(mhz, milliwatts)| (f64::from(*mhz), f64::from(*milliwatts) / 1000.0 + 1.0))
                .collect();
            let all = Levels::new(levels(&all), idle).unwrap();
            for (index, level) in all.all().iter().enumerate() {
                let is_worthwhile = all.worthwhile().contains(level);
                match all.efficiency(index) {
                    None => prop_assert!(is_worthwhile),
                    Some(part) if part.abs() > 1e-9 => prop_assert_eq!(is_worthwhile, part > 0.0),
                    Some(_) => {}
                }
            }
            let costs: Vec<_> =
                (0..all.worthwhile().len()).map(|index| all.energy_per_cycle(index)).collect();
            prop_assert!(costs.is_sorted_by(|a, b| a < b));
        }
    }
}
