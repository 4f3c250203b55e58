//! `slowmo bench …`: the runtime against the limits of this machine, both measured in the same run.

mod limits;
mod raw_node;
mod sizes;

use crate::console::Console;
use clap::Subcommand;
pub use raw_node::RawNode;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The raw limits alone: QUIC, TCP, memory, and all-to-all QUIC between as many processes.
    Limits(limits::Limits),
}

impl Bench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        match self {
            Self::Limits(limits) => limits.run(console),
        }
    }
}
