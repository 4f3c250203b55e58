//! A worker's handles: [`Worker`] for plain threads, [`AsyncWorker`] for async training loops.

mod asynchronous;
mod block;
mod report;
mod session;

pub use asynchronous::AsyncWorker;
pub use report::{Buffers, ResumedFrom, StepReport, Synchronized};
use session::BegunStep;
pub(crate) use session::Session;

use crate::ElasticSampler;
use crate::error::{GradientError, StepError, SynchronizeError, WorkerError};
pub(crate) use block::block_on;
use slowmo_actors::ports::device::Tensors;
use slowmo_actors::ports::store::Store;

/// One device's handle, used from its training thread with blocking calls. Dropping it without
/// [`Worker::leave`] tells the node's other workers that this one is gone.
pub struct Worker {
    session: Option<Session>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("index", &self.session.as_ref().map(|session| session.index))
            .finish()
    }
}

impl Worker {
    pub(crate) fn new(session: Session) -> Self {
        Self {
            session: Some(session),
        }
    }

    /// The GPU of this process, from 0, on which this worker's tensors should be; `None` for main
    /// memory.
    #[must_use]
    pub fn gpu(&self) -> Option<usize> {
        self.session.as_ref().and_then(Session::gpu)
    }

    /// Attaches `sampler`, which then hands out this worker's batches and follows every step. Call
    /// it before [`Worker::synchronize`].
    pub fn attach_sampler(&mut self, sampler: &ElasticSampler) {
        if let Some(session) = &mut self.session {
            session.attach(sampler);
        }
    }

    /// Waits for the bootstrap members and replaces `parameters` by those of the lowest id; or, if
    /// a cluster trains already, joins it with its next round and takes over its parameters and its
    /// step. Call it once, before the first step, on every worker. A node that was drained before
    /// it became a member gets no parameters: [`Worker::is_running`] is false then.
    ///
    /// # Errors
    /// Unreachable peer, different configuration or parameter count (both nodes named), a cluster
    /// that refuses this node, a value that is not finite. `parameters` are unchanged.
    pub fn synchronize<P: Tensors + ?Sized>(
        &mut self,
        parameters: &mut P,
    ) -> Result<Synchronized, SynchronizeError> {
        self.synchronize_with(
            parameters,
            Buffers {
                optimizer: &mut (),
                model: &mut (),
            },
        )
    }

    /// Does the same as [`Worker::synchronize`], with buffers that travel with the parameters.
    ///
    /// # Errors
    /// As for [`Worker::synchronize`].
    pub fn synchronize_with<P: Tensors + ?Sized>(
        &mut self,
        mut parameters: &mut P,
        mut buffers: Buffers<'_>,
    ) -> Result<Synchronized, SynchronizeError> {
        let session = self
            .session
            .as_mut()
            .ok_or(slowmo_actors::ExchangeError::Stopped)?;
        let answer = session.begin_synchronize(&mut parameters, &mut buffers)?;
        session.finish_synchronize(block_on(answer).ok(), &mut parameters, &mut buffers)
    }

    /// Replaces the gradients by their exact mean over the node's workers; with base `all_reduce`
    /// over all nodes too. Call it after every backward pass, on every worker. Sums in ascending
    /// worker and node id: the same bits everywhere. On a node with one worker, with another base
    /// than `all_reduce`, it changes nothing and may be left out.
    ///
    /// # Errors
    /// A worker of this node is gone, lengths differ, or this node was excluded and takes new
    /// parameters at its next step. The gradients are unchanged, or hold the node's mean if only
    /// the mean over all nodes failed.
    pub fn average_gradients<G: Tensors + ?Sized>(
        &mut self,
        mut gradients: &mut G,
    ) -> Result<(), GradientError> {
        let session = self
            .session
            .as_mut()
            .ok_or(slowmo_actors::ExchangeError::Stopped)?;
        match session.begin_gradients(&mut gradients)? {
            Some(answer) => session.finish_gradients(block_on(answer).ok(), &mut gradients),
            None => Ok(()),
        }
    }

    /// Runs the exchange that is due after this inner step: gossip, exact average or outer round
    /// ([`slowmo_protocol::schedule`]). Call it after every optimizer step, also one that was
    /// skipped. `learning_rate` is `γ`, the inner optimizer's rate at this moment; where a schedule
    /// is at exactly 0, the last rate above 0 stands in. Costs well under 20 µs when nothing is
    /// due, and reads no tensor then.
    ///
    /// Nodes may die, leave, join and lag meanwhile: the nodes that are present decide a round, and
    /// the report names them ([`StepReport::contributors`], [`StepReport::nodes`]). Without a
    /// quorum it waits until enough nodes are back; the node's status says for whom. A node that
    /// was excluded gets the others' parameters and step ([`StepReport::caught_up`]); one that
    /// drains is told when it has handed over ([`StepReport::drained`], [`Worker::is_running`]).
    ///
    /// # Errors
    /// A value that is not finite (named by tensor), a learning rate that cannot be divided by, a
    /// number of values other than at `synchronize`, an exchange that cannot continue with this
    /// node (see [`StepError`], also for what is unchanged). The step counter did not move.
    pub fn step<P: Tensors + ?Sized>(
        &mut self,
        parameters: &mut P,
        learning_rate: f32,
    ) -> Result<StepReport, StepError> {
        self.step_with(
            parameters,
            Buffers {
                optimizer: &mut (),
                model: &mut (),
            },
            learning_rate,
        )
    }

