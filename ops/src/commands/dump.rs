//! `slowmo dump`: writes a node's flight recorder to a file now.

use crate::console::Console;
use anyhow::bail;
use clap::Args;
use serde::Serialize;
use slowmo::internal::admin::{Answer, Request};
use slowmo_ops::jobs;
use std::path::PathBuf;

/// Make a node write its last events into the folder of its key flight, for slowmo replay.
#[derive(Debug, Args)]
pub struct Dump {
    /// The node's own admin socket (key `admin`).
    #[arg(long, value_name = "SOCKET")]
    admin: PathBuf,
}

#[derive(Debug, Serialize)]
struct Dumped {
    node: PathBuf,
    file: PathBuf,
}

impl Dump {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let file = match jobs::ask_at(&self.admin, Request::Dump)? {
            Answer::Dumped { file } => file,
            Answer::Refused { error } => bail!("{error}"),
            _ => bail!("the node at {} is of another version", self.admin.display()),
        };
        let text = format!(
            "the last events of the node at {} are in {}",
            self.admin.display(),
            file.display()
        );
        console.done(
            "dump",
            text,
            &Dumped {
                node: self.admin,
                file,
            },
        )
    }
}
