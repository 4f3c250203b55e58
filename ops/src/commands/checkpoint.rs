//! `slowmo checkpoint`: makes one now, lists checkpoints, verifies that they are whole, and exports
//! the model as one file for other frameworks.

use super::job::{Which, ask, furthest_member};
use super::one_node;
use crate::console::{Console, Told, table};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use slowmo::internal::admin;
use slowmo::internal::checkpoints::{Listed, Name, list, newest_whole};
use slowmo::status::Status;
use slowmo::{Checkpoint, export};
use slowmo_ops::jobs::{self, Request};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two looks at whether a checkpoint is whole.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Make a checkpoint now; inspect, verify or export the checkpoints of a training.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Let a running cluster make a checkpoint after its next outer round, and wait for it.
    Now(Now),
    /// Show the contents of a folder of checkpoints, or of one of them. Reads manifests only.
    Inspect(Inspect),
    /// Read every value and compare it with its digest. Exits with 1 if a checkpoint is not whole.
    Verify(Verify),
    /// Write the model's parameters and buffers into one safetensors file, which candle and PyTorch
    /// load.
    Export(Export),
}

/// See [`CheckpointCommand::Now`].
#[derive(Debug, Args)]
pub struct Now {
    /// A member's own admin socket (key `admin`), for nodes that no launcher started.
    #[arg(long, value_name = "SOCKET", conflicts_with = "job")]
    admin: Option<PathBuf>,
    /// Wait until it is whole, at most this many seconds; exits with 1 if it is not. 0: do not
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

/// See [`CheckpointCommand::Inspect`].
#[derive(Debug, Args)]
pub struct Inspect {
    /// A folder of checkpoints (key `checkpoints`), or one checkpoint in it.
    folder: PathBuf,
}

/// See [`CheckpointCommand::Verify`].
#[derive(Debug, Args)]
pub struct Verify {
    /// A folder of checkpoints, or one checkpoint in it.
    folder: PathBuf,
}

/// See [`CheckpointCommand::Export`].
#[derive(Debug, Args)]
pub struct Export {
    /// A folder of checkpoints, of which the newest whole one is taken, or one checkpoint in it.
    folder: PathBuf,
    /// The new file.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    succeeded: bool,
    checkpoints: Vec<Row>,
}

/// One checkpoint.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    step: Option<u64>,
    rounds: Option<u64>,
    parameters: Option<u64>,
    values: Option<u64>,
    outer: Option<String>,
    parts: usize,
    bytes: u64,
    cursors: Vec<(u64, String)>,
    tensors: usize,
    /// The reason why it cannot be used, if any.
    wrong: Option<String>,
}

#[derive(Debug, Serialize)]
struct Made {
    asked: String,
    /// The inner step that follows it; `None` if the command did not wait.
    step: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Exported {
    checkpoint: String,
    step: u64,
    tensors: usize,
    file: PathBuf,
}

impl CheckpointCommand {
    /// Runs the subcommand.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        match self {
            Self::Now(now) => now.run(console),
            Self::Inspect(Inspect { folder }) => {
                look("checkpoint inspect", &folder, console, |path| {
                    Ok(Checkpoint::open(path)?)
                })
            }
            Self::Verify(Verify { folder }) => {
                look("checkpoint verify", &folder, console, |path| {
                    let checkpoint = Checkpoint::open(path)?;
                    checkpoint.verify()?;
                    Ok(checkpoint)
                })
            }
            Self::Export(export) => export.run(console),
        }
    }
}

