//! A node's admin endpoint: a Unix socket that serves only this user and root; each line is one
//! JSON request or one JSON answer.
//!
//! It opens before anything else of the node, so that a node whose start takes long (it verifies a
//! checkpoint) says so. Touches one socket file. Without the key `admin` nothing listens.

use crate::cluster::{ClusterStatus, cluster};
use crate::orders::{ask_for_checkpoint, set};
use crate::status::{Status, starting, status};
use crate::telemetry::Allowance;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slowmo_actors::context::NodeContext;
use slowmo_actors::messages::CoordinatorMessage;
use slowmo_actors::status::StatusBoard;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::{liveness, membership};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Longest request, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 4096;
/// Connections served at one time; more wait.
pub const CONNECTIONS_MAX: usize = 16;
/// Pause of the listener after the system refused a connection: descriptors may have run out.
const REST: Duration = Duration::from_millis(100);
/// Longest time for writing the last events.
pub const DUMP_MAX: Duration = Duration::from_secs(10);
/// Requests that are answered immediately after a pause; launchers, probes and people ask far less.
pub const REQUESTS_BURST_MAX: u32 = 1000;
/// Requests that are answered in each further second; see [`REQUESTS_BURST_MAX`].
pub const REQUESTS_PER_SECOND_MAX: u32 = 200;
/// Longest silence on a connection.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The exit code when SIGTERM ends the process at once, as a shell shows it for a process that
/// SIGTERM ended.
const TERMINATED: i32 = 143;

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Asks for the node's view of itself and the cluster.
    Status,
    /// Asks for the same, and for what the other members say of themselves.
    Cluster,
    /// Orders the node to hand over in the next round and leave.
    Drain,
    /// Orders a checkpoint of the cluster's state after the next outer round that has not begun.
    Checkpoint,
    /// Orders another value of a setting for the whole cluster, from the next round on.
    Set {
        /// The configuration's key.
        key: String,
        /// The value, as the configuration writes it.
        value: String,
    },
    /// Orders the node to write its last events to disk, if it keeps them (key `flight`).
    Dump,
    /// Without `history`: asks which history would continue here without a quorum. With the history
    /// of that answer: orders the node to continue with it.
    Recover {
        /// The history, 32 hexadecimal digits.
        history: Option<String>,
    },
    /// Reports that a node's process has ended; sent by whoever saw it end.
    Exited {
        /// The node whose process has ended.
        node: u64,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// The answer to [`Request::Status`].
    Status(Box<Status>),
    /// The answer to [`Request::Cluster`].
    Cluster(Box<ClusterStatus>),
    /// The answer to [`Request::Dump`].
    Dumped {
        /// The file that holds the last events.
        file: PathBuf,
    },
    /// The answer to [`Request::Recover`].
    Recovers(RecoveryReport),
    /// The request is refused.
    Refused {
        /// The reason.
        error: String,
    },
}

/// The history that continues without a quorum if an operator orders it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// The history, 32 hexadecimal digits.
    pub history: String,
    /// The next round of the history.
    pub round: u64,
    /// The members that it continues with, ascending.
    pub goes_on: Vec<u64>,
    /// The voters that it continues without, ascending.
    pub missing: Vec<u64>,
    /// Whether an operator has ordered it.
    pub ordered: bool,
}

/// The node that an endpoint answers for.
struct Answering {
    node: NodeId,
    max_nodes: usize,
    board: Arc<StatusBoard>,
    /// Set once the node runs.
    context: OnceLock<Arc<NodeContext>>,
}

/// The open socket; dropping it removes the socket file.
pub struct Endpoint {
    path: PathBuf,
    serving: AbortHandle,
    answering: Arc<Answering>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Listens at `path`, which only this user can open, in the background, for a node that starts
    /// and says so on `board`. Must be called inside a tokio runtime.
    pub(crate) fn serve(
        path: &Path,
        (node, max_nodes): (NodeId, usize),
        board: Arc<StatusBoard>,
    ) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let answering = Arc::new(Answering {
            node,
            max_nodes,
            board,
            context: OnceLock::new(),
        });
        let serving =
            tokio::spawn(accept(listener, Arc::clone(&answering), may_ask)).abort_handle();
        Ok(Self {
            path: path.to_owned(),
            serving,
            answering,
        })
    }

    /// Answers for the running node from now on.
    pub(crate) fn runs(&self, context: Arc<NodeContext>) {
        // An endpoint belongs to one node.
        let _ = self.answering.context.set(context);
    }
}

/// Opens a Unix socket at `path` that only this user can use. A socket that no process serves any
/// more, left by a process that died, is replaced.
///
/// # Errors
/// The path is not a socket, or a living process serves it: both are left as they are. Or the
/// system refuses.
pub fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let why =
                "something that is no socket is there, and was left as it is; name another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another process serves it; name another path, or end that process",
            ));
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.serving.abort();
        // The folder may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether this user is served: the one as whom this process runs, or root, who can be anybody.
