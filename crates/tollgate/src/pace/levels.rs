//! `tollgate pace levels`: the speeds of a processor, and which of them are worthwhile.

use std::fmt::Write as _;
use std::process::ExitCode;

use ::pace::LevelFile;
use anyhow::{Result, anyhow};
use serde::Serialize;

use super::arguments::LevelsArguments;
use super::level_set::{self, LevelRow};
use super::machine_levels;
use super::report_format::or_dash;
use crate::format::printable;
use crate::output::Output;

#[derive(Serialize)]
struct LevelsReport<'a> {
    schema: &'static str,
    sets: Vec<SetReport<'a>>,
}

#[derive(Serialize)]
struct SetReport<'a> {
    name: Option<&'a str>,
    source: Option<&'a str>,
    idle_watts: f64,
    summary: String,
    levels: Vec<LevelRow>,
}

pub fn levels(arguments: &LevelsArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs(&arguments.levels)?;
    let sets = match arguments.levels.is_empty() {
        true => machine_levels::find().map_err(|error| {
            anyhow!("{error:#}; name a built-in set of levels or a file of levels (see --help)")
        })?,
        false => level_set::find_all(&arguments.levels)?,
    };
    let report =
        LevelsReport { schema: "tollgate.pace.levels/1", sets: sets.iter().map(rows).collect() };
    match arguments.json {
        true => output.write_json(&report)?,
        false => {
            let texts: Vec<_> = report.sets.iter().map(text).collect();
            output.write(&texts.join("\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(file: &LevelFile) -> SetReport<'_> {
    let levels = &file.levels;
    SetReport {
        name: file.name.as_deref(),
        source: file.source.as_deref(),
        idle_watts: levels.idle_watts(),
        summary: level_set::summary(file),
        levels: LevelRow::of(levels),
    }
}

/// With one decimal, and without the sign of a negative number that is rounded to 0.
fn percent(part: f64) -> String {
    format!("{:.1} %", (part * 1e3).round() / 10.0 + 0.0)
}

fn text(set: &SetReport) -> String {
    let mut out = format!("{}: {}\n", printable(set.name.unwrap_or("levels")), set.summary);
    if let Some(source) = set.source {
        let _ = writeln!(out, "source: {}", printable(source));
    }
    if set.idle_watts > 0.0 {
        let _ = writeln!(out, "idle: {} W", set.idle_watts);
    }
    let _ = writeln!(
        out,
        "{:>9} {:>9} {:>21} {:>11}  worthwhile",
        "MHz", "W", "mJ a million cycles", "efficiency"
    );
    for level in &set.levels {
        let efficiency = or_dash(level.efficiency, percent);
        let _ = writeln!(
            out,
            "{:>9} {:>9.3} {:>21.3} {:>11}  {}",
            level.mhz,
            level.watts,
            level.modelled_mj_per_million_cycles,
            efficiency,
            if level.worthwhile { "yes" } else { "no" }
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_negative_numbers_have_no_sign() {
        assert_eq!([-1e-5, 0.0, 0.0736].map(percent), ["0.0 %", "0.0 %", "7.4 %"]);
    }
}
