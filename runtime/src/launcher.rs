//! The launcher that started this process. When it is gone this process ends, so that no training
//! process is ever left behind. The launcher also starts further nodes. It takes part in no
//! decision of the cluster.

use crate::admin::RecoveryReport;
use crate::status::Status;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// The environment variable with the launcher's process id, set for the processes that it starts.
pub const LAUNCHER_VARIABLE: &str = "SLOWMO_LAUNCHER_PID";
/// The environment variable with the number of nodes that the launcher started on this machine.
pub const NODES_VARIABLE: &str = "SLOWMO_LAUNCHER_NODES";
/// The variable in which PyTorch's launchers tell the number of processes on this machine.
const TORCHRUN_VARIABLE: &str = "LOCAL_WORLD_SIZE";
/// The environment variable with the path of the socket on which the launcher takes orders.
pub const SOCKET_VARIABLE: &str = "SLOWMO_LAUNCHER_SOCKET";
/// Longest answer of a launcher, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 16;
/// Longest time for an answer of the launcher.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Interval at which the launcher is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The exit code of a process whose launcher is gone.
const ORPHANED: i32 = 86;

/// Whether a launcher started this process.
pub(crate) fn has_started_this() -> bool {
    std::env::var_os(LAUNCHER_VARIABLE).is_some()
}

/// Processes that were started on this machine together with this one, itself included.
pub(crate) fn processes_here() -> usize {
    [NODES_VARIABLE, TORCHRUN_VARIABLE]
        .iter()
        .filter_map(|name| std::env::var(name).ok()?.parse().ok())
        .find(|count| *count > 0)
        .unwrap_or(1)
}

/// Watches the launcher that [`LAUNCHER_VARIABLE`] names, if any: when it is gone, this process
/// ends with exit code 86. A process between launcher and node (a shell script) is allowed; the
/// node also ends when that one dies. Every [`crate::Runtime`] calls it; calling it again does
/// nothing. Starts one thread.
pub fn watch() {
    static WATCHING: Once = Once::new();
    let Some(launcher) = std::env::var(LAUNCHER_VARIABLE)
        .ok()
        .and_then(|text| text.parse::<u32>().ok())
    else {
        return;
    };
    WATCHING.call_once(|| {
        let parent_at_start = parent_id();
        let watching = std::thread::Builder::new()
            .name("slowmo-launcher".to_owned())
            .spawn(move || {
                while !launcher_is_gone(launcher, parent_at_start) {
                    std::thread::sleep(LOOK_INTERVAL);
                }
                // Standard error may be a broken pipe by now: nothing may stop the exit.
                _ = writeln!(
                    std::io::stderr(),
                    "the launcher (process {launcher}) is gone: this process ends"
                );
                std::process::exit(ORPHANED);
            });
        // Without the thread the node still trains; it would only outlive a launcher that was
        // killed.
        if let Err(error) = watching {
            tracing::warn!(%error, "the launcher is not watched");
        }
    });
}

fn launcher_is_gone(launcher: u32, parent_at_start: u32) -> bool {
    let parent = parent_id();
    if parent == launcher {
        return false;
    }
    parent != parent_at_start
        || (cfg!(target_os = "linux") && !PathBuf::from(format!("/proc/{launcher}")).exists())
}

/// The reason why the number of nodes was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    /// There is no launcher that could start nodes here.
    #[error("no launcher started this node: start another node by hand, or drain one")]
    NoLauncher,
    /// The launcher refused.
    #[error("{0}")]
    Refused(String),
    /// The launcher does not answer.
    #[error("the launcher does not answer ({0}); it may have done it nevertheless")]
    Silent(String),
}

/// A request to a launcher: a line of JSON on its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Reports of all nodes.
    Status,
    /// Number of running nodes that are not leaving.
    Count,
    /// The token that orders to the nodes' pages must carry.
    Token,
    /// Scale to this many nodes: new ones join, or the highest ids drain.
    Scale {
        /// Target number of nodes.
        nodes: usize,
    },
    /// Let a node hand over and leave.
    Drain {
        /// Id of the node.
        node: usize,
    },
    /// Let the cluster make a checkpoint after the next outer round.
    Checkpoint,
    /// Let the cluster use another value of a setting from the next round on.
    Set {
        /// The configuration's key.
        key: String,
        /// The value, as the configuration writes it.
        value: String,
    },
    /// Show which history continues without a quorum, or let it continue.
    Recover {
        /// The history that continues; `None` changes nothing.
        history: Option<String>,
    },
    /// Kill a node's process with SIGKILL.
    Kill {
        /// Id of the node.
        node: usize,
    },
}

