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

/// Buffers beside the parameters: float32, bfloat16 or float16, in the same order at every call. On
/// a node with several workers those of worker 0 count for the node, as with the parameters.
///
/// ```no_run
/// # fn demo(worker: &mut slowmo::Worker) -> Result<(), slowmo::StepError> {
/// use slowmo::{Buffers, NamedTensors};
/// # let mut weight = vec![0.0; 6];
/// # let mut momentum = vec![0.0; 6];
/// # let mut mean = vec![0.0; 2];
/// # let mut variance = vec![1.0; 2];
/// let mut statistics = NamedTensors::new()
///     .with("running_mean", &mut mean)
///     .with("running_var", &mut variance);
/// let buffers = Buffers { optimizer: &mut momentum, model: &mut statistics };
/// worker.step_with(&mut weight, buffers, 0.1)?;
/// # Ok(())
/// # }
/// ```
pub struct Buffers<'a> {
    /// The base optimizer's buffers, such as momentum: kept, reset or averaged at outer rounds as
    /// `buffers` says, and stored in checkpoints. A node that joins a running cluster starts with a
    /// member's, or with zeros (`joiner_buffers`). Pass them at every call; an Adam's step count
    /// with its moments ([`crate::Counter`]).
    pub optimizer: &'a mut (dyn Tensors + Send),
    /// The model's buffers, such as batch-norm statistics: averaged at every exact average, as the
    /// plain mean over the nodes that contributed. They are never gossiped and take no slow step,
    /// so a mean of variances stays one. Do not lend them as parameters: slow momentum would carry
    /// them beyond what was measured.
    pub model: &'a mut (dyn Tensors + Send),
}
