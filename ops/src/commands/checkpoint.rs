//! `slowmo checkpoint`: lists checkpoints, verifies that they are whole, and exports the model as
//! one file for other frameworks.

use crate::console::{Console, Told, table};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use slowmo::internal::checkpoints::{Listed, Name, list, newest_whole};
use slowmo::{Checkpoint, export};
use std::path::{Path, PathBuf};

/// Inspect, verify or export the checkpoints of a training.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Show the contents of a folder of checkpoints, or of one of them. Reads manifests only.
    Inspect(Inspect),
    /// Read every value and compare it with its digest. Exits with 1 if a checkpoint is not whole.
    Verify(Verify),
    /// Write the model's parameters and buffers into one safetensors file, which candle and PyTorch
    /// load.
    Export(Export),
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
