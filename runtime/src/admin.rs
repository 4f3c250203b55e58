//! A node's admin endpoint: a Unix socket that only this user can open; one JSON request a line, one JSON answer a line.
//!
//! Touches one socket file. Without the key `admin` nothing listens.

use serde::{Deserialize, Serialize};
use slowmo_actors::context::NodeContext;
use slowmo_actors::membership::MembershipMessage;
use slowmo_actors::status::{Checkpointing, Gossiping, LOSS, NodeStatus, Standing};
use slowmo_protocol::gossip_peer::Straggler;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::real;
use slowmo_protocol::time::Instant;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
/// How long the listener rests after the system refused a connection: descriptors may have run out.
const REST: Duration = Duration::from_millis(100);
/// How long the last events may take to be written.
pub const DUMP_MAX: Duration = Duration::from_secs(10);
/// How long a connection may be silent.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The exit code after a second SIGTERM, as a shell shows it for a process that SIGTERM ended.
const TERMINATED: i32 = 143;

/// What a node can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What it sees of itself and the cluster.
    Status,
    /// To hand over in the next round and leave.
    Drain,
    /// To write its last events down, if it keeps them (key `flight`).
    Dump,
    /// To take note that a node's process has ended, from who saw it end.
    Exited {
        /// Which node.
        node: u64,
    },
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// To [`Request::Status`].
    Status(Box<Report>),
    /// To [`Request::Dump`].
    Dumped {
        /// The file of the last events.
        file: PathBuf,
    },
    /// The request makes no sense.
    Refused {
        /// Why.
        error: String,
    },
}

/// A node as it sees itself and the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its id.
    pub node: u64,
    /// Where it stands: `founding`, `joining`, `member`, `leaving` or `left`.
    pub standing: String,
    /// Which model history, 32 hexadecimal digits.
    pub lineage: String,
    /// The view's number.
    pub epoch: u64,
    /// The next round.
    pub round: u64,
    /// The inner step after the last decided round.
    pub step: u64,
    /// What each of its workers computes on: `cpu`, or a GPU's number and name.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The members of the view now.
    pub members: Vec<MemberReport>,
    /// The last decided round, in three separate numbers: members, those of them alive, those of them that contributed.
    pub last_round: LastRound,
    /// Whose contributions the last decided round averaged, ascending.
    pub contributors: Vec<u64>,
    /// Shards whose slow momentum restarted at zero since the founding.
    pub momentum_lost: u64,
    /// Push-sum weight that was in no average since this node joined: of members that died or were passed over. Exact averages find
    /// it: gossip alone does not know what died with a member.
    pub push_sum_weight_lost: f64,
    /// Push-sum weight that was in an average twice: of members that were taken for dead and lived.
    pub push_sum_weight_doubled: f64,
    /// `‖x − x̄‖ / ‖x̄‖` of this node when it last contributed.
    pub disagreement: Option<f32>,
    /// What its training reported last.
    #[serde(default)]
    pub loss: Option<LossReport>,
    /// What its training reported last under names of its own, and the loss.
    #[serde(default)]
    pub measures: BTreeMap<String, MeasureReport>,
    /// How its gossip stands, if it gossips.
    pub gossip: Option<GossipReport>,
    /// What became of its parts of checkpoints, if it writes any.
    #[serde(default)]
    pub checkpoints: Option<Checkpoints>,
    /// Why no round is decided now, and what would release it.
    pub waiting_for: Option<String>,
    /// Where it serves HTTP, and its page with it (key `http`).
    #[serde(default)]
    pub http: Option<SocketAddr>,
    /// What happened last, oldest first.
    pub events: Vec<EventReport>,
}

/// What became of a node's parts of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Parts that were written.
    pub written: u64,
    /// Parts that were not: the disk failed.
    pub failed: u64,
    /// Parts that were not begun when the next came.
    pub skipped: u64,
    /// The inner step that follows the last one that was written.
    pub last_step: Option<u64>,
    /// Its bytes.
    pub last_bytes: u64,
    /// Why the last one was not written, if it was not.
    pub error: Option<String>,
    /// The inner step that follows the newest checkpoint that is whole, as this node knows.
    #[serde(default)]
    pub whole_step: Option<u64>,
    /// Checkpoints that were due since and did not become whole; the last one that was due is not counted, others may be writing it.
    #[serde(default)]
    pub not_whole: u64,
}

