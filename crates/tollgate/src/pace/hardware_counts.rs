//! What the hardware counts for the reports of pace: the cycles of tasks, and energy.

use std::fmt::Write as _;

use kernel::pace::energy_sensor::EnergySensors;
use serde::{Deserialize, Serialize};

use super::report_format::significant;

/// What a machine counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// The event of perf that counts the cycles of tasks. Null if they are processor time, times
    /// the speed of the processor.
    pub cycle_counter: Option<String>,
    /// What the processors have used in this session. Null if the machine does not measure it.
    pub measured_energy: Option<MeasuredEnergy>,
}

impl HardwareCounts {
    pub fn write_text(&self, out: &mut String) {
        let counted = match &self.cycle_counter {
            Some(event) => format!("counted by {event}"),
            None => "processor time, times the speed of the processor".to_owned(),
        };
        let _ = writeln!(out, "the cycles of tasks are {counted}");
        if let Some(measured) = &self.measured_energy {
            measured.write_text(out);
        }
    }
}

/// Energy that sensors have measured, for all work on the processors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MeasuredEnergy {
    pub joules: f64,
    /// The source of the measurement: `powercap` or `perf`.
    pub source: String,
}

impl MeasuredEnergy {
    pub fn of_sensors(sensors: &EnergySensors) -> Self {
        Self { joules: sensors.joules(), source: sensors.source().name().to_owned() }
    }

    fn write_text(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "the processors used {} J for all work (measured by {})",
            significant(self.joules),
            self.source
        );
    }
}
