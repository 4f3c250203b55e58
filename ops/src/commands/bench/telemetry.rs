//! `slowmo bench telemetry`: cost of metrics, read every second, and of the flight recorder during
//! training.

use super::beside::Training;
use crate::console::Console;
use anyhow::Context;
use clap::Args;
use serde::Serialize;

/// Largest share that telemetry may add to the time of a step.
const ADDED_MAX: f64 = 0.01;

/// Training with and without telemetry, in turn.
#[derive(Debug, Args, Serialize)]
pub struct TelemetryBench {
    #[command(flatten)]
    #[serde(flatten)]
    training: Training,
}

impl TelemetryBench {
    /// Measures and reports.
    pub fn run(mut self, console: Console) -> anyhow::Result<()> {
        let cost =
            self.training
                .compare(console, "telemetry", ADDED_MAX, |training, console| {
                    let folder = tempfile::tempdir().context("no temporary folder")?;
                    let flight = folder.path().display().to_string();
                    // A node that serves metrics also reads them itself every second.
                    let settings = [
                        ("SLOWMO_HTTP", "127.0.0.1:0"),
                        ("SLOWMO_FLIGHT", flight.as_str()),
                    ];
                    training.step_ms(console, "steps with telemetry", &settings)
                })?;
        let sheet = self.training.sheet(&cost);
        sheet.show(console, "bench telemetry", &self, &cost)
    }
}
