//! `make bench`: bare, floor, bystander and lens in turns, in one run.
//!
//! A load is the unit of sampling: the same program moves by some nanoseconds from one load to the next
//! (code placement), so each round loads every arm anew, in a shuffled order, and gives one sample.

mod arms;
mod table;

use anyhow::{Result, bail};
use clap::Parser;
use kernel::{cpus, exercise};

use arms::{Arm, arms};

/// Measure the gate's toll on this machine
#[derive(Parser)]
struct Options {
    /// Rounds, each of which loads every arm anew
    #[arg(long, default_value_t = 21)]
    rounds: u32,
    /// Print every sample as JSON
    #[arg(long)]
    json: bool,
    /// Only these arms (and the references, bare and floor)
    #[arg(long = "arm", value_name = "NAME")]
    arms: Vec<String>,
    /// Only this exercise
    #[arg(long, value_name = "NAME")]
    exercise: Option<String>,
    /// Time all exercises in this process and print the times
    #[arg(long, hide = true)]
    worker: bool,
}

/// What is timed, in a block of so many units; the block's time is the median of so many batches.
pub struct Exercise {
    pub name: &'static str,
    pub unit: &'static str,
    pub run: fn(u32) -> f64,
    pub units: u32,
    pub batches: usize,
    /// Whether it is made of calls or switches only, so that its toll can be given in floors.
    pub in_floors: bool,
}

const EXERCISES: [Exercise; 5] = [
    Exercise {
        name: "getppid",
        unit: "call",
        run: exercise::getppid,
        units: 2_000,
        batches: 15,
        in_floors: true,
    },
    Exercise {
        name: "read /dev/null",
        unit: "call",
        run: exercise::read_null,
        units: 2_000,
        batches: 15,
        in_floors: true,
    },
    Exercise {
        name: "pipe ping-pong",
        unit: "round trip",
        run: exercise::ping_pong,
        units: 500,
        batches: 9,
        in_floors: true,
    },
    Exercise {
        name: "context switch",
        unit: "switch",
        run: exercise::context_switch,
        units: 2_000,
        batches: 9,
        in_floors: true,
    },
    Exercise {
        name: "fork+exec+exit",
        unit: "process",
        run: exercise::fork_exec_exit,
        units: 40,
        batches: 9,
        in_floors: false,
    },
];

/// Times of one arm in one round, by chosen exercise.
pub type Times = Vec<f64>;

fn time(exercises: &[&Exercise]) -> Times {
    cpus::run_on(cpus::possible() - 1);
    let median = |exercise: &&Exercise| {
        let mut times: Vec<_> = (0..exercise.batches).map(|_| (exercise.run)(exercise.units)).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    exercises.iter().map(median).collect()
}

fn chosen(name: Option<&str>) -> Result<Vec<&'static Exercise>> {
    let chosen: Vec<_> =
        EXERCISES.iter().filter(|exercise| name.is_none_or(|name| name == exercise.name)).collect();
    if chosen.is_empty() {
        bail!("no such exercise; there are: {}", EXERCISES.map(|exercise| exercise.name).join(", "));
    }
    Ok(chosen)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let chosen = chosen(options.exercise.as_deref())?;
    if options.worker {
        println!("{}", serde_json::to_string(&time(&chosen))?);
        return Ok(());
    }
    if kernel::gate::is_loaded() {
        bail!(
            "a gate is loaded already: end the other Tollgate sessions, as what they cost would be in every arm"
        );
    }
    let arms: Vec<Arm> = arms()
        .into_iter()
        .filter(|arm| {
            options.arms.is_empty() || arm.is_reference || options.arms.iter().any(|name| name == arm.name)
        })
        .collect();
    let mut samples: Vec<Vec<Times>> = vec![Vec::new(); arms.len()];
    let mut shuffle = Shuffle(0x9e37_79b9_7f4a_7c15);
    for round in 0..options.rounds {
        eprint!("\rround {} of {} ", round + 1, options.rounds);
        for index in shuffle.order(arms.len()) {
            samples[index].push((arms[index].run)(options.exercise.as_deref())?);
        }
    }
    eprintln!();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&table::json(&chosen, &arms, &samples))?);
    } else {
        print!("{}", table::text(&chosen, &arms, &samples));
    }
    Ok(())
}

/// A shuffled order each round (xorshift64: Marsaglia, "Xorshift RNGs", 2003), the same every run.
struct Shuffle(u64);

impl Shuffle {
    fn order(&mut self, length: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..length).collect();
        for last in (1..length).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            order.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
        order
    }
}
