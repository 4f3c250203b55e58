//! Discovery between the processes of a raw transfer: each writes its address into the shared
//! folder.

use super::RawNodeError;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that a process waits for the others.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Polling period of that wait.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Writes this process's address atomically: a reader never sees a partial file.
pub(super) fn publish(folder: &Path, node: usize, address: SocketAddr) -> Result<(), RawNodeError> {
    let unfinished = folder.join(format!("raw-{node}.part"));
    let io = |source| RawNodeError::Io {
        doing: "writing the address",
        source,
    };
    std::fs::write(&unfinished, address.to_string()).map_err(io)?;
    std::fs::rename(&unfinished, file_of(folder, node)).map_err(io)
}

/// Waits for the address of `node` and returns it.
pub(super) fn wait_for(folder: &Path, node: usize) -> Result<SocketAddr, RawNodeError> {
    wait_for_file(&file_of(folder, node), |bytes| {
        std::str::from_utf8(bytes).ok()?.parse().ok()
    })
}

/// Polls the file until `parse` returns a value, and returns that value.
pub(super) fn wait_for_file<T>(
    file: &Path,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, RawNodeError> {
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until {
        if let Some(found) = std::fs::read(file).ok().and_then(|bytes| parse(&bytes)) {
            return Ok(found);
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    Err(RawNodeError::Missing {
        found: 0,
        expected: 1,
    })
}

fn file_of(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("raw-{node}.address"))
}
