//! Selects the arms and benchmarks of a run.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use kernel::benchmark::{BENCHMARKS, Benchmark};

use super::arguments::CostRunArguments;
use super::arm_file;
use super::arms::{Arm, ArmKind, CONTROLS, OFF};
use super::built_in::built_in;
use super::plan::{BenchmarkRun, INJECTED};
use super::worker;
use crate::format::shown_path;

/// `off` and the controls, the requested arms, and the floors of their hooks where floors are
/// possible.
pub fn select_arms(arguments: &CostRunArguments) -> Result<Vec<Arm>> {
    let mut known: Vec<_> = built_in().into_iter().map(|(arm, _)| arm).collect();
    let mut of_file = Vec::new();
    if let Some(path) = &arguments.arm_file {
        for (name, arm) in arm_file::read(path)? {
            if CONTROLS.contains(&name.as_str()) || known.iter().any(|known| *known.name == *name) {
                bail!("arm {name:?} of {} has the name of a built-in arm", shown_path(path));
            }
            of_file.push(name.clone());
            known.push(Arm::new(name, ArmKind::File(arm)));
        }
    }
    let mut wanted = arguments.arm.clone();
    if wanted.is_empty() {
        wanted = if of_file.is_empty() { vec!["lens".into()] } else { of_file };
    }
    let control = |name: &str| Arm::new(name, ArmKind::Off);
    let mut arms: Vec<_> = [OFF].into_iter().chain(CONTROLS).map(control).collect();
    for name in wanted.iter().filter(|name| *name != OFF) {
        let Some(arm) = known.iter().find(|arm| *arm.name == **name) else {
            bail!(
                "there is no arm {name:?}; `tollgate cost list` lists the built-in arms, \
                --arm-file adds others"
            );
        };
        if arm.is_built_in_kernel() && !kernel::process::is_root() {
            bail!(
                "arm {name:?} loads programs into the kernel, which needs root; run it with sudo"
            );
        }
        if !arms.iter().any(|chosen| chosen.name == arm.name) {
            arms.push(arm.clone());
        }
    }
    let with_floor =
        kernel::process::is_root() && std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    for hooks in arms.iter().filter_map(Arm::hooks).filter(|_| with_floor).collect::<BTreeSet<_>>()
    {
        let floor = Arm { is_reference: true, ..Arm::floor(&hooks) };
        if !arms.iter().any(|chosen| chosen.name == floor.name) {
            arms.insert(INJECTED + 1, floor);
        }
    }
    Ok(arms)
}

/// The requested benchmarks: "getppid" stays on one processor, and "getppid:free" runs wherever the
/// scheduler puts it.
pub fn select_benchmarks(names: &[String], cpu: usize) -> Result<Vec<BenchmarkRun>> {
    if names.is_empty() {
        let pinned = |benchmark: &'static Benchmark| BenchmarkRun {
            name: benchmark.name.into(),
            benchmark,
            cpu: Some(cpu),
        };
        return Ok(BENCHMARKS.iter().map(pinned).collect());
    }
    let one = |name: &str| {
        let (plain, free) = match name.split_once(':') {
            None => (name, false),
            Some((plain, "free")) => (plain, true),
            Some((_, other)) => {
                bail!("{name:?}: expected \"free\" after the colon, found {other:?}")
            }
        };
        let benchmark = worker::find_benchmark(plain)?;
        Ok(BenchmarkRun { name: name.into(), benchmark, cpu: (!free).then_some(cpu) })
    };
    // Running the same benchmark twice would not add confidence.
    let mut seen = BTreeSet::new();
    names.iter().map(|name| name.trim()).filter(|name| seen.insert(*name)).map(one).collect()
}
