//! `slowmo dump`: a node's flight recorder, written down now.

use crate::console::Console;
use clap::Args;
use serde::Serialize;
use slowmo::admin::Request;
use slowmo_ops::jobs;
use std::path::PathBuf;

/// Let a node write its last events into the folder of its key flight, for slowmo replay.
#[derive(Debug, Args)]
pub struct Dump {
    /// The node's own admin socket (key `admin`).
    #[arg(long, value_name = "SOCKET")]
    admin: PathBuf,
}

#[derive(Debug, Serialize)]
struct Dumped {
    command: &'static str,
    succeeded: bool,
    node: PathBuf,
}

impl Dump {
    /// Does it.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        jobs::ask_at(&self.admin, Request::Dump)?;
        let text = format!("the node at {} writes its last events down", self.admin.display());
        console.result(text, &Dumped { command: "dump", succeeded: true, node: self.admin })
    }
}