/// One member of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its id.
    pub node: u64,
    /// Where it listens.
    pub address: String,
    /// Its workers.
    pub devices: u16,
    /// Whether this node takes it for alive.
    pub alive: bool,
}

/// The last decided round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRound {
    /// Members of its view.
    pub members: usize,
    /// Members that were alive.
    pub alive: usize,
    /// Members whose contributions were averaged.
    pub contributors: usize,
    /// Microseconds from the moment when all contributions were on their way until the round was decided.
    pub published_us: u64,
}

/// What a training loop reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// The inner step.
    pub step: u64,
    /// The loss.
    #[serde(with = "real")]
    pub loss: f64,
}

/// What a training loop reported under a name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasureReport {
    /// The inner step.
    pub step: u64,
    /// The value.
    #[serde(with = "real")]
    pub value: f64,
}

/// A node's gossip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GossipReport {
    /// The inner step that the next mix belongs to.
    pub step: u64,
    /// Push-sum weight of the node's own numerators.
    pub weight: f64,
    /// Push-sum weight on its way to others.
    pub escrowed: f64,
    /// Peers that are late, and by how much.
    pub late: Vec<LateReport>,
}

/// A peer that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateReport {
    /// Who.
    pub node: u64,
    /// Inner steps that it is behind this node, as far as it was heard of.
    pub steps: u64,
    /// For so many milliseconds it is waited for, or done without.
    pub ms: u64,
    /// Whether gossip does without it.
    pub skipped: bool,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventReport {
    /// Microseconds since 1970.
    pub at_us: u64,
    /// What.
    pub what: String,
}

/// The open socket; removed when dropped.
#[derive(Debug)]
pub struct Endpoint {
    path: PathBuf,
    serving: AbortHandle,
}

impl Endpoint {
    /// Listens at `path`, which only this user can open, in the background. Must be called inside a tokio runtime.
    pub(crate) fn serve(path: &Path, context: Arc<NodeContext>) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let serving = tokio::spawn(accept(listener, context)).abort_handle();
        Ok(Self { path: path.to_owned(), serving })
    }
}

/// Opens a Unix socket at `path` that only this user can use. A socket that nobody serves any more, left by a process that died, is
/// replaced.
///
/// # Errors
/// Something else than a socket is there, or a living process serves it: both are left as they are. Or the system refuses.
pub fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let why = "something that is no socket is there, and was left as it is; name another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process serves it; name another path, or end that process"));
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

async fn accept(listener: UnixListener, context: Arc<NodeContext>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(permit) = Arc::clone(&free).acquire_owned().await {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::debug!(%error, "an admin connection was not accepted");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let context = Arc::clone(&context);
        tokio::spawn(async move {
            if let Err(error) = converse(connection, &context).await {
                tracing::debug!(%error, "an admin connection ended");
            }
            drop(permit);
        });
    }
}

async fn converse(mut connection: UnixStream, context: &NodeContext) -> io::Result<()> {
    let (reading, mut writing) = connection.split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = String::new();
        let read = timeout(SILENCE_MAX, (&mut reading).take(REQUEST_BYTES_MAX).read_line(&mut line)).await;
        if read.map_err(io::Error::other)?? == 0 {
            return Ok(());
        }
        let mut answer = serde_json::to_string(&answer(&line, context).await).map_err(io::Error::other)?;
        answer.push('\n');
        writing.write_all(answer.as_bytes()).await?;
    }
}

async fn answer(line: &str, context: &NodeContext) -> Answer {
    let request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(error) => return Answer::Refused { error: error.to_string() },
    };
    match request {
        Request::Status => return Answer::Status(Box::new(report(context))),
        Request::Drain => context.actors.tell_membership(MembershipMessage::Drain),
        Request::Dump => {
            return match dump(context, "asked for").await {
                Ok(file) => Answer::Dumped { file },
                Err(error) => Answer::Refused { error },
            };
        }
        Request::Exited { node } => context.actors.tell_membership(MembershipMessage::Exited(NodeId(node))),
    }
    Answer::Done
}

/// Writes the last events down; the file they are in.
pub(crate) async fn dump(context: &NodeContext, why: &str) -> Result<PathBuf, String> {
    let Some(written) = context.recorder.dump(why) else {
        return Err("this node keeps no events for that: give flight, a folder".to_owned());
    };
    let written = tokio::task::spawn_blocking(move || written.recv_timeout(DUMP_MAX)).await;
    let Ok(Ok(written)) = written else { return Err(format!("the last events were not written within {} s", DUMP_MAX.as_secs())) };
    written
}

