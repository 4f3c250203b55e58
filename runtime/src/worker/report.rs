//! Reports of `synchronize` and `step`, and the buffers that travel with the parameters.

use crate::Exchange;
use slowmo_actors::ports::device::Tensors;

/// The result of `synchronize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synchronized {
    /// Nodes in the view, `W`.
    pub nodes: usize,
    /// Rank of this node among the ascending ids, from 0.
    pub node_rank: usize,
    /// Workers of this node, `g`.
    pub workers: usize,
    /// Index of this worker on its node, from 0.
    pub worker: usize,
    /// The next round.
    pub round: u64,
    /// The next inner step.
    pub step: u64,
}

/// The checkpoint that the training continues from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumedFrom {
    /// Its folder.
    pub path: std::path::PathBuf,
    /// The inner step that followed it.
    pub step: u64,
    /// Rounds that were decided up to it since the first bootstrap.
    pub rounds: u64,
    /// Number of this bootstrap among those that used the folder, from 0.
    pub run: u32,
    /// The texts that training code added to it ([`crate::Worker::set_cursor`]), by node.
    pub cursors: Vec<(u64, String)>,
}

/// The result of one `step`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The inner step just completed, from 0.
    pub step: u64,
    /// The kind of exchange between the nodes.
    pub exchange: Exchange,
    /// Whether the slow step was taken.
    pub slow_step: bool,
    /// The decided round, if one was.
    pub round: Option<u64>,
    /// Nodes whose values were averaged, this one included; 0 if nothing was exchanged.
    pub contributors: usize,
    /// This node's push-sum weight `w` after the step.
    pub weight: f64,
    /// Nodes in the current view; 0 if nothing was exchanged.
    pub nodes: usize,
    /// Rank of this node among the ascending ids of the current view.
    pub node_rank: usize,
    /// Whether the others continued without this node (it was slow or unreachable): it now has
    /// their parameters, and `step` jumped to theirs.
    pub caught_up: bool,
    /// Whether the node has left the cluster in order and handed over: end the training loop and
    /// call `leave`. [`crate::Worker::is_running`] says so too, as a condition of the loop.
    pub drained: bool,
}

/// Buffers beside the parameters. Float32, in the same order at every call. On a node with several
/// workers those of worker 0 count for the node, as with the parameters.
pub struct Buffers<'a> {
    /// The base optimizer's buffers, such as momentum: kept, reset or averaged at outer rounds as
    /// `buffers` says. A node that joins a running cluster starts with zeros, or with a member's
    /// (`joiner_buffers`); pass them at every call then.
    pub optimizer: &'a mut (dyn Tensors + Send),
    /// The model's buffers, such as batch-norm statistics: averaged with the parameters at every
    /// exact average.
    pub model: &'a mut (dyn Tensors + Send),
}
