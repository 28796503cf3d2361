//! The samples as medians with intervals, and as multiples of the floor.

use std::fmt::Write as _;

use serde_json::{Value, json};
use stats::interval::{Interval, median_interval, quotient_interval};

use crate::arms::{Arm, BARE, FLOOR};
use crate::{Exercise, Times};

const CONFIDENCE: f64 = 0.95;

struct Row {
    time: Interval,
    /// More than bare, a unit.
    toll: Interval,
    /// Time as a multiple of bare's.
    ratio: Interval,
    /// Toll as a multiple of the floor's; none: the floor's is not clear of 0.
    floors: Option<Interval>,
}

fn interval(values: impl Iterator<Item = f64>) -> Interval {
    median_interval(&values.collect::<Vec<_>>(), CONFIDENCE).expect("there is at least one round")
}

fn row(exercises: &[&Exercise], arms: &[Arm], samples: &[Vec<Times>], arm: usize, exercise: usize) -> Row {
    let of = |name| arms.iter().position(|arm| arm.name == name).expect("the references always run");
    let (bare, floor) = (&samples[of(BARE)], &samples[of(FLOOR)]);
    let own = &samples[arm];
    let rounds = || 0..own.len();
    let toll = |times: &[Times], round: usize| times[round][exercise] - bare[round][exercise];
    let is_reference = arms[arm].is_reference;
    let tolls = |times: &[Times]| rounds().map(|round| toll(times, round)).collect::<Vec<_>>();
    let floors = |times| quotient_interval(&tolls(times), &tolls(floor), CONFIDENCE);
    Row {
        time: interval(rounds().map(|round| own[round][exercise])),
        toll: interval(rounds().map(|round| toll(own, round))),
        ratio: interval(rounds().map(|round| own[round][exercise] / bare[round][exercise])),
        floors: (exercises[exercise].in_floors && !is_reference).then(|| floors(own)).flatten(),
    }
}

pub fn text(exercises: &[&Exercise], arms: &[Arm], samples: &[Vec<Times>]) -> String {
    let mut out = String::new();
    for (index, exercise) in exercises.iter().enumerate() {
        let _ = writeln!(
            out,
            "\n{} (ns a {}; median of {} loads, 95 % interval)\n{:<18} {:>26} {:>26} {:>22} {:>22}",
            exercise.name,
            exercise.unit,
            samples[0].len(),
            "arm",
            "time",
            "more than bare",
            "times bare",
            "times the floor's toll"
        );
        for (arm, kind) in arms.iter().enumerate() {
            let row = row(exercises, arms, samples, arm, index);
            let _ = writeln!(
                out,
                "{:<18} {:>26} {:>26} {:>22} {:>22}",
                kind.name,
                cell(&row.time, 1),
                cell(&row.toll, 1),
                cell(&row.ratio, 3),
                row.floors.as_ref().map(|floors| cell(floors, 2)).unwrap_or_default()
            );
        }
    }
    out
}

fn cell(interval: &Interval, digits: usize) -> String {
    let Interval { estimate, low, high, .. } = interval;
    format!("{estimate:.digits$} [{low:.digits$}, {high:.digits$}]")
}

pub fn json(exercises: &[&Exercise], arms: &[Arm], samples: &[Vec<Times>]) -> Value {
    let names: Vec<_> = arms.iter().map(|arm| arm.name).collect();
    let exercises: Vec<_> = exercises.iter().map(|exercise| exercise.name).collect();
    json!({ "schema": "tollgate.bench/1", "exercises": exercises, "arms": names, "samples_ns": samples })
}
