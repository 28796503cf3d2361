//! Sets of levels: built-in ones, and those of files.

use std::path::Path;

use ::pace::{LevelFile, Levels, parse_levels};
use anyhow::{Result, bail};
use serde::Serialize;

use crate::file_problems;
use crate::format::number_of;
use crate::source_file::SourceFile;

/// The kind of file, in messages.
const KIND: &str = "file of levels";

/// The name and the text of each built-in set.
const BUILT_IN: [(&str, &str); 4] = [
    ("rightspeed", include_str!("../../../../examples/levels/rightspeed.toml")),
    ("pentium-m-1600", include_str!("../../../../examples/levels/pentium-m-1600.toml")),
    ("rk3399-a53", include_str!("../../../../examples/levels/rk3399-a53.toml")),
    ("rk3399-a72", include_str!("../../../../examples/levels/rk3399-a72.toml")),
];

/// All built-in sets.
pub fn built_in() -> Result<Vec<LevelFile>> {
    BUILT_IN.iter().map(|(name, _)| find(name)).collect()
}

/// The built-in set with this name, or the set of the file at this path.
pub fn find(name: &str) -> Result<LevelFile> {
    parse(&source(name, Path::new(""))?)
}

/// The built-in file with this name, or the file at this path in relation to a folder.
pub fn source(name: &str, folder: &Path) -> Result<SourceFile> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
        return Ok(SourceFile::new((*name).to_owned(), (*text).to_owned()));
    }
    let path = folder.join(name);
    if !name.contains(['/', '.']) && name != "-" && !path.exists() {
        let names: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        bail!(
            "there is no file {name:?}, and no built-in set of levels with this name; the \
            built-in sets are {}",
            names.join(", ")
        );
    }
    SourceFile::read(&path, KIND)
}

/// The set of a file.
pub fn parse(source: &SourceFile) -> Result<LevelFile> {
    let parsed = parse_levels(&source.text);
    let file = parsed.map_err(|problems| file_problems::error(source, &problems))?;
    Ok(LevelFile { name: file.name.or_else(|| Some(source.name.clone())), ..file })
}

/// The sets with these names, as [`find`] finds each. A name that is repeated counts once.
pub fn find_all(names: &[String]) -> Result<Vec<LevelFile>> {
    let is_first = |(index, name): &(usize, &String)| !names[..*index].contains(name);
    names.iter().enumerate().filter(is_first).map(|(_, name)| find(name)).collect()
}

/// "5 of 6 speeds are worthwhile, so pacing can save energy"
pub fn summary(file: &LevelFile) -> String {
    let (all, worthwhile) = (file.levels.all().len(), file.levels.worthwhile().len());
    let speeds = number_of(all, "speed");
    match worthwhile {
        1 => format!("1 of {speeds} is worthwhile, so pacing cannot save energy"),
        n => format!("{n} of {speeds} are worthwhile, so pacing can save energy"),
    }
}

/// A level in a report.
#[derive(Debug, Serialize)]
pub struct LevelRow {
    pub mhz: f64,
    pub watts: f64,
    /// The energy of a million cycles beyond that of an idle processor.
    pub modelled_mj_per_million_cycles: f64,
    /// Null for the fastest level.
    pub efficiency: Option<f64>,
    pub worthwhile: bool,
}

impl LevelRow {
    /// All levels, the slowest first.
    pub fn of(levels: &Levels) -> Vec<Self> {
        let row = |(index, level): (usize, &::pace::Level)| Self {
            mhz: level.hz / 1e6,
            watts: level.watts,
            modelled_mj_per_million_cycles: (level.watts - levels.idle_watts()) / level.hz * 1e9,
            efficiency: levels.efficiency(index),
            worthwhile: levels.worthwhile().contains(level),
        };
        levels.all().iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_sets_are_valid() {
        let worthwhile: Vec<_> = built_in()
            .unwrap()
            .iter()
            .map(|file| (file.levels.worthwhile().len(), file.levels.all().len()))
            .collect();
        assert_eq!(worthwhile, [(3, 3), (5, 6), (7, 7), (8, 9)]);
    }

    #[test]
    fn unknown_name_lists_the_sets() {
        let error = find("pentium").unwrap_err().to_string();
        assert!(error.contains("rightspeed, pentium-m-1600"), "{error}");
        assert!(find("/nowhere.toml").unwrap_err().to_string().contains("cannot read"));
    }
}
