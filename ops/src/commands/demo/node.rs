//! Hidden `slowmo demo-node`: one node of the demo; reports events to its parent, one JSON object
//! per line.

use clap::Args;
use slowmo::Config;
use slowmo_examples::digits::{self, Event, Options};
use std::io::Write;

/// Name of the hidden subcommand.
pub const DEMO_NODE: &str = "demo-node";

/// One node of the demo; its algorithm comes through `SLOWMO_*` variables.
#[derive(Debug, Args)]
pub struct DemoNode {
    #[command(flatten)]
    options: Options,
}

impl DemoNode {
    /// Trains to the end.
    pub fn run(self) -> anyhow::Result<()> {
        digits::train(Config::load()?, &self.options, tell)?;
        Ok(())
    }
}

/// A failed write is ignored: a parent that no longer listens has ended this node anyway.
fn tell(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let _nobody_listens = writeln!(std::io::stdout(), "{line}");
    }
}
