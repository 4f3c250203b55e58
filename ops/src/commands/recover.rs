//! `slowmo recover`: an operator names the history that continues without a quorum.

use crate::console::Console;
use anyhow::bail;
use clap::Args;
use serde::Serialize;
use slowmo::internal::admin::{Answer, RecoveryReport, Request};
use slowmo_ops::jobs;
use std::path::PathBuf;

/// Continue without voters that are permanently gone, after the loss of a majority.
///
/// Without --history it shows the history that would continue, and changes nothing. Ask the node
/// with the highest round: anything that only the other nodes know is lost. A node that reaches a
/// newer history waits to be admitted to that one, and refuses.
#[derive(Debug, Args)]
pub struct Recover {
    /// The node's own admin socket (key `admin`).
    #[arg(long, value_name = "SOCKET")]
    admin: PathBuf,
    /// The history that continues, as printed by this command without this option.
    #[arg(long, value_name = "LINEAGE")]
    history: Option<String>,
}

#[derive(Debug, Serialize)]
struct Recovered {
    #[serde(flatten)]
    report: RecoveryReport,
}

impl Recover {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let report = match jobs::ask_at(
            &self.admin,
            Request::Recover {
                history: self.history,
            },
        )? {
            Answer::Recovers(report) => report,
            Answer::Refused { error } => bail!("{error}"),
            _ => bail!("the node at {} is of another version", self.admin.display()),
        };
        let RecoveryReport {
            history,
            round,
            goes_on,
            missing,
            ordered,
        } = &report;
        let verb = if *ordered { "goes on" } else { "would go on" };
        let mut text = format!(
            "history {history} {verb} at round {round} with nodes {goes_on:?}, without voters \
             {missing:?}"
        );
        if !ordered {
            let admin = self.admin.display();
            text.push_str(&format!(
                "\nif a quorum of them still goes on somewhere, this side gives way when the two \
                 meet, and loses what it decides from now on; if they are gone for good:\n  slowmo \
                 recover --admin {admin} --history {history}"
            ));
        }
        console.done("recover", text, &Recovered { report })
    }
}
