//! Files of levels: the speeds of a processor and their power, in TOML.
//!
//! ```toml
//! name = "the example of the paper"
//! idle-watts = 0
//! level = [
//!     { mhz = 300, watts = 2 },
//!     { mhz = 500, watts = 3.6 },
//!     { mhz = 700, watts = 6 },
//! ]
//! ```

use std::ops::{Range, RangeInclusive};

use toml_reader::{Problem, Problems, TableReader};

use crate::levels::{Level, Levels};

/// The speeds that a file may have, in MHz: from 1 kHz to 1 THz.
const MHZ: RangeInclusive<f64> = 0.001..=1_000_000.0;
/// The power that a file may have, in watts: from 1 µW to 1 MW.
const WATTS: RangeInclusive<f64> = 0.000_001..=1_000_000.0;
/// The kernel's own tables of operating points have some dozens.
const MAX_LEVELS: usize = 1000;

const MHZ_HELP: &str = "give the speed in megahertz: mhz = 600";
const WATTS_HELP: &str = "give the power at this speed in watts: watts = 0.9";
const IDLE_HELP: &str = "give the power of an idle processor in watts: idle-watts = 0.4";

/// The content of a file of levels.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelFile {
    /// The name of the processor.
    pub name: Option<String>,
    /// Where the figures are from.
    pub source: Option<String>,
    /// The levels.
    pub levels: Levels,
}

/// Parses a file of levels, or returns its problems in the order of their positions.
///
/// # Errors
/// If the file is not valid TOML, has unknown keys, or has levels that make no sense.
pub fn parse_levels(text: &str) -> Result<LevelFile, Problems> {
    let document = toml_reader::parse(text)?;
    let mut problems = Problems::new();
    let file = read(TableReader::new(document.get_ref(), document.span(), &mut problems));
    problems.sort_by_key(|problem| problem.span.start);
    file.filter(|_| problems.is_empty())
        .ok_or_else(|| problems.into_iter().map(Problem::sanitize).collect())
}

fn read(mut reader: TableReader<'_, '_>) -> Option<LevelFile> {
    let help = "give the name of the processor: name = \"my board\"";
    let name = reader.with_help(help, |reader| reader.string("name"));
    let help = "say where the figures are from: source = \"measured at the 5 V input\"";
    let source = reader.with_help(help, |reader| reader.string("source"));
    let [name, source] = [name, source].map(|named| named.map(|at| at.value.to_owned()));
    let idle =
        reader.with_help(IDLE_HELP, |reader| reader.number("idle-watts", 0.0..=*WATTS.end()));
    let idle = idle.map_or(0.0, |at| at.value);
    let tables = reader.tables("level");
    let mut levels: Vec<(Level, Range<usize>)> = Vec::new();
    for table in tables.iter().take(MAX_LEVELS) {
        let mut entry = TableReader::new(table.value, table.span.clone(), reader.problems);
        let mut read = |key, range, help| {
            let number = entry.with_help(help, |entry| entry.number(key, range));
            if number.is_none() && !table.value.contains_key(key) {
                let problem = Problem::new(table.span.clone(), format!("the level has no {key}"));
                entry.problem(problem.help(help));
            }
            number
        };
        let (mhz, watts) = (read("mhz", MHZ, MHZ_HELP), read("watts", WATTS, WATTS_HELP));
        entry.finish(|_| "a level has the keys mhz and watts".into());
        let (Some(mhz), Some(watts)) = (mhz, watts) else { continue };
        let level = Level { hz: mhz.value * 1e6, watts: watts.value };
        if let Some((_, first)) = levels.iter().find(|(other, _)| other.hz == level.hz) {
            let text = format!("there are two levels of {} MHz", mhz.value);
            let problem = Problem::new(table.span.clone(), text).help("leave out one of the two");
            reader.problem(problem.other(first.clone(), "the first one"));
        } else if level.watts <= idle {
            let text = format!("this is not more than the {idle} W of idle-watts");
            let help = "a processor that runs a task needs more power than an idle one";
            reader.problem(Problem::new(watts.span, text).help(help));
        } else {
            levels.push((level, table.span.clone()));
        }
    }
    if tables.len() > MAX_LEVELS {
        let text = format!("there are {} levels; at most {MAX_LEVELS} are possible", tables.len());
        let help = "processors have some dozens: leave out those that it cannot be set to";
        reader.problem(Problem::new(tables[MAX_LEVELS].span.clone(), text).help(help));
    }
    let problems = reader.finish(|_| "the tables of this file are [[level]]".into());
    // Another problem may be a misspelt level.
    if tables.is_empty() && problems.is_empty() {
        let help = "add the speeds: level = [{ mhz = 300, watts = 2 }, …]";
        problems.push(Problem::new(0..0, "the file has no level").help(help));
    }
    let levels = Levels::new(levels.into_iter().map(|(level, _)| level).collect(), idle).ok()?;
    Some(LevelFile { name, source, levels })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<(String, String)> {
        let found = parse_levels(text).unwrap_err();
        assert!(found.iter().all(|problem| problem.help.is_some()), "{found:?}");
        let of = |problem: Problem| (text[problem.span].to_owned(), problem.message);
        found.into_iter().map(of).collect()
    }

    #[test]
    fn example_of_the_paper() {
        let text = "name = \"n\"\nlevel = [{ mhz = 300, watts = 2 }, { mhz = 700, watts = 6.5 }]";
        let file = parse_levels(text).unwrap();
        assert_eq!(file.name.as_deref(), Some("n"));
        let all: Vec<_> = file.levels.all().iter().map(|level| (level.hz, level.watts)).collect();
        assert_eq!(all, [(300e6, 2.0), (700e6, 6.5)]);
    }

    #[test]
    fn each_mistake_is_reported_at_its_position() {
        let text = "\
idle-watts = 3
speed = 1
[[level]]
mhz = 300
watts = 2
[[level]]
mhz = \"fast\"
watts = 9
[[level]]
mhz = 500
watts = 5
[[level]]
mhz = 500
watts = -1
[[level]]
mhz = 500
watts = 6
[[level]]
watt = 6
mhz = 700
";
        let found = problems(text);
        let messages: Vec<_> = found.iter().map(|(_, message)| message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "unknown key \"speed\"",
                "this is not more than the 3 W of idle-watts",
                "mhz must be a number from 0.001 to 1000000, not a string",
                "watts must be a number from 0.000001 to 1000000, not -1",
                "there are two levels of 500 MHz",
                "the level has no watts",
                "unknown key \"watt\"",
            ]
        );
        assert_eq!(found[1].0, "2");
        assert_eq!(problems("")[0].1, "the file has no level");
        assert_eq!(problems("level = [").len(), 1);
        assert_eq!(problems("level = [{mhz=100 watts=5}]").len(), 1);
        let wrong = [
            "name = 1",
            "source = [\"a\"]",
            "idle-watts = -1",
            "idle-watts = \"3\"",
            "level = 5",
            "level = [1, 2]",
            "level = { mhz = 1, watts = 1 }",
            "level = [{ mhz = 0, watts = 1 }]",
            "level = [{ mhz = 1e9, watts = 1 }]",
            "level = [{ mhz = 1, watts = true }]",
            "level = [{ mhz = 1, watts = 1, watts = 2 }]",
            "level = [{ mhz = 1, watts = 1, volts = 1 }]",
        ];
        assert!(wrong.iter().all(|text| !problems(text).is_empty()));
        let many = "[[level]]\nmhz = 1\nwatts = 1\n".repeat(1001);
        assert!(problems(&many).iter().any(|(_, text)| text.contains("1001 levels")));
    }
}
