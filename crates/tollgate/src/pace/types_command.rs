//! `tollgate pace types` and `reset`: the stored samples of the types of tasks.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use kernel::pace::speed_journal::{JOURNAL, SpeedJournal};
use serde::Serialize;

use super::arguments::{ResetArguments, TypesArguments};
use super::report_format::{or_dash, quantile, significant};
use super::requests::{PaceRequest, ResetReply};
use super::sample_store::{SampleStore, StoredType};
use crate::daemon_client::{connect, send_request};
use crate::format::{count, printable, shown_path};
use crate::output::Output;
use crate::report::more_rows;

const SCHEMA: &str = "tollgate.pace.types/1";

/// `tollgate pace types --json`
#[derive(Serialize)]
struct TypesReport {
    schema: &'static str,
    types: Vec<TypeRow>,
}

#[derive(Serialize)]
struct TypeRow {
    name: String,
    samples: usize,
    median_cycles: Option<u64>,
    p95_cycles: Option<u64>,
    max_cycles: Option<u64>,
}

impl TypeRow {
    fn of(stored: &StoredType) -> Self {
        let mut sorted = stored.cycles.clone();
        sorted.sort_unstable();
        Self {
            name: stored.name.clone(),
            samples: sorted.len(),
            median_cycles: quantile(&sorted, 0.5),
            p95_cycles: quantile(&sorted, 0.95),
            max_cycles: sorted.last().copied(),
        }
    }
}

pub fn types(arguments: &TypesArguments) -> Result<ExitCode> {
    let stored = SampleStore::new(&arguments.store.folder).all()?;
    let types: Vec<_> = stored.iter().map(TypeRow::of).collect();
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&TypesReport { schema: SCHEMA, types })?;
        return Ok(ExitCode::SUCCESS);
    }
    if types.is_empty() {
        let folder = shown_path(&arguments.store.folder);
        output.write(&format!("no samples are stored in {folder}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text =
        format!("{:>8} {:>9} {:>9} {:>9}  type\n", "samples", "median", "95 %", "maximum");
    for row in types.iter().take(result.top) {
        let million =
            |cycles: Option<u64>| or_dash(cycles, |cycles| significant(cycles as f64 / 1e6));
        let _ = writeln!(
            text,
            "{:>8} {:>9} {:>9} {:>9}  {}",
            count(row.samples as u64),
            million(row.median_cycles),
            million(row.p95_cycles),
            million(row.max_cycles),
            printable(&row.name)
        );
    }
    more_rows(&mut text, types.len(), result.top, "types");
    text.push_str("Work is in millions of cycles.\n");
    output.write(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub fn reset(arguments: &ResetArguments) -> Result<ExitCode> {
    let names = &arguments.types;
    let store = SampleStore::new(&arguments.store.folder);
    // A daemon that paces has the samples in memory, too.
    let request = || PaceRequest::Reset { types: names.clone(), store: store.path_of_folder() };
    if let Ok(Some(stream)) = connect(&arguments.socket.path)
        && let Ok((reply, _)) = send_request(stream, &request())
    {
        match serde_json::from_value(reply)? {
            ResetReply::Unknown(unknown) => return finish(&unknown),
            ResetReply::OtherStore(own) => bail!(
                "the daemon stores samples in {own}: --pace-store {own} resets its types; other \
                folders can be changed while no daemon paces",
                own = shown_path(&own)
            ),
        }
    }
    // No other process may write to the store meanwhile.
    let _journal = SpeedJournal::open(Path::new(JOURNAL))
        .context("cannot make sure that no process sets speeds meanwhile")?;
    finish(&store.remove_all(names)?)
}

fn finish(unknown: &[String]) -> Result<ExitCode> {
    if let Some(name) = unknown.first() {
        bail!("{name:?} has no stored samples; `tollgate pace types` lists the types");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_samples() {
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(folder.path());
        store.save("t", &(1..=100).map(f64::from).collect::<Vec<_>>()).unwrap();
        store.save("empty", &[]).unwrap();
        let rows: Vec<_> = store.all().unwrap().iter().map(TypeRow::of).collect();
        assert_eq!((rows[0].samples, rows[0].median_cycles), (0, None));
        let row = &rows[1];
        let quantiles = [row.median_cycles, row.p95_cycles, row.max_cycles];
        assert_eq!(quantiles, [Some(50), Some(95), Some(100)]);
    }
}
