//! How the processes of a raw transfer find each other: each writes its address into the shared
//! folder.

use super::RawNodeError;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process waits for the others.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How often it looks.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Writes this process's address; a reader never sees half of it.
pub(super) fn publish(folder: &Path, node: usize, address: SocketAddr) -> Result<(), RawNodeError> {
    let unfinished = folder.join(format!("raw-{node}.part"));
    let io = |source| RawNodeError::Io {
        doing: "writing the address",
        source,
    };
    std::fs::write(&unfinished, address.to_string()).map_err(io)?;
    std::fs::rename(&unfinished, file_of(folder, node)).map_err(io)
}

/// The address of `node`, as soon as it is there.
pub(super) fn wait_for(folder: &Path, node: usize) -> Result<SocketAddr, RawNodeError> {
    wait_for_file(&file_of(folder, node), |bytes| {
        std::str::from_utf8(bytes).ok()?.parse().ok()
    })
}

/// What `parse` makes of the file, as soon as it makes something of it.
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