    /// Does the same as [`Worker::step`], with buffers that travel with the parameters.
    ///
    /// # Errors
    /// As for [`Worker::step`].
    pub fn step_with<P: Tensors + ?Sized>(
        &mut self,
        mut parameters: &mut P,
        mut buffers: Buffers<'_>,
        learning_rate: f32,
    ) -> Result<StepReport, StepError> {
        let session = self.session.as_mut().ok_or(StepError::NotSynchronized)?;
        match session.begin_step(&mut parameters, &mut buffers, learning_rate)? {
            BegunStep::Waits(pending) => {
                let due = pending.due();
                session.finish_step(
                    due,
                    block_on(pending.answer).ok(),
                    &mut parameters,
                    &mut buffers,
                )
            }
            BegunStep::Complete(report) => Ok(report),
        }
    }

    /// Whether the training goes on. Ends with `false` once this node has left the cluster in
    /// order: it was drained (SIGTERM, `slowmo drain`, [`crate::Runtime::drain`]), and has handed
    /// over. Ask before each step; then call [`Worker::leave`] and end with success.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_running)
    }

    /// Whether the next [`Worker::step`] exchanges anything. Where lending the parameters costs a
    /// copy (a framework that keeps them on a GPU, or hands out no slices), ask first, and complete
    /// the other steps with [`Worker::step_alone`]:
    ///
    /// ```no_run
    /// # fn demo(worker: &mut slowmo::Worker, rate: f32) -> Result<(), slowmo::StepError> {
    /// # struct Model;
    /// # impl Model { fn copied(&self) -> Vec<f32> { vec![] } fn load(&mut self, _: &[f32]) {} }
    /// # let mut model = Model;
    /// let report = if worker.is_due() {
    ///     let mut parameters = model.copied();
    ///     let report = worker.step(&mut parameters, rate)?;
    ///     model.load(&parameters);
    ///     report
    /// } else {
    ///     worker.step_alone(rate)?
    /// };
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_due)
    }

    /// Completes an inner step at which nothing is due ([`Worker::is_due`]), without lending
    /// anything: what [`Worker::step`] does then too. Never waits.
    ///
    /// # Errors
    /// An exchange is due: the step counter did not move, call `step`. A call before `synchronize`.
    pub fn step_alone(&mut self, learning_rate: f32) -> Result<StepReport, StepError> {
        let session = self.session.as_mut().ok_or(StepError::NotSynchronized)?;
        session.step_alone(learning_rate)
    }

    /// Records the loss of the current inner step: `status` shows it, and the trace keeps it if one
    /// is written (key `trace`). Costs next to nothing, never waits.
    pub fn report_loss(&self, loss: f64) {
        if let Some(session) = &self.session {
            session.report_loss(loss);
        }
    }

    /// Records a measure of the training code's own (an accuracy, a rate) for the current inner
    /// step, which the page, `status` and the metrics show beside the loss. Costs next to nothing,
    /// never waits.
    ///
    /// # Errors
    /// The name is empty or too long, or there are too many names; nothing is shown under it then.
    pub fn report(&self, name: &str, value: f64) -> Result<(), WorkerError> {
        self.session
            .as_ref()
            .map_or(Ok(()), |session| session.report(name, value))
    }

    /// The checkpoint that the bootstrap of this training continues from, if any (keys
    /// `checkpoints` and `resume`). A node that joins continues from the others instead.
    #[must_use]
    pub fn resumed(&self) -> Option<ResumedFrom> {
        self.session.as_ref().and_then(Session::resumed)
    }

    /// Sets an opaque text of the training code (a position in its data, a random state) that is
    /// stored with this node's part of every later checkpoint; [`Worker::resumed`] returns it.
    ///
    /// # Errors
    /// The text is too long; the one before stays.
    pub fn set_cursor(&self, cursor: impl Into<String>) -> Result<(), WorkerError> {
        self.session
            .as_ref()
            .map_or(Ok(()), |session| session.set_cursor(cursor.into()))
    }

    /// Asks for a checkpoint of the whole cluster's state, beside those of `checkpoint_every`:
    /// after the first outer round that begins once the members have heard of it. Returns at once;
    /// `status` tells when it is whole.
    ///
    /// # Errors
    /// [`WorkerError::CheckpointsOff`], [`WorkerError::NeverAlike`], [`WorkerError::NotAMember`].
    pub fn checkpoint(&self) -> Result<(), WorkerError> {
        let session = self.session.as_ref().ok_or(WorkerError::Stopped)?;
        session.node.ask_for_checkpoint()
    }

    /// Leaves in order: on return all that this node sent has arrived, and its part of the last
    /// outer round's state is written, if checkpoints are on. Waits for the node's other workers,
    /// and a few seconds for other nodes that still train. Every training that is over ends with
    /// it: a launcher counts a node that returns without it as crashed.
    ///
    /// # Errors
    /// The node has stopped already.
    pub fn leave(mut self) -> Result<(), WorkerError> {
        let session = self.session.take().ok_or(WorkerError::Stopped)?;
        block_on(session.begin_leave()).map_err(|_| WorkerError::Stopped)?;
        session.node.checkpoints().end(session.is_running());
        session.node.left();
        session.node.close();
        Ok(())
    }

    /// Converts to a handle with the same operations as async functions.
    #[must_use]
    pub fn into_async(mut self) -> AsyncWorker {
        AsyncWorker::new(self.session.take())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.gone();
        }
    }
}