fn may_ask(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user == 0
}

/// Serves the users that `may_ask`. The mode of the socket's file keeps others out as well, but it
/// is set only after the socket is open.
async fn accept(listener: UnixListener, answering: Arc<Answering>, may_ask: fn(u32) -> bool) {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let allowance = Allowance::new(
        (REQUESTS_BURST_MAX, REQUESTS_PER_SECOND_MAX),
        std::time::Instant::now(),
    );
    let allowance = Arc::new(Mutex::new(allowance));
    while let Ok(permit) = Arc::clone(&free).acquire_owned().await {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::debug!(%error, "an admin connection was not accepted");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        if !connection.peer_cred().is_ok_and(|peer| may_ask(peer.uid())) {
            tracing::debug!("an admin connection of another user was refused");
            continue;
        }
        let answering = Arc::clone(&answering);
        let allowance = Arc::clone(&allowance);
        tokio::spawn(async move {
            if let Err(error) = converse(connection, &answering, &allowance).await {
                tracing::debug!(%error, "an admin connection ended");
            }
            drop(permit);
        });
    }
}

async fn converse(
    mut connection: UnixStream,
    answering: &Answering,
    allowance: &Mutex<Allowance>,
) -> io::Result<()> {
    let (reading, mut writing) = connection.split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = String::new();
        let read = timeout(
            SILENCE_MAX,
            (&mut reading).take(REQUEST_BYTES_MAX).read_line(&mut line),
        )
        .await;
        if read.map_err(io::Error::other)?? == 0 {
            return Ok(());
        }
        let allowed = allowance.lock().take(std::time::Instant::now());
        let answer = if allowed {
            answer(&line, answering).await
        } else {
            Answer::Refused {
                error: "asked too often: wait a second".to_owned(),
            }
        };
        let mut answer = serde_json::to_string(&answer).map_err(io::Error::other)?;
        answer.push('\n');
        writing.write_all(answer.as_bytes()).await?;
    }
}

async fn answer(line: &str, answering: &Answering) -> Answer {
    let request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(error) => {
            return Answer::Refused {
                error: error.to_string(),
            };
        }
    };
    let Some(context) = answering.context.get() else {
        return answering.while_it_starts(&request);
    };
    match request {
        Request::Status => return Answer::Status(Box::new(status(context))),
        Request::Cluster => return Answer::Cluster(Box::new(cluster(context).await)),
        Request::Drain => {
            tracing::warn!("an order over the admin socket: drain");
            context.actors.tell(membership::In::Drain)
        }
        Request::Checkpoint => match ask_for_checkpoint(context) {
            Ok(()) => tracing::warn!("an order over the admin socket: checkpoint"),
            Err(error) => {
                tracing::warn!(%error, "an order over the admin socket was refused: checkpoint");
                return Answer::Refused {
                    error: error.to_string(),
                };
            }
        },
        Request::Set { key, value } => match set(context, &key, &value) {
            Ok(()) => tracing::warn!(key, value, "an order over the admin socket: set"),
            Err(error) => {
                tracing::warn!(key, value, %error, "an order over the admin socket was refused: set");
                return Answer::Refused {
                    error: error.to_string(),
                };
            }
        },
        Request::Dump => {
            return match dump(context, "asked for").await {
                Ok(file) => Answer::Dumped { file },
                Err(error) => Answer::Refused { error },
            };
        }
        Request::Recover { history } => return recover(history.as_deref(), context).await,
        Request::Exited { node } => context
            .actors
            .tell(liveness::In::Exited(NodeId(node), None)),
    }
    Answer::Done
}

impl Answering {
    /// The answer of a node that cannot carry out anything yet.
    fn while_it_starts(&self, request: &Request) -> Answer {
        let status = self.board.read();
        let report = starting(self.node.0, self.max_nodes, &status);
        match request {
            Request::Status => Answer::Status(Box::new(report)),
            Request::Cluster => Answer::Cluster(Box::new(ClusterStatus {
                report,
                nodes: Vec::new(),
            })),
            // A node that starts knows nobody yet.
            Request::Exited { .. } => Answer::Done,
            Request::Drain
            | Request::Checkpoint
            | Request::Set { .. }
            | Request::Dump
            | Request::Recover { .. } => {
                let what = status.starting.unwrap_or_default();
                Answer::Refused {
                    error: format!("this node is starting ({what}): ask again, or end its process"),
                }
            }
        }
    }
}

