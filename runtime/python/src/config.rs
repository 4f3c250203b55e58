//! Settings, by the names and texts that files, variables and flags have.

use crate::errors;
use pyo3::prelude::*;
use slowmo::internal::config::DeviceName;
use slowmo::{BaseName, OuterName};

/// The keys that decide whether optimizer state travels, each with its value for "it does not".
const LENDS_NONE: [(&str, &str); 2] = [("buffers", "maintain"), ("joiner_buffers", "reset")];

/// All settings of a node. `docs/configuration.md` lists the keys.
#[pyclass(module = "slowmo", from_py_object)]
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) inner: slowmo::Config,
}

#[pymethods]
impl Config {
    /// The defaults: a single node on loopback, with LocalSGD and SlowMo.
    #[new]
    fn new() -> Self {
        Self {
            inner: slowmo::Config::default(),
        }
    }

    /// The configuration of this process: a file, then `SLOWMO_*` variables, then `--slowmo-*`
    /// flags.
    #[staticmethod]
    fn load() -> PyResult<Self> {
        let inner = slowmo::Config::load().map_err(errors::config)?;
        Ok(Self { inner })
    }

    /// The same settings, to be changed without this one.
    fn copy(&self) -> Self {
        self.clone()
    }

    /// Sets one key from its text.
    fn set(&mut self, key: &str, value: &str) -> PyResult<()> {
        self.inner.set(key, value).map_err(errors::config)
    }

    /// Checks every value and every combination.
    fn check(&self) -> PyResult<()> {
        self.inner.check().map_err(errors::config)
    }

    /// The settings that all nodes must share, by key.
    fn shared(&self) -> Vec<(String, String)> {
        let settings = self.inner.shared_settings();
        let pairs = settings.lines().filter_map(|line| line.split_once(" = "));
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    /// Whether anything names other nodes, or a way to find them.
    #[getter]
    fn names_others(&self) -> bool {
        let config = &self.inner;
        config.join
            || config.min_nodes > 1
            || !config.peers.is_empty()
            || config.rendezvous.is_some()
            || config.discover.is_some()
    }

    /// Whether a cluster key or certificates are given.
    #[getter]
    fn has_credentials(&self) -> bool {
        let config = &self.inner;
        config.cluster_key.is_some()
            || config.cluster_key_file.is_some()
            || config.tls_ca_file.is_some()
    }

    /// Whether gradients are averaged over all nodes at every step.
    #[getter]
    fn averages_gradients(&self) -> bool {
        self.inner.base == BaseName::AllReduce
    }

    /// Workers of this node.
    #[getter]
    fn devices(&self) -> u16 {
        self.inner.devices
    }

    /// Whether the worker's device is a GPU, and this build lends tensors there.
    #[getter]
    fn on_gpu(&self) -> bool {
        cfg!(feature = "cuda") && self.inner.device == DeviceName::Cuda
    }

    /// Number of nodes that must meet before training starts.
    #[getter]
    fn min_nodes(&self) -> usize {
        self.inner.min_nodes
    }

    /// Whether rounds, joiners or checkpoints take the optimizer's state.
    #[getter]
    fn lends_optimizer(&self) -> bool {
        let shared = self.shared();
        let lends_none = |(key, value): &(&str, &str)| {
            let is_it = |(name, text): &(String, String)| name == key && text == value;
            shared.iter().any(is_it)
        };
        self.inner.checkpoint_every.is_some() || !LENDS_NONE.iter().all(lends_none)
    }

    /// Whether outer rounds take SlowMo's slow step on exact averages.
    #[getter]
    fn is_slowmo(&self) -> bool {
        self.inner.outer == OuterName::SlowMo && !self.inner.no_average
    }

    /// Inner steps of an outer round.
    #[getter]
    fn tau(&self) -> u64 {
        self.inner.tau
    }

    /// SlowMo's slow learning rate.
    #[getter]
    fn alpha(&self) -> f32 {
        self.inner.alpha
    }

    /// SlowMo's slow momentum.
    #[getter]
    fn beta(&self) -> f32 {
        self.inner.beta
    }

    fn __repr__(&self) -> String {
        // Only the shared keys: no secret is among them.
        format!(
            "Config({})",
            self.inner.shared_settings().trim().replace('\n', ", ")
        )
    }
}
