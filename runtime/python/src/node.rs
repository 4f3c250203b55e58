//! The node of this process.

use crate::config::Config;
use crate::errors;
use crate::process::{Claim, Process, Refused};
use crate::worker::Worker;
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// A node: it lives until it is closed and its workers are gone.
#[pyclass(frozen, module = "slowmo._slowmo")]
pub struct Runtime {
    /// `None` after it was closed.
    inner: Mutex<Option<(slowmo::Runtime, Arc<Claim>)>>,
    process: Process,
}

impl Runtime {
    /// Calls `work` with the runtime, if it may be used here.
    fn with<T>(&self, work: impl FnOnce(&slowmo::Runtime) -> T) -> PyResult<T> {
        self.process.check().map_err(errors::process)?;
        let inner = self.inner.lock();
        let (runtime, _) = inner
            .as_ref()
            .ok_or_else(|| errors::process(Refused::Closed))?;
        Ok(work(runtime))
    }
}

#[pymethods]
impl Runtime {
    /// Starts a node with these settings.
    #[new]
    fn new(py: Python<'_>, config: &Config) -> PyResult<Self> {
        let (process, claim) = Process::claim().map_err(errors::process)?;
        let builder = slowmo::Runtime::builder().config(config.inner.clone());
        let runtime = py.detach(|| builder.spawn()).map_err(errors::spawn)?;
        Ok(Self {
            inner: Mutex::new(Some((runtime, claim))),
            process,
        })
    }

    /// Takes the handle of worker `index`.
    fn worker(&self, index: usize) -> PyResult<Worker> {
        self.process.check().map_err(errors::process)?;
        let inner = self.inner.lock();
        let (runtime, claim) = inner
            .as_ref()
            .ok_or_else(|| errors::process(Refused::Closed))?;
        let worker = runtime.worker(index).map_err(errors::worker)?;
        Ok(Worker::new(worker, self.process, Arc::clone(claim)))
    }

    /// This node's id.
    #[getter]
    fn node_id(&self) -> PyResult<u64> {
        self.with(slowmo::Runtime::node_id)
    }

    /// The address at which this node listens.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.with(|runtime| runtime.address().to_string())
    }

    /// The address of this node's HTTP endpoint, if it has one.
    #[getter]
    fn http_address(&self) -> PyResult<Option<String>> {
        self.with(|runtime| runtime.http_address().map(|address| address.to_string()))
    }

    /// Hands over in the next round and leaves.
    fn drain(&self) -> PyResult<()> {
        self.with(slowmo::Runtime::drain)
    }

    /// The node's report of itself and the cluster, as JSON.
    fn status(&self) -> PyResult<String> {
        let status = self.with(slowmo::Runtime::status)?;
        serde_json::to_string(&status).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Gives the runtime up; the node ends once its workers are gone too.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check().map_err(errors::process)?;
        let runtime = self.inner.lock().take();
        py.detach(|| drop(runtime));
        Ok(())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let runtime = self.inner.get_mut().take();
        if self.process.check().is_err() {
            // The threads that would end it exist in the parent only.
            std::mem::forget(runtime);
            return;
        }
        // It tells its peers, which may take a moment.
        Python::attach(|py| py.detach(|| drop(runtime)));
    }
}

/// Writes the parameters and the model's buffers of a checkpoint into one new safetensors file.
#[pyfunction]
pub fn export_checkpoint(py: Python<'_>, folder: PathBuf, to: PathBuf) -> PyResult<usize> {
    py.detach(|| {
        let checkpoint = slowmo::Checkpoint::open(&folder)?;
        slowmo::export(&checkpoint, &to)
    })
    .map_err(errors::checkpoint)
}
