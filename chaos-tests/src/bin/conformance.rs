//! `conformance DIR [--transport quic|memory] [--seed S]`: runs every recorded trajectory of a
//! folder through the real runtime and prints one line `NAME MAX_ABS_ERROR` for each. Exits 1 if a
//! value differs by more than 1e-5 or a file cannot be run.

use clap::{Parser, ValueEnum};
use slowmo_chaos::cluster::Link;
use slowmo_chaos::conformance::{check, files};
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs recorded trajectories through the real runtime and compares every value.
#[derive(Parser)]
struct Arguments {
    /// Folder with trajectory files (.json).
    folder: PathBuf,
    /// Link between the nodes.
    #[arg(long, value_enum, default_value = "quic")]
    transport: Transport,
    /// Delays every arrival as this seed says (memory only).
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Transport {
    Quic,
    Memory,
}

fn main() -> anyhow::Result<ExitCode> {
    let Arguments {
        folder,
        transport,
        seed,
    } = Arguments::parse();
    let link = match transport {
        Transport::Quic => Link::Quic,
        Transport::Memory => Link::Memory(seed),
    };
    let files = files(&folder).map_err(|error| {
        anyhow::anyhow!(
            "{}: {error}; name a folder with trajectory files",
            folder.display()
        )
    })?;
    anyhow::ensure!(
        !files.is_empty(),
        "{} holds no .json file: name a folder with trajectory files",
        folder.display()
    );
    let mut passed = true;
    for file in files {
        let verdict = check(&file, link);
        passed &= verdict.passes();
        match verdict.result {
            Ok(error) => println!("{} {error:e}", verdict.name),
            // An error does not repeat its causes: `#` prints them all.
            Err(failure) => println!("{} failed: {:#}", verdict.name, anyhow::Error::new(failure)),
        }
    }
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
