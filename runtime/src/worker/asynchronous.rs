//! The async handle: the same operations and errors as [`crate::Worker`], for training loops that
//! run on an executor.

use super::report::{Buffers, ResumedFrom, StepReport, Synchronized};
use super::session::{BegunStep, Session};
use crate::ElasticSampler;
use crate::error::{GradientError, StepError, SynchronizeError, WorkerError};
use slowmo_actors::ExchangeError;
use slowmo_actors::ports::device::Tensors;
use tokio::runtime::{Handle, RuntimeFlavor};

/// One device's handle for async training loops.
///
/// Copying tensors and the mean over a node's workers run on the calling thread; waiting for other
/// nodes does not block it. The functions are not safe to cancel: an exchange continues without its
/// caller, so after a cancelled call every further one fails as abandoned.
pub struct AsyncWorker {
    session: Option<Session>,
}

impl std::fmt::Debug for AsyncWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncWorker")
            .field("index", &self.session.as_ref().map(|session| session.index))
            .finish()
    }
}

impl AsyncWorker {
    /// See [`crate::Worker::attach_sampler`].
    pub fn attach_sampler(&mut self, sampler: &ElasticSampler) {
        if let Some(session) = &mut self.session {
            session.attach(sampler);
        }
    }

    pub(super) fn new(session: Option<Session>) -> Self {
        Self { session }
    }

    /// See [`crate::Worker::synchronize`].
    ///
    /// # Errors
    /// As for that function.
    pub async fn synchronize<P: Tensors + ?Sized>(
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
        .await
    }

    /// See [`crate::Worker::synchronize_with`].
    ///
    /// # Errors
    /// As for that function.
    pub async fn synchronize_with<P: Tensors + ?Sized>(
        &mut self,
        mut parameters: &mut P,
        mut buffers: Buffers<'_>,
    ) -> Result<Synchronized, SynchronizeError> {
        let session = self.session.as_mut().ok_or(ExchangeError::Stopped)?;
        let answer = session.begin_synchronize(&mut parameters, &mut buffers)?;
        let exchanged = answer.await.ok();
        session.finish_synchronize(exchanged, &mut parameters, &mut buffers)
    }

    /// See [`crate::Worker::average_gradients`].
    ///
    /// # Errors
    /// As for that function, and [`GradientError::NeedsThreads`] for several workers on a
    /// single-threaded executor.
    pub async fn average_gradients<G: Tensors + ?Sized>(
        &mut self,
        mut gradients: &mut G,
    ) -> Result<(), GradientError> {
        let session = self.session.as_mut().ok_or(ExchangeError::Stopped)?;
        let answer = match (
            session.node.workers(),
            Handle::try_current().map(|handle| handle.runtime_flavor()),
        ) {
            (1, _) => session.begin_gradients(&mut gradients)?,
            (_, Ok(RuntimeFlavor::CurrentThread)) => return Err(GradientError::NeedsThreads),
            (_, Ok(_)) => tokio::task::block_in_place(|| session.begin_gradients(&mut gradients))?,
            (_, Err(_)) => session.begin_gradients(&mut gradients)?,
        };
        match answer {
            Some(answer) => {
                let exchanged = answer.await.ok();
                session.finish_gradients(exchanged, &mut gradients)
            }
            None => Ok(()),
        }
    }

    /// See [`crate::Worker::step`].
    ///
    /// # Errors
    /// As for that function.
    pub async fn step<P: Tensors + ?Sized>(
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
        .await
    }

    /// See [`crate::Worker::step_with`].
    ///
    /// # Errors
    /// As for that function.
    pub async fn step_with<P: Tensors + ?Sized>(
        &mut self,
        mut parameters: &mut P,
        mut buffers: Buffers<'_>,
        learning_rate: f32,
    ) -> Result<StepReport, StepError> {
        let session = self.session.as_mut().ok_or(StepError::NotSynchronized)?;
        match session.begin_step(&mut parameters, &mut buffers, learning_rate)? {
            BegunStep::Waits(pending) => {
                let due = pending.due();
                let exchanged = pending.answer.await.ok();
                session.finish_step(due, exchanged, &mut parameters, &mut buffers)
            }
            BegunStep::Complete(report) => Ok(report),
        }
    }

    /// See [`crate::Worker::is_running`].
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_running)
    }

    /// See [`crate::Worker::is_due`].
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_due)
    }

    /// See [`crate::Worker::step_alone`].
    ///
    /// # Errors
    /// As for that function.
    pub fn step_alone(&mut self, learning_rate: f32) -> Result<StepReport, StepError> {
        let session = self.session.as_mut().ok_or(StepError::NotSynchronized)?;
        session.step_alone(learning_rate)
    }

    /// See [`crate::Worker::report_loss`].
    pub fn report_loss(&self, loss: f64) {
        if let Some(session) = &self.session {
            session.report_loss(loss);
        }
    }

    /// See [`crate::Worker::report`].
    ///
    /// # Errors
    /// As for that function.
    pub fn report(&self, name: &str, value: f64) -> Result<(), WorkerError> {
        self.session
            .as_ref()
            .map_or(Ok(()), |session| session.report(name, value))
    }

    /// See [`crate::Worker::resumed`].
    #[must_use]
    pub fn resumed(&self) -> Option<ResumedFrom> {
        self.session.as_ref().and_then(Session::resumed)
    }

    /// See [`crate::Worker::set_cursor`].
    ///
    /// # Errors
    /// As for that function.
    pub fn set_cursor(&self, cursor: impl Into<String>) -> Result<(), WorkerError> {
        self.session
            .as_ref()
            .map_or(Ok(()), |session| session.set_cursor(cursor.into()))
    }

    /// See [`crate::Worker::checkpoint`].
    ///
    /// # Errors
    /// As for that function.
    pub fn checkpoint(&self) -> Result<(), WorkerError> {
        let session = self.session.as_ref().ok_or(WorkerError::Stopped)?;
        session.node.ask_for_checkpoint()
    }

    /// See [`crate::Worker::leave`].
    ///
    /// # Errors
    /// As for that function.
    pub async fn leave(mut self) -> Result<(), WorkerError> {
        let session = self.session.take().ok_or(WorkerError::Stopped)?;
        session
            .begin_leave()
            .await
            .map_err(|_| WorkerError::Stopped)?;
        session.node.end_checkpoints(session.is_running()).await;
        session.node.left();
        session.node.close_async().await;
        Ok(())
    }
}

impl Drop for AsyncWorker {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.gone();
        }
    }
}