/// Reports what would continue without a quorum, or orders it to continue.
async fn recover(history: Option<&str>, context: &NodeContext) -> Answer {
    let refused = |error: String| Answer::Refused { error };
    let (ask, answer) = tokio::sync::oneshot::channel();
    context
        .actors
        .tell_coordinator(CoordinatorMessage::Recover(None, ask));
    let recovery = match answer.await {
        Ok(Ok(recovery)) => recovery,
        Ok(Err(error)) => return refused(error.to_string()),
        Err(_) => return refused("the node has stopped".to_owned()),
    };
    let named = format!("{:032x}", recovery.lineage.0);
    if let Some(history) = history {
        if history != named {
            return refused(format!(
                "this node stands in {named}, not in {history}: nothing was changed"
            ));
        }
        let (order, ordered) = tokio::sync::oneshot::channel();
        context
            .actors
            .tell_coordinator(CoordinatorMessage::Recover(Some(recovery.lineage), order));
        match ordered.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return refused(error.to_string()),
            Err(_) => return refused("the node has stopped".to_owned()),
        }
    }
    let ids = |nodes: Vec<NodeId>| nodes.into_iter().map(|node| node.0).collect();
    Answer::Recovers(RecoveryReport {
        ordered: history.is_some(),
        history: named,
        round: recovery.round.0,
        goes_on: ids(recovery.goes_on),
        missing: ids(recovery.missing),
    })
}

/// Writes the last events to disk; returns their file.
pub(crate) async fn dump(context: &NodeContext, why: &str) -> Result<PathBuf, String> {
    let Some(written) = context.recorder.dump(why) else {
        return Err("this node has no flight recorder: set flight to a folder".to_owned());
    };
    let written = tokio::task::spawn_blocking(move || written.recv_timeout(DUMP_MAX)).await;
    let Ok(Ok(written)) = written else {
        return Err(format!(
            "the last events were not written within {} s",
            DUMP_MAX.as_secs()
        ));
    };
    written
}

/// Writes the last events to disk at every SIGUSR1.
pub(crate) async fn dump_on_sigusr1(context: Arc<NodeContext>) {
    let Ok(mut signals) =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1())
    else {
        return;
    };
    while signals.recv().await.is_some() {
        if context.recorder.dump("SIGUSR1").is_none() {
            tracing::warn!("SIGUSR1: this node has no flight recorder: set flight to a folder");
        }
    }
}

/// Drains the node at the first SIGTERM; the second one ends the process at once. So does the first
/// one before `synchronize` was called: the training does not look yet whether it is to end.
pub(crate) async fn drain_on_sigterm(context: Arc<NodeContext>) {
    let Ok(mut signals) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
    else {
        return;
    };
    if signals.recv().await.is_none() {
        return;
    }
    if !context.status.read().synchronizes {
        std::process::exit(TERMINATED);
    }
    tracing::info!("SIGTERM: this node hands over and leaves");
    context.actors.tell(membership::In::Drain);
    signals.recv().await;
    std::process::exit(TERMINATED);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("slowmo-admin-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_in_the_way_is_left_as_it_is() {
        let folder = folder("file");
        let path = folder.join("model.bin");
        std::fs::write(&path, "weights").unwrap();
        assert_eq!(
            bind(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "weights");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_served_socket_is_not_taken_away_and_a_left_one_is_replaced() {
        let folder = folder("socket");
        let path = folder.join("node");
        let served = bind(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(served);
        bind(&path).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn this_user_and_root_may_ask() {
        let own = rustix::process::geteuid().as_raw();
        assert!(may_ask(own) && may_ask(0));
        let others: Vec<u32> = (1..4).filter(|user| *user != own).collect();
        assert!(others.iter().all(|user| !may_ask(*user)));
    }

    /// The answer that a connection gets from an endpoint which serves these users.
    async fn told(path: &Path, may_ask: fn(u32) -> bool) -> String {
        let listener = bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let answering = Arc::new(Answering {
            node: NodeId(1),
            max_nodes: 4,
            board: StatusBoard::new(),
            context: OnceLock::new(),
        });
        let listener = UnixListener::from_std(listener).unwrap();
        let serving = tokio::spawn(accept(listener, answering, may_ask));
        let mut connection = UnixStream::connect(path).await.unwrap();
        // Who is refused may find the socket closed already.
        let _ = connection.write_all(b"{\"request\":\"status\"}\n").await;
        let _ = connection.shutdown().await;
        let mut text = String::new();
        let _ = connection.read_to_string(&mut text).await;
        serving.abort();
        text
    }

    #[tokio::test]
    async fn another_user_is_told_nothing() {
        let folder = folder("user");
        let own = told(&folder.join("own"), may_ask).await;
        assert!(own.starts_with("{\"answer\":\"status\""), "{own}");
        assert_eq!(told(&folder.join("other"), |_| false).await, "");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
