//! SKELETON of the public API: signatures are agreed, bodies follow.
#![allow(clippy::unimplemented, unused_variables)]
use crate::{Config, Exchange, Tensors, Traffic};
use std::net::SocketAddr;

/// A node: the actors, the transport and the workers of this process.
#[derive(Debug)]
pub struct Runtime {}
/// Builds a [`Runtime`].
#[derive(Debug, Default)]
pub struct RuntimeBuilder {}
/// One device's handle, used from its training thread with blocking calls.
#[derive(Debug)]
pub struct Worker {}
/// The same handle for async training loops.
#[derive(Debug)]
pub struct AsyncWorker {}

/// What `synchronize` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synchronized {
    /// Nodes in the view.
    pub nodes: usize,
    /// Place of this node among the ascending ids.
    pub node_rank: usize,
    /// Workers of this node.
    pub workers: usize,
    /// This worker on its node.
    pub worker: usize,
    /// The next round.
    pub round: u64,
    /// The next inner step.
    pub step: u64,
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
    /// Nodes whose contributions were averaged (0 if nothing was exchanged).
    pub contributors: usize,
    /// This node's push-sum weight afterwards.
    pub weight: f64,
}

/// Why the runtime did not start.
#[derive(Clone, Debug, thiserror::Error)]
#[error("spawn")]
pub struct SpawnError;
/// Why an operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("operation")]
pub struct OperationError;
/// Errors of [`Worker::synchronize`].
pub type SynchronizeError = OperationError;
/// Errors of [`Worker::step`].
pub type StepError = OperationError;
/// Errors of [`Worker::average_gradients`].
pub type GradientError = OperationError;
/// Errors of [`Worker::leave`].
pub type LeaveError = OperationError;

impl Runtime {
    /// Starts describing a node.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }
    /// Takes the handle of worker `index`; each can be taken once.
    ///
    /// # Errors
    /// No such worker, or taken.
    pub fn worker(&self, index: usize) -> Result<Worker, OperationError> {
        unimplemented!()
    }
    /// This node's id.
    #[must_use]
    pub fn node_id(&self) -> u64 {
        unimplemented!()
    }
    /// Where this node listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        unimplemented!()
    }
    /// Bytes on the wire so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        unimplemented!()
    }
}

impl RuntimeBuilder {
    /// Uses this configuration.
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        self
    }
    /// Starts the node: binds its endpoint, looks for its peers in the background.
    ///
    /// # Errors
    /// Bad configuration, port taken, unreadable key.
    pub fn spawn(self) -> Result<Runtime, SpawnError> {
        unimplemented!()
    }
}

impl Worker {
    /// Founding parameters (the lowest id's), or the cluster's if it is already training.
    ///
    /// # Errors
    /// Unreachable peer, different configuration, different parameter count, non-finite parameters.
    pub fn synchronize<P: Tensors + ?Sized>(&mut self, params: &mut P) -> Result<Synchronized, SynchronizeError> {
        unimplemented!()
    }
    /// Exact mean of the gradients over the node's workers (with base `all_reduce`: over all workers of all nodes).
    ///
    /// # Errors
    /// A worker is gone, lengths differ.
    pub fn average_gradients<G: Tensors + ?Sized>(&mut self, gradients: &mut G) -> Result<(), GradientError> {
        unimplemented!()
    }
    /// Call after every optimizer step: base algorithm and SlowMo, when due. `learning_rate` is γ of the inner optimizer.
    ///
    /// # Errors
    /// Non-finite parameters, a learning rate that cannot be used, a peer lost.
    pub fn step<P: Tensors + ?Sized>(&mut self, params: &mut P, learning_rate: f32) -> Result<StepReport, StepError> {
        unimplemented!()
    }
    /// Leaves the cluster in order.
    ///
    /// # Errors
    /// The runtime is gone.
    pub fn leave(self) -> Result<(), LeaveError> {
        unimplemented!()
    }
    /// For async training loops: the same operations as async functions.
    #[must_use]
    pub fn into_async(self) -> AsyncWorker {
        unimplemented!()
    }
}

/// Digest of the values: equal digests mean bit-identical parameters. 32 hexadecimal digits.
///
/// # Errors
/// The tensors cannot be read.
pub fn digest<P: Tensors + ?Sized>(params: &P) -> Result<String, crate::TensorError> {
    unimplemented!()
}
