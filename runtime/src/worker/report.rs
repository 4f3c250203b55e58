//! What `synchronize` and `step` report, and the buffers that travel with the parameters.

use crate::Exchange;
use slowmo_actors::ports::device::Tensors;

/// What `synchronize` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synchronized {
    /// Nodes in the view, `W`.
    pub nodes: usize,
    /// Place of this node among the ascending ids, from 0.
    pub node_rank: usize,
    /// Workers of this node, `g`.
    pub workers: usize,
    /// This worker on its node, from 0.
    pub worker: usize,
    /// The next round.
    pub round: u64,
    /// The next inner step.
    pub step: u64,
}

/// The checkpoint that the training goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumedFrom {
    /// Its folder.
    pub path: std::path::PathBuf,
    /// The inner step that followed it.
    pub step: u64,
    /// Rounds that were decided up to it since the very start.
    pub rounds: u64,
    /// Which founding this is among those that used the folder, from 0.
    pub run: u32,
    /// The words that training code added to it ([`crate::Worker::set_cursor`]), by node.
    pub cursors: Vec<(u64, String)>,
}

/// What one `step` did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The inner step just completed, from 0.
    pub step: u64,
    /// What the nodes exchanged.
    pub exchange: Exchange,
    /// Whether the slow step was taken.
    pub slow_step: bool,
    /// The decided round, if one was.
    pub round: Option<u64>,
    /// Nodes that were averaged with, this one included; 0 if nothing was exchanged.
    pub contributors: usize,
    /// This node's push-sum weight `w` afterwards.
    pub weight: f64,
    /// Nodes in the view now; 0 if nothing was exchanged.
    pub nodes: usize,
    /// Place of this node among the ascending ids of the view now.
    pub node_rank: usize,
    /// The others went on without this node (it was slow, or away): it has their parameters now,
    /// and `step` jumped to theirs.
    pub caught_up: bool,
    /// The node has left the cluster in order and handed over: end the training loop and call
    /// `leave`.
    pub drained: bool,
}

/// Buffers beside the parameters. Float32, in the same order at every call. Of a node with several
/// workers worker 0's stand for the node, as with the parameters.
pub struct Buffers<'a> {
    /// The base optimizer's buffers, such as momentum: kept, reset or averaged at outer rounds as
    /// `buffers` says. A node that joins a running cluster starts with zeros, or with a member's
    /// (`joiner_buffers`); lend them at every call then.
    pub optimizer: &'a mut (dyn Tensors + Send),
    /// The model's buffers, such as batch-norm statistics: averaged with the parameters at every
    /// exact average.
    pub model: &'a mut (dyn Tensors + Send),
}