/// What the node sees now.
pub(crate) fn report(context: &NodeContext) -> Report {
    let status: NodeStatus = context.status.read();
    let standing = match status.standing {
        Standing::Founding if !status.members.is_empty() => "member",
        Standing::Founding if context.settings.join => "joining",
        Standing::Founding => "founding",
        Standing::Joining => "joining",
        Standing::Member => "member",
        Standing::Leaving => "leaving",
        Standing::Left => "left",
    };
    let member = |member: &slowmo_protocol::view::Member| MemberReport {
        node: member.id.0,
        address: member.address.to_string(),
        devices: member.devices,
        alive: !status.dead.contains(&member.id),
    };
    Report {
        node: context.settings.identity.node.0,
        standing: standing.to_owned(),
        lineage: format!("{:032x}", status.lineage.0),
        epoch: status.epoch.0,
        round: status.round.0,
        step: status.step.0,
        devices: status.devices.clone(),
        members: status.members.iter().map(member).collect(),
        last_round: LastRound {
            members: status.members_then,
            alive: status.alive_then,
            contributors: status.contributors.len(),
            published_us: status.published.0,
        },
        contributors: status.contributors.iter().map(|node| node.0).collect(),
        momentum_lost: status.momentum_lost,
        push_sum_weight_lost: status.push_sum_weight_lost,
        push_sum_weight_doubled: status.push_sum_weight_doubled,
        disagreement: status.disagreement,
        loss: status.measures.get(LOSS).map(|(step, loss)| LossReport { step: step.0, loss: *loss }),
        measures: status
            .measures
            .iter()
            .map(|(name, (step, value))| (name.clone(), MeasureReport { step: step.0, value: *value }))
            .collect(),
        http: context.watching.served_at(),
        gossip: status.gossip.map(|gossip| gossip_report(&gossip, context.clock.now())),
        checkpoints: status.checkpoints.map(|told| {
            let Checkpointing { written, failed, skipped, last_step, last_bytes, error, whole_step, not_whole } = told;
            Checkpoints { written, failed, skipped, last_step, last_bytes, error, whole_step, not_whole }
        }),
        waiting_for: status.waiting_for.or(status.waiting_to_join),
        events: status.events.into_iter().map(|event| EventReport { at_us: event.at_us, what: event.what }).collect(),
    }
}

fn gossip_report(gossip: &Gossiping, now: Instant) -> GossipReport {
    let late = |straggler: &Straggler| LateReport {
        node: straggler.node.0,
        steps: straggler.steps,
        ms: now.since(straggler.since).as_millis(),
        skipped: straggler.skipped,
    };
    let late = gossip.stragglers.iter().map(late).collect();
    GossipReport { step: gossip.step.0, weight: gossip.weight, escrowed: gossip.escrowed, late }
}

/// Writes the last events down at every SIGUSR1.
pub(crate) async fn dump_on_sigusr1(context: Arc<NodeContext>) {
    let Ok(mut signals) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1()) else { return };
    while signals.recv().await.is_some() {
        if context.recorder.dump("SIGUSR1").is_none() {
            tracing::warn!("SIGUSR1: this node keeps no events for that: give flight, a folder");
        }
    }
}

/// Drains the node at the first SIGTERM; the second one ends the process at once.
pub(crate) async fn drain_on_sigterm(context: Arc<NodeContext>) {
    let Ok(mut signals) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) else { return };
    if signals.recv().await.is_none() {
        return;
    }
    if context.status.read().members.is_empty() {
        // Nothing was decided here yet: there is nothing to hand over.
        std::process::exit(TERMINATED);
    }
    tracing::info!("SIGTERM: this node hands over and leaves");
    context.actors.tell_membership(MembershipMessage::Drain);
    signals.recv().await;
    std::process::exit(TERMINATED);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("slowmo-admin-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_in_the_way_is_left_as_it_is() {
        let folder = folder("file");
        let path = folder.join("model.bin");
        std::fs::write(&path, "weights").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "weights");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_served_socket_is_not_taken_away_and_a_left_one_is_replaced() {
        let folder = folder("socket");
        let path = folder.join("node");
        let served = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(served);
        bind(&path).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
