//! The elastic sampler, which gives each sample of an epoch to exactly one of the present nodes.

use crate::errors;
use parking_lot::Mutex;
use pyo3::prelude::*;

/// Batches of sample indices for one worker. Attach it before the worker synchronizes.
#[pyclass(frozen, module = "slowmo")]
pub struct ElasticSampler {
    pub(crate) inner: Mutex<slowmo::ElasticSampler>,
}

#[pymethods]
impl ElasticSampler {
    /// Batches of `batch` out of `samples` samples; `seed` determines the order of every epoch.
    #[new]
    fn new(samples: usize, batch: usize, seed: u64) -> PyResult<Self> {
        let inner = slowmo::ElasticSampler::new(samples, batch, seed).map_err(errors::sampler)?;
        let inner = Mutex::new(inner);
        Ok(Self { inner })
    }

    /// The indices of the samples for the worker's current inner step.
    fn next_batch(&self) -> Vec<usize> {
        self.inner.lock().next_batch().to_vec()
    }

    /// Epochs completed by the decided rounds of the cluster.
    fn epochs_completed(&self) -> u64 {
        self.inner.lock().epochs_completed()
    }
}
