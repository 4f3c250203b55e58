//! Error types, one enum for each operation. Each error says what was left unchanged and what to do
//! next. An error whose text contains that of its cause has no source, because programs that print
//! the chain of sources would show the cause twice.

use crate::checkpoints::CheckpointError;
use crate::config::ConfigError;
use crate::device::DeviceError;
use crate::discovery::slurm::SlurmError;
use crate::printable::printable;
use crate::sampler::SamplerError;
use crate::telemetry::{AccessError, HttpError};
use crate::tensors::{FreezeError, TensorError};
use crate::transport::quic::{BindError, IdentityError};
use slowmo_actors::ExchangeError;
use slowmo_actors::ports::device::CollectiveError;
use slowmo_actors::ports::discovery::DiscoveryError;
use slowmo_protocol::wire::{MEASURE_NAME_BYTES_MAX, MEASURES_MAX};
use std::path::PathBuf;

/// The reason why a node did not start. Nothing runs and nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The admin socket could not be opened.
    #[error(
        "the admin socket {} cannot be opened ({error}); name a path in a folder that this user \
         may write to",
        path.display()
    )]
    Admin {
        /// The path of key `admin`.
        path: std::path::PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The folder of traces cannot be written to.
    #[error(
        "no trace can be written to {} ({error}); name a folder that this user may write to, or \
         trace = none",
        folder.display()
    )]
    Trace {
        /// The folder of key `trace`.
        folder: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The HTTP endpoint cannot listen.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The token of the HTTP endpoint cannot be obtained.
    #[error(transparent)]
    Token(#[from] AccessError),
    /// The checkpoint to continue from cannot be used, or the folder of checkpoints cannot be read.
    #[error(
        "{0}; check the keys checkpoints and resume (resume = none starts from the given \
         parameters)"
    )]
    Checkpoint(CheckpointError),
    /// The devices cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cluster key or the certificate files cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file of the configuration cannot be read.
    #[error("{path}: {error}; check {key}")]
    File {
        /// The configuration key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// The configuration asks for more than one node but has no cluster key to prove who belongs
    /// together.
    #[error(
        "min_nodes, peers, rendezvous or discover ask for other nodes, so a cluster key is needed: \
         write one with `slowmo keygen --out FILE` and give all nodes cluster_key_file = FILE"
    )]
    NoCredentials,
    /// The configuration asks for more than one node but has no way to find the others.
    #[error(
        "min_nodes = {0} needs a way to find the others: set peers = [\"host:port\", …], \
         rendezvous = \"/shared/folder\" or discover"
    )]
    NoPeers(usize),
    /// The node only joins, and has no way to find a cluster.
    #[error(
        "join = true or lineage needs a running cluster to join: set peers = [\"host:port\", …] to \
         a node of it, or rendezvous or discover as its nodes have them"
    )]
    NothingToJoin,
    /// The node listens at all addresses, and the others are told none that they can dial.
    #[error(
        "listen = {0}: the others are told this address and cannot dial it; set advertise = \
         HOST:PORT to where they reach this node, or listen at that address (port 0 is allowed)"
    )]
    ListenUnspecified(std::net::SocketAddr),
    /// The address to be announced cannot be dialed.
    #[error(
        "advertise = {}: {reason}; name the address and port under which other nodes reach this \
         one",
        printable(advertise)
    )]
    Advertise {
        /// The key's value.
        advertise: String,
        /// The fault of the value.
        reason: String,
    },
    /// A peer's name cannot be resolved.
    #[error("peer {}: {error}; check the name in peers", printable(peer))]
    Peer {
        /// The entry of `peers`.
        peer: String,
        /// The reason.
        error: std::io::Error,
    },
    /// Slurm's variables do not name any nodes.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// The node's transport endpoint cannot listen.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A peer's address cannot be used, or the rendezvous folder cannot.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The operating system refused threads or randomness.
    #[error("the operating system refused: {0}")]
    System(String),
}

impl From<CheckpointError> for SpawnError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(error)
    }
}