/// The launcher's answer: a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Answer to [`Request::Status`].
    Status {
        /// Name of the job.
        job: String,
        /// Its nodes in ascending order; `None` for a node that does not answer (yet).
        nodes: Vec<(usize, Option<Status>)>,
    },
    /// Answer to [`Request::Count`].
    Count {
        /// Number of node processes.
        nodes: usize,
    },
    /// Answer to [`Request::Token`].
    Token {
        /// The token; `None` where the nodes serve no pages.
        token: Option<String>,
    },
    /// Answer to [`Request::Recover`].
    Recovers {
        /// The node that was asked: the member that is furthest ahead.
        node: usize,
        /// What it continues.
        report: RecoveryReport,
    },
    /// Answer to the other requests: nodes that were started, drained or killed.
    Changed {
        /// Nodes that were started.
        joined: Vec<usize>,
        /// Nodes that were told to hand over.
        drained: Vec<usize>,
        /// Nodes that were killed.
        killed: Vec<usize>,
    },
    /// The request was refused and nothing was changed.
    Refused {
        /// The reason, and the remedy.
        error: String,
    },
}

/// The socket of this process's launcher.
pub(crate) fn socket() -> Option<PathBuf> {
    std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from)
}

/// Asks the launcher to run this many nodes: it starts further ones, or drains those with the
/// highest ids. Returns a readable description of what it did.
pub(crate) async fn scale(nodes: usize) -> Result<String, ScaleError> {
    match ask(&Request::Scale { nodes }).await? {
        Answer::Changed {
            joined, drained, ..
        } if joined.is_empty() && drained.is_empty() => Ok(format!("{nodes} nodes run already")),
        Answer::Changed {
            joined, drained, ..
        } if drained.is_empty() => Ok(format!("nodes {joined:?} are being started")),
        Answer::Changed { drained, .. } => Ok(format!("nodes {drained:?} hand over and leave")),
        Answer::Refused { error } => Err(ScaleError::Refused(error)),
        _ => Err(ScaleError::Silent("it answered something else".to_owned())),
    }
}

/// Asks the launcher to drain one of its nodes, so that it knows which one leaves; refused if it
/// has no such node.
pub(crate) async fn drain(node: u64) -> Result<(), ScaleError> {
    let Ok(node) = usize::try_from(node) else {
        return Err(ScaleError::Refused(format!("it started no node {node}")));
    };
    match ask(&Request::Drain { node }).await? {
        Answer::Refused { error } => Err(ScaleError::Refused(error)),
        _ => Ok(()),
    }
}

/// Number of nodes that the launcher runs and that are not leaving, if it tells.
pub(crate) async fn count() -> Option<usize> {
    match ask(&Request::Count).await {
        Ok(Answer::Count { nodes }) => Some(nodes),
        _ => None,
    }
}

async fn ask(request: &Request) -> Result<Answer, ScaleError> {
    let socket = socket().ok_or(ScaleError::NoLauncher)?;
    let answer = tokio::time::timeout(ANSWER_MAX, exchange(socket, request)).await;
    let silent = |error: &dyn std::fmt::Display| ScaleError::Silent(error.to_string());
    answer
        .map_err(|error| silent(&error))?
        .map_err(|error| silent(&error))
}

async fn exchange(socket: PathBuf, request: &Request) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(socket).await?;
    let line = serde_json::to_string(request)? + "\n";
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX))
        .read_line(&mut answer)
        .await?;
    Ok(serde_json::from_str(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_that_changed_or_a_launcher_that_ended_is_noticed() {
        let parent = parent_id();
        assert!(!launcher_is_gone(parent, parent));
        assert!(
            !launcher_is_gone(std::process::id(), parent),
            "a process in between is allowed"
        );
        assert!(
            launcher_is_gone(std::process::id(), parent + 1),
            "the parent changed"
        );
        #[cfg(target_os = "linux")]
        assert!(
            launcher_is_gone(u32::MAX, parent),
            "the launcher was gone before this process looked"
        );
    }
}
