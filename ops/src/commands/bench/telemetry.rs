//! `slowmo bench telemetry`: cost of metrics, read every second, and of the flight recorder during
//! training.

use super::beside::{Cost, Training};
use crate::console::Console;
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use slowmo_ops::processes::catch_signals;

/// Largest share that telemetry may add to the time of a step.
const ADDED_MAX: f64 = 0.01;

/// Training with and without telemetry, in turn.
#[derive(Debug, Args)]
pub struct TelemetryBench {
    #[command(flatten)]
    training: Training,
}

/// Report of `bench telemetry`.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    training: Training,
    #[serde(flatten)]
    cost: Cost,
}

impl TelemetryBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.training.sizes.check()?;
        catch_signals();
        let settings = || {
            let folder = tempfile::tempdir().context("no temporary folder")?;
            // A node that serves metrics also reads them itself every second.
            let settings = vec![
                ("SLOWMO_HTTP", "127.0.0.1:0".to_owned()),
                ("SLOWMO_FLIGHT", folder.path().display().to_string()),
            ];
            Ok((settings, folder))
        };
        let cost =
            self.training
                .compare(console, ("telemetry", ADDED_MAX), settings, |_| Ok(()))?;
        let text = self.training.table(&cost, []);
        console.result(
            text,
            &Report {
                command: "bench telemetry",
                training: self.training,
                cost,
            },
        )
    }
}