/// The reason why a worker's handle refused a request or cannot be obtained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// There is no such worker.
    #[error("there is no worker {index}: this node has {devices}; raise devices")]
    NoSuchWorker {
        /// The index asked for.
        index: usize,
        /// Workers of the node.
        devices: usize,
    },
    /// A cursor is longer than its bound.
    #[error("a cursor of {bytes} bytes exceeds the limit of {max}; the previous one stays")]
    CursorTooLong {
        /// The length of the cursor in bytes.
        bytes: usize,
        /// The bound in bytes.
        max: usize,
    },
    /// A checkpoint was asked for, and this node writes none.
    #[error(
        "this node writes no checkpoints: set `checkpoints` to a folder that all nodes share, and \
         `checkpoint_every`, on every node"
    )]
    CheckpointsOff,
    /// A checkpoint was asked for, and no round ends with a state that all nodes share.
    #[error(
        "this algorithm has no checkpoints: its nodes never hold the same parameters and slow \
         momentum; set an outer optimizer, or average_every"
    )]
    NeverAlike,
    /// A checkpoint was asked for, and the node is not a member.
    #[error("this node is not a member of the cluster now: ask a member, or ask again later")]
    NotAMember,
    /// A reported measure is refused and not shown.
    #[error(
        "the measure {name:?} is not shown: a name has 1 to {MEASURE_NAME_BYTES_MAX} bytes and is \
         not \"disagreement\", and a node reports at most {MEASURES_MAX} names, the loss among them"
    )]
    NoSuchMeasure {
        /// The measure's name.
        name: String,
    },
    /// The handle was already taken.
    #[error("worker {0} is already taken: each worker has one handle")]
    Taken(usize),
    /// The node has stopped already.
    #[error("the node's runtime has stopped already; see its log for the first error")]
    Stopped,
}

/// The reason why `synchronize` failed. The tensors are unchanged, except with
/// [`SynchronizeError::NotWritten`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SynchronizeError {
    /// The exchange between the nodes failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// This node's tensors differ from those of the others.
    #[error("{error}; {here}")]
    OtherModel {
        /// Why it got into no view.
        error: ExchangeError,
        /// This node's tensors among which the first is that differs.
        here: String,
    },
    /// A parameter or buffer is not finite.
    #[error("synchronize: {0}")]
    Freeze(FreezeError),
    /// A tensor cannot be read or written.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// `synchronize` was called before: parameters are synchronized once.
    #[error("synchronize was called before: a worker synchronizes once, before its first step")]
    Again,
    /// The attached sampler's settings differ from the cluster's.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The attached sampler differs from that of the checkpoint to continue from.
    #[error(
        "this training's sampler differs from that of the checkpoint of step {step}: \
         {differences}; set resume_sampler = reset to keep parameters and momentum and begin the \
         samples anew, or give the sampler the checkpoint's values; nothing was changed"
    )]
    ResumedSampler {
        /// The inner step that followed the checkpoint.
        step: u64,
        /// Each value that differs, and that of the checkpoint.
        differences: String,
    },
    /// The checkpoint to continue from is of another model, or cannot be read any more.
    #[error(
        "synchronize: {0}; resume = none starts from the given parameters, resume = NAME from \
         another checkpoint"
    )]
    Checkpoint(String),
    /// An async call was cancelled while it waited: its exchange may have continued without it.
    #[error(
        "an earlier call was cancelled while it waited, and its exchange may have happened: drop \
         this worker and restart the node"
    )]
    Abandoned,
    /// The exchange succeeded, but its values could not be written: the tensors before this one
    /// hold them, the others do not.
    #[error(
        "synchronize: {0}; only the tensors before it were written: leave, and restart the node, \
         which then joins the others"
    )]
    NotWritten(TensorError),
    /// An earlier call could not write the values of all nodes, as its error said.
    #[error(
        "an earlier synchronize could not write its result (see its error): leave, and restart the \
         node, which then joins the others"
    )]
    Broken,
}

impl From<FreezeError> for SynchronizeError {
    fn from(error: FreezeError) -> Self {
        Self::Freeze(error)
    }
}

