//! `slowmo recover`: an operator names the history that continues without a quorum.

use super::job::{self, Which};
use crate::console::Console;
use anyhow::bail;
use clap::Args;
use serde::Serialize;
use slowmo::internal::admin::{Answer, RecoveryReport, Request};
use slowmo_ops::jobs;
use std::path::PathBuf;

/// Continue without voters that are permanently gone, after the loss of a majority.
///
/// Without --history it shows the history that would continue, and changes nothing. In a job of
/// `slowmo launch`, the launcher asks its member with the highest round. If several launches form
/// the cluster, name the launch whose status shows the highest round. Without a launcher, ask the
/// node with the highest round yourself (--admin). What only other nodes know is lost. A node that
/// reaches a newer history waits to be admitted to it, and refuses this order.
#[derive(Debug, Args)]
pub struct Recover {
    /// A node's own admin socket (key `admin`), for nodes that no launcher started.
    #[arg(long, value_name = "SOCKET", conflicts_with = "job")]
    admin: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
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
        let (asked, report) = self.ask()?;
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
            text.push_str(&format!(
                "\nif a quorum of them still goes on somewhere, this side gives way when the two \
                 meet, and loses what it decides from now on; if they are gone for good:\n  slowmo \
                 recover {asked} --history {history}"
            ));
        }
        console.done("recover", text, &Recovered { report })
    }

    /// Asks the node or the job's launcher. Returns the option that names it, and the answer.
    fn ask(self) -> anyhow::Result<(String, RecoveryReport)> {
        let history = self.history;
        let Some(socket) = self.admin else {
            let request = jobs::Request::Recover { history };
            let (job, answer) = job::ask(&self.which, request)?;
            let jobs::Answer::Recovers { report, .. } = answer else {
                bail!("job {job} is of another version")
            };
            return Ok((format!("--job {job}"), report));
        };
        let at = socket.display();
        match jobs::ask_at(&socket, Request::Recover { history })? {
            Answer::Recovers(report) => Ok((format!("--admin {at}"), report)),
            _ => bail!("the node at {at} is of another version"),
        }
    }
}
