//! Running jobs: how the other commands find a launcher and send it requests.
//!
//! Each launcher listens on a Unix socket in a folder that only this user can enter; one JSON
//! request per line, one JSON answer per line. Touches that folder, and the admin sockets of the
//! job's nodes.

mod folder;
mod node;
mod private;
mod server;

pub use folder::{JobError, find, open};
pub use node::{NodeError, ask, ask_at, report};
pub use private::PrivateFolder;
pub use server::{Asked, Server};
pub use slowmo::internal::launcher::{Answer, Request};

use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest request or answer, in bytes.
pub const MESSAGE_BYTES_MAX: u64 = 8 << 20;
/// Longest time that an answer may take.
pub const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Sends a request to the launcher behind `socket`.
///
/// # Errors
/// The launcher does not answer.
pub fn request(socket: &Path, request: Request) -> std::io::Result<Answer> {
    exchange(socket, &request, ANSWER_MAX)
}

/// Writes one line to a socket and reads one line back.
fn exchange<A: for<'a> Deserialize<'a>>(
    socket: &Path,
    message: &impl Serialize,
    answer_max: Duration,
) -> std::io::Result<A> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(answer_max))?;
    stream.set_write_timeout(Some(answer_max))?;
    writeln!(stream, "{}", serde_json::to_string(message)?)?;
    let mut line = String::new();
    let read = BufReader::new(stream.take(MESSAGE_BYTES_MAX)).read_line(&mut line);
    read.map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            std::io::Error::other(format!("no answer within {} s", answer_max.as_secs()))
        }
        _ => error,
    })?;
    serde_json::from_str(&line)
        .map_err(|error| std::io::Error::other(format!("not an answer of this version: {error}")))
}
