//! Hidden `slowmo raw-node`: one process of a raw transfer.

use anyhow::Context;
use clap::{Args, ValueEnum};
use slowmo_ops::limits::{Carrier, Transfer, run_node};
use slowmo_ops::processes::{NODE_ID, RENDEZVOUS};
use std::path::PathBuf;

/// One process of a raw transfer, started with a node's environment.
#[derive(Debug, Args)]
pub struct RawNode {
    #[arg(long)]
    carrier: CarrierName,
    #[arg(long)]
    nodes: usize,
    #[arg(long)]
    bytes_per_peer: u64,
    #[arg(long)]
    all_to_all: bool,
}

/// [`Carrier`] as a command-line value.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CarrierName {
    Quic,
    Tcp,
}

impl RawNode {
    /// Runs this process's part and prints its times.
    pub fn run(self) -> anyhow::Result<()> {
        let carrier = match self.carrier {
            CarrierName::Quic => Carrier::Quic,
            CarrierName::Tcp => Carrier::Tcp,
        };
        let Self {
            nodes,
            bytes_per_peer,
            all_to_all,
            ..
        } = self;
        let node = std::env::var(NODE_ID)
            .with_context(|| format!("{NODE_ID} is not set"))?
            .parse()?;
        let folder = PathBuf::from(
            std::env::var_os(RENDEZVOUS).with_context(|| format!("{RENDEZVOUS} is not set"))?,
        );
        println!(
            "{}",
            run_node(
                &Transfer {
                    carrier,
                    nodes,
                    bytes_per_peer,
                    all_to_all
                },
                node,
                &folder
            )?
        );
        Ok(())
    }
}
