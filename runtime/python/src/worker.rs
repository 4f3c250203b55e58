//! A worker's handle. Its calls release the interpreter while they copy and wait.

use crate::errors;
use crate::memory::Lent;
use crate::process::{Claim, Process, Refused};
use crate::reports::{ResumedFrom, StepReport, Synchronized};
use crate::sampler::ElasticSampler;
use crate::waiting::wait;
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use slowmo::{AsyncWorker, Buffers};
use std::sync::Arc;

/// One device's handle. It belongs to one training thread.
#[pyclass(frozen, module = "slowmo._slowmo")]
pub struct Worker {
    /// `None` after it has left.
    inner: Mutex<Option<Held>>,
    process: Process,
}

/// The runtime's handle, and the process's claim.
struct Held {
    worker: AsyncWorker,
    _claim: Arc<Claim>,
}

impl Worker {
    pub(crate) fn new(worker: slowmo::Worker, process: Process, claim: Arc<Claim>) -> Self {
        let held = Held {
            worker: worker.into_async(),
            _claim: claim,
        };
        let inner = Mutex::new(Some(held));
        Self { inner, process }
    }

    /// The handle for the time of one call.
    fn used(&self) -> PyResult<MutexGuard<'_, Option<Held>>> {
        self.process.check().map_err(errors::process)?;
        let busy = || errors::process(Refused::Busy);
        self.inner.try_lock().ok_or_else(busy)
    }

    /// Calls `work` with the handle.
    fn with<T>(&self, work: impl FnOnce(&mut AsyncWorker) -> PyResult<T>) -> PyResult<T> {
        let mut used = self.used()?;
        let held = used
            .as_mut()
            .ok_or_else(|| errors::worker(slowmo::WorkerError::Stopped))?;
        work(&mut held.worker)
    }
}

#[pymethods]
impl Worker {
    /// Attaches a sampler, which then follows every step.
    fn attach_sampler(&self, sampler: &ElasticSampler) -> PyResult<()> {
        self.with(|worker| {
            worker.attach_sampler(&sampler.inner.lock());
            Ok(())
        })
    }

    /// Waits for the other nodes and takes over their parameters.
    fn synchronize(
        &self,
        py: Python<'_>,
        mut parameters: Lent,
        mut optimizer: Lent,
        mut model: Lent,
    ) -> PyResult<Synchronized> {
        self.with(|worker| {
            let buffers = Buffers {
                optimizer: &mut optimizer,
                model: &mut model,
            };
            let synchronized = wait(py, worker.synchronize_with(&mut parameters, buffers))?;
            Ok(synchronized.map_err(errors::synchronize)?.into())
        })
    }

    /// Averages the gradients over the node's workers, and over all nodes if the base says so.
    fn average_gradients(&self, py: Python<'_>, mut gradients: Lent) -> PyResult<()> {
        self.with(|worker| {
            wait(py, worker.average_gradients(&mut gradients))?.map_err(errors::gradient)
        })
    }

    /// Runs the exchange that is due after this inner step.
    fn step(
        &self,
        py: Python<'_>,
        mut parameters: Lent,
        learning_rate: f32,
        mut optimizer: Lent,
        mut model: Lent,
    ) -> PyResult<StepReport> {
        self.with(|worker| {
            let buffers = Buffers {
                optimizer: &mut optimizer,
                model: &mut model,
            };
            let stepped = worker.step_with(&mut parameters, buffers, learning_rate);
            Ok(wait(py, stepped)?.map_err(errors::step)?.into())
        })
    }

    /// Completes a step at which nothing is due.
    fn step_alone(&self, learning_rate: f32) -> PyResult<StepReport> {
        self.with(|worker| {
            let stepped = worker.step_alone(learning_rate);
            Ok(stepped.map_err(errors::step)?.into())
        })
    }

    /// Whether the next step exchanges anything.
    fn is_due(&self) -> PyResult<bool> {
        Ok(self
            .used()?
            .as_ref()
            .is_some_and(|held| held.worker.is_due()))
    }

    /// Whether the training goes on.
    fn is_running(&self) -> PyResult<bool> {
        Ok(self
            .used()?
            .as_ref()
            .is_some_and(|held| held.worker.is_running()))
    }

    /// Records the loss of the current inner step.
    fn report_loss(&self, loss: f64) -> PyResult<()> {
        self.with(|worker| {
            worker.report_loss(loss);
            Ok(())
        })
    }

    /// Records a measure of the training's own.
    fn report(&self, name: &str, value: f64) -> PyResult<()> {
        self.with(|worker| worker.report(name, value).map_err(errors::worker))
    }

    /// Sets a text that is stored with later checkpoints.
    fn set_cursor(&self, cursor: String) -> PyResult<()> {
        self.with(|worker| worker.set_cursor(cursor).map_err(errors::worker))
    }

    /// The checkpoint that the training continues from, if any.
    fn resumed(&self) -> PyResult<Option<ResumedFrom>> {
        self.with(|worker| Ok(worker.resumed().map(ResumedFrom::from)))
    }

    /// Leaves the cluster in order; the handle is of no use afterwards.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        // The claim is given up when the node has no more to do here.
        let Held { worker, _claim } = self
            .used()?
            .take()
            .ok_or_else(|| errors::worker(slowmo::WorkerError::Stopped))?;
        wait(py, worker.leave())?.map_err(errors::worker)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let worker = self.inner.get_mut().take();
        if self.process.check().is_err() {
            // The threads that would end it exist in the parent only.
            std::mem::forget(worker);
            return;
        }
        Python::attach(|py| py.detach(|| drop(worker)));
    }
}
