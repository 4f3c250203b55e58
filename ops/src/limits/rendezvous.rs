//! Discovery between the processes of a raw transfer: each writes its address into the shared
//! folder, and what the others must know to trust it.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that a process waits for the others.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Polling period of that wait.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Description that a process gives of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Place {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its throwaway certificate; empty where the transport has none.
    pub certificate: Vec<u8>,
}

/// Writes this process's place atomically: a reader never sees a partial file.
pub(super) fn publish(folder: &Path, node: usize, place: &Place) -> anyhow::Result<()> {
    let unfinished = folder.join(format!("raw-{node}.part"));
    std::fs::write(&unfinished, serde_json::to_vec(place)?)
        .and_then(|()| std::fs::rename(&unfinished, file_of(folder, node)))
        .context("writing the address")
}

/// Waits for the place of `node`.
pub(super) fn wait_for(folder: &Path, node: usize) -> anyhow::Result<Place> {
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until {
        if let Ok(bytes) = std::fs::read(file_of(folder, node)) {
            return Ok(serde_json::from_slice(&bytes)?);
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    bail!("process {node} did not appear in time")
}

fn file_of(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("raw-{node}.json"))
}