impl Now {
    fn run(self, console: Console) -> anyhow::Result<()> {
        let before = furthest(self.admin.as_deref(), &self.which)?;
        let asked = self.ask()?;
        if self.wait == 0 {
            let text = format!("{asked}: a checkpoint will follow the next outer round");
            return console.done("checkpoint now", text, &Made { asked, step: None });
        }
        let begun = Instant::now();
        let limit = Duration::from_secs(self.wait.into());
        loop {
            // A node may not answer for a moment; the checkpoint is made all the same.
            let report = furthest(self.admin.as_deref(), &self.which).ok();
            let told = report
                .as_ref()
                .and_then(|report| report.checkpoints.as_ref());
            let whole = told.and_then(|told| told.whole_step);
            if let Some(step) = whole.filter(|step| *step > before.step) {
                let text = format!("{asked}: the checkpoint of step {step} is whole");
                let step = Some(step);
                return console.done("checkpoint now", text, &Made { asked, step });
            }
            if begun.elapsed() >= limit {
                let waits = report
                    .as_ref()
                    .and_then(|report| report.waiting_for.clone());
                let error = told.and_then(|told| told.error.clone()).or(waits);
                let why = error.map_or_else(String::new, |error| format!(": {error}"));
                bail!(
                    "{asked}: no checkpoint became whole within {} s{why}; it is still due after \
                     the next outer round",
                    self.wait
                );
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Orders it. Returns who was asked.
    fn ask(&self) -> anyhow::Result<String> {
        let Some(socket) = &self.admin else {
            let (job, _) = ask(&self.which, Request::Checkpoint)?;
            return Ok(format!("job {job}"));
        };
        match jobs::ask_at(socket, admin::Request::Checkpoint)? {
            admin::Answer::Refused { error } => bail!("{error}"),
            _ => Ok(format!("the node at {}", socket.display())),
        }
    }
}

/// The report of the node with this admin socket, or of the job's member that is furthest ahead.
pub fn furthest(admin: Option<&Path>, which: &Which) -> anyhow::Result<Status> {
    if let Some(socket) = admin {
        return one_node::status(socket);
    }
    furthest_member(which)
}

/// Shows the result of `open` for each checkpoint; when verifying, fails if one is not whole.
fn look(
    command: &'static str,
    folder: &Path,
    console: Console,
    open: fn(&Path) -> anyhow::Result<Checkpoint>,
) -> anyhow::Result<()> {
    let listed = paths(folder)?;
    let rows: Vec<Row> = listed
        .into_iter()
        .map(|(name, path)| Row::of(name, open(&path)))
        .collect();
    let wrong = rows.iter().filter(|row| row.wrong.is_some()).count();
    let succeeded = wrong == 0 || command == "checkpoint inspect";
    let text = table(
        [
            "checkpoint",
            "step",
            "rounds",
            "parameters",
            "parts",
            "MiB",
            "state",
        ],
        rows.iter().map(Row::cells),
    );
    console.result(
        text,
        &Report {
            command,
            succeeded,
            checkpoints: rows,
        },
    )?;
    if succeeded { Ok(()) } else { Err(Told.into()) }
}

/// The checkpoints that a path names: the path itself, or all in the folder, oldest first.
fn paths(folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    if let Some(name) = own_name(folder) {
        return Ok(vec![(name.to_string(), folder.to_owned())]);
    }
    if !folder.is_dir() {
        bail!(
            "there is no folder {}; name the folder of the key checkpoints",
            folder.display()
        );
    }
    let listed = list(folder)?;
    if listed.is_empty() {
        bail!("there are no checkpoints in {}", folder.display());
    }
    Ok(listed
        .into_iter()
        .map(|Listed { name, path }| (name.to_string(), path))
        .collect())
}

fn own_name(folder: &Path) -> Option<Name> {
    let whole = std::path::absolute(folder).ok()?;
    whole
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(Name::parse)
}

impl Row {
    fn of(name: String, found: anyhow::Result<Checkpoint>) -> Self {
        let checkpoint = match found {
            Ok(checkpoint) => checkpoint,
            Err(error) => return Self::wrong(name, &error),
        };
        let header = checkpoint.header();
        Self {
            name,
            step: Some(header.step),
            rounds: Some(header.rounds_before.saturating_add(header.round)),
            parameters: Some(header.parameters),
            values: Some(header.elements),
            outer: header.outer.clone(),
            parts: checkpoint.parts().len(),
            bytes: checkpoint.bytes(),
            cursors: checkpoint
                .parts()
                .iter()
                .filter_map(|part| Some((part.node, part.cursor.clone()?)))
                .collect(),
            tensors: header.tensors.len(),
            wrong: None,
        }
    }

    fn wrong(name: String, error: &anyhow::Error) -> Self {
        let step = Name::parse(&name).map(|name| name.step);
        Self {
            name,
            step,
            rounds: None,
            parameters: None,
            values: None,
            outer: None,
            parts: 0,
            bytes: 0,
            cursors: Vec::new(),
            tensors: 0,
            wrong: Some(error.to_string()),
        }
    }

    fn cells(&self) -> [String; 7] {
        let number = |number: Option<u64>| {
            number.map_or_else(|| "–".to_owned(), |number| number.to_string())
        };
        [
            self.name.clone(),
            number(self.step),
            number(self.rounds),
            number(self.parameters),
            self.parts.to_string(),
            format!("{:.1}", self.bytes as f64 / f64::from(1 << 20)),
            self.wrong.clone().unwrap_or_else(|| "whole".to_owned()),
        ]
    }
}

impl Export {
    fn run(self, console: Console) -> anyhow::Result<()> {
        let checkpoint = match own_name(&self.folder) {
            Some(_) => Checkpoint::open(&self.folder)?,
            None => self.newest(console)?,
        };
        let tensors = export(&checkpoint, &self.out).context("nothing was exported")?;
        let name = checkpoint.header().name().to_string();
        let step = checkpoint.header().step;
        let text = format!("{tensors} tensors of step {step} in {}", self.out.display());
        let report = Exported {
            checkpoint: name,
            step,
            tensors,
            file: self.out,
        };
        console.done("checkpoint export", text, &report)
    }

    fn newest(&self, console: Console) -> anyhow::Result<Checkpoint> {
        let (found, refused) = newest_whole(&self.folder)?;
        for refused in &refused {
            console.note(format!("skipped: {}", refused.error));
        }
        found.with_context(|| format!("there is no whole checkpoint in {}", self.folder.display()))
    }
}
