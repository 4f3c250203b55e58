//! `slowmo set`: changes a setting of the running job, for all of its nodes at the same step.

use super::checkpoint::furthest;
use super::job::{Which, ask};
use super::one_node;
use crate::console::Console;
use anyhow::bail;
use clap::Args;
use serde::Serialize;
use slowmo::Config;
use slowmo::internal::admin;
use slowmo::internal::config::keys::{CHANGEABLE, Key};
use slowmo_ops::jobs::{self, Request};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two looks at whether it is in force.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Change a setting of the running job. The next round decides it, so all nodes use it from the
/// same step on, and so do nodes that join later. A job that starts again, also from a checkpoint,
/// begins with the settings that its nodes are given then. docs/configuration.md names the keys
/// that may change.
#[derive(Debug, Args)]
pub struct Set {
    /// The key, as in the configuration.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(CHANGEABLE))]
    key: String,
    /// The value, as in the configuration.
    value: String,
    /// A member's own admin socket (key `admin`), for nodes that no launcher started.
    #[arg(long, value_name = "SOCKET", conflicts_with = "job")]
    admin: Option<PathBuf>,
    /// Wait until it is in force, at most this many seconds; exits with 1 if it is not. 0: do not
    /// wait.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u32).range(0..=one_node::WAIT_SECONDS_MAX)
    )]
    wait: u32,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Serialize)]
struct Report {
    asked: String,
    key: String,
    value: String,
    /// A step in which it was in force; `None` if the command did not wait.
    step: Option<u64>,
}

impl Report {
    /// Prints the report: the order was given, or the setting is in force.
    fn print(&self, console: Console) -> anyhow::Result<()> {
        let Self {
            asked,
            key,
            value,
            step,
        } = self;
        let text = match step {
            None => format!("{asked}: {key} = {value} from the next round on"),
            Some(step) => {
                format!("{asked}: {key} = {value} is in force, in step {step} at the latest")
            }
        };
        console.done("set", text, self)
    }
}

impl Set {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let asked = self.order()?;
        // As the nodes show it: `096` is 96.
        let written = Config::default().with(&self.key, &self.value)?;
        let value = Key::find(&self.key).map_or_else(String::new, |key| key.shown(&written));
        let mut report = Report {
            asked,
            key: self.key.clone(),
            value,
            step: None,
        };
        if self.wait == 0 {
            return report.print(console);
        }
        let begun = Instant::now();
        loop {
            // A node may not answer for a moment; the change is decided all the same.
            let status = furthest(self.admin.as_deref(), &self.which).ok();
            let in_force = status.as_ref().and_then(|status| {
                let settings = &mut status.settings.iter();
                settings.find(|setting| setting.key == report.key)
            });
            if let (Some(status), Some(setting)) = (&status, in_force)
                && setting.value == report.value
            {
                report.step = Some(status.step);
                return report.print(console);
            }
            if begun.elapsed() >= Duration::from_secs(self.wait.into()) {
                let now = in_force.map_or("unknown", |setting| setting.value.as_str());
                let Report {
                    asked, key, value, ..
                } = &report;
                bail!(
                    "{asked}: {key} is {now} after {} s, and not {value}: no round was decided \
                     yet, and it is still asked for, or another order changed it after this one",
                    self.wait
                );
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Gives the order. Returns who was asked.
    fn order(&self) -> anyhow::Result<String> {
        let key = self.key.clone();
        let value = self.value.clone();
        let Some(socket) = &self.admin else {
            let (job, _) = ask(&self.which, Request::Set { key, value })?;
            return Ok(format!("job {job}"));
        };
        match jobs::ask_at(socket, admin::Request::Set { key, value })? {
            admin::Answer::Refused { error } => bail!("{error}"),
            _ => Ok(format!("the node at {}", socket.display())),
        }
    }
}
