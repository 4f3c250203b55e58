//! Running jobs: how a launcher is found and asked by the other commands.
//!
//! Each launcher listens on a Unix socket in a folder that only this user can enter; one JSON
//! request a line, one JSON answer a line. Touches that folder, and the admin sockets of the job's
//! nodes.

mod folder;
mod node;
mod server;

pub use folder::{JobError, find, socket_of};
pub use node::{NodeError, ask, ask_at};
pub use server::{Asked, Server};

use serde::{Deserialize, Serialize};
use slowmo::admin::Report;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest request or answer, in bytes.
pub const MESSAGE_BYTES_MAX: u64 = 8 << 20;
/// How long an answer may take.
pub const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What a launcher can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What every node sees.
    Status,
    /// How many nodes run that do not leave.
    Count,
    /// The token that orders to the nodes' pages must bring.
    Token,
    /// To run so many nodes: further ones join, the highest ids drain.
    Scale {
        /// How many.
        nodes: usize,
    },
    /// To let a node hand over and leave.
    Drain {
        /// Which.
        node: usize,
    },
    /// To kill a node's process with SIGKILL.
    Kill {
        /// Which.
        node: usize,
    },
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status {
        /// The job.
        job: String,
        /// Its nodes, ascending; `None` where a node does not answer (yet).
        nodes: Vec<(usize, Option<Report>)>,
    },
    /// To [`Request::Count`].
    Count {
        /// Node processes.
        nodes: usize,
    },
    /// To [`Request::Token`]; nothing where the nodes serve no pages.
    Token {
        /// The token.
        token: Option<String>,
    },
    /// Nodes that were started, drained or killed.
    Changed {
        /// Started.
        joined: Vec<usize>,
        /// Told to hand over.
        drained: Vec<usize>,
        /// Killed.
        killed: Vec<usize>,
    },
    /// It cannot be done; nothing was changed.
    Refused {
        /// Why, and what to do.
        error: String,
    },
}

/// Asks the launcher behind `socket`.
///
/// # Errors
/// It does not answer.
pub fn request(socket: &Path, request: Request) -> std::io::Result<Answer> {
    exchange(socket, &request, ANSWER_MAX)
}

/// One line to a socket, one line back.
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