/// The reason why `step` failed. The step counter did not move. Tensors, anchor and momentum are
/// unchanged, except with [`StepError::NotSent`], which leaves the parameters mixed, and
/// [`StepError::NotWritten`], which leaves them useless. After a refused value correct it and call
/// `step` again. Nodes that die, leave or join are no error: the remaining nodes decide the round,
/// or wait for a quorum. An exchange that failed ended this node's part in the run (other nodes run
/// another script, momentum was lost although the configuration forbids it, a round took too long):
/// see its text, leave, and start the node again, which joins the others.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    /// The exchange between the nodes failed.
    #[error("step {step}: {error}")]
    Exchange {
        /// The inner step.
        step: u64,
        /// The reason.
        error: ExchangeError,
    },
    /// A value is not finite; nothing was sent, so no other node is affected.
    #[error("step {step}: {error}")]
    Freeze {
        /// The inner step.
        step: u64,
        /// The value and its tensor.
        error: FreezeError,
    },
    /// Overlapped gossip found a value that is not finite. What had arrived was mixed into the
    /// parameters, nothing was sent, and the step counter did not move.
    #[error(
        "step {step}: {error}; the messages that had arrived were mixed into the parameters, and \
         nothing was sent"
    )]
    NotSent {
        /// The inner step.
        step: u64,
        /// The value and its tensor.
        error: FreezeError,
    },
    /// The learning rate cannot be used: the slow step divides by it.
    #[error(
        "step {step} ends an outer round, which divides by the learning rate, but the learning \
         rate is {learning_rate}: pass the inner optimizer's rate, finite and not below 0"
    )]
    LearningRate {
        /// The inner step.
        step: u64,
        /// The rate given.
        learning_rate: f32,
    },
    /// The learning rate is 0, and no rate above 0 came before that could stand in.
    #[error(
        "step {step} ends an outer round, which divides by the learning rate, but it is 0 and has \
         been 0 since the start: begin the schedule (its warm-up too) above 0, or choose tau so \
         that the first round comes after its first step above 0"
    )]
    NoLearningRate {
        /// The inner step.
        step: u64,
    },
    /// The number of values differs from that at `synchronize`.
    #[error(
        "step {step}: the {what} hold {found} values, {expected} at synchronize: lend the same \
         tensors at every call"
    )]
    Length {
        /// The inner step.
        step: u64,
        /// The kind of tensors: parameters, model buffers or optimizer buffers.
        what: &'static str,
        /// Values now.
        found: usize,
        /// Values at `synchronize`.
        expected: usize,
    },
    /// An exchange is due, so the parameters must be lent.
    #[error(
        "step {step} exchanges with the other nodes: call step and lend the parameters (is_due \
         says when)"
    )]
    Due {
        /// The inner step.
        step: u64,
    },
    /// `synchronize` must be called first.
    #[error("step was called before synchronize: call synchronize once, before the first step")]
    NotSynchronized,
    /// A tensor cannot be read; nothing was sent.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The exchange succeeded, but its result could not be written: the tensors before this one
    /// hold it, the others do not. Nothing of this model is sent any more: this worker can only
    /// leave.
    #[error(
        "step {step}: {error}; only the tensors before it were written: leave, and restart the \
         node, which then joins the others"
    )]
    NotWritten {
        /// The inner step.
        step: u64,
        /// The tensor and the reason.
        error: TensorError,
    },
    /// An earlier step's result was not taken, as that step's error said.
    #[error(
        "the result of an earlier step was not taken (see its error): leave, and restart the node, \
         which then joins the others"
    )]
    Broken,
    /// The attached sampler's settings differ from the cluster's; the result of the exchange was
    /// not taken.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// An async call was cancelled while it waited: its exchange may have continued without it.
    #[error(
        "an earlier call was cancelled while it waited, and its exchange may have happened: drop \
         this worker and restart the node"
    )]
    Abandoned,
}

/// The reason why `average_gradients` failed. The gradients are unchanged, or hold the node's mean
/// if only the mean over all nodes failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GradientError {
    /// The mean over the node's workers failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The mean over all nodes failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A tensor cannot be read or written.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// `synchronize` must be called first.
    #[error(
        "average_gradients was called before synchronize: call synchronize once, before the first \
         step"
    )]
    NotSynchronized,
    /// Several async workers on a single-threaded executor would wait for each other for ever.
    #[error(
        "several async workers need a multi-threaded executor, or one plain thread each with \
         `Worker`"
    )]
    NeedsThreads,
    /// An earlier step's result was not taken, as that step's error said.
    #[error(
        "the result of an earlier step was not taken (see its error): leave, and restart the node, \
         which then joins the others"
    )]
    Broken,
    /// The attached sampler's settings differ from the cluster's.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// An async call was cancelled while it waited: its exchange may have continued without it.
    #[error(
        "an earlier call was cancelled while it waited, and its exchange may have happened: drop \
         this worker and restart the node"
    )]
    Abandoned,
}
