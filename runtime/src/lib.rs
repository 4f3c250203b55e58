//! The API for training binaries: spawn the runtime, synchronize, average gradients, step, leave.
//!
//! ```no_run
//! # fn gradients(_: &[f32]) -> Vec<f32> { vec![0.0; 4] }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = slowmo::Runtime::builder().config(slowmo::Config::load()?).spawn()?;
//! let mut worker = runtime.worker(0)?;
//! let mut parameters = vec![0.0f32; 4];
//! let mut step = worker.synchronize(&mut parameters)?.step;
//! while worker.is_running() && step < 100 {
//!     let mut gradients = gradients(&parameters);
//!     worker.average_gradients(&mut gradients)?;
//!     parameters.iter_mut().zip(&gradients).for_each(|(x, g)| *x -= 0.1 * g);
//!     step = worker.step(&mut parameters, 0.1)?.step + 1;
//! }
//! worker.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! The loop ends after its last step, or once the node was drained (SIGTERM, `slowmo drain`). Both
//! are a success: a supervisor need not start the process again.
//!
//! This crate connects the actors of `slowmo-actors` to real implementations: QUIC, devices,
//! configuration, discovery. With the feature `cuda` the model may live on GPUs: pass
//! `Slices` with `device = "cuda"`.
#![deny(missing_docs)]

mod admin;
mod changes;
mod checkpoints;
mod cluster;
mod config;
mod connection;
mod credentials;
mod device;
mod discovery;
mod error;
mod executor;
#[doc(hidden)]
pub mod internal;
mod last_report;
mod launcher;
mod marker;
mod memory;
mod node;
mod orders;
mod printable;
mod recorder;
mod runtime;
mod sampler;
mod secret_file;
mod signing;
pub mod status;
mod telemetry;
mod tensors;
mod transport;
mod worker;

pub use changes::SettingError;
pub use checkpoints::{Checkpoint, CheckpointError, export};
pub use config::{BaseName, Config, ConfigError, OuterName, WireType, user_arguments};
pub use error::{GradientError, SpawnError, StepError, SynchronizeError, WorkerError};
pub use runtime::{Runtime, RuntimeBuilder};
pub use sampler::{ElasticSampler, SamplerError};
pub use slowmo_actors::ExchangeError;
#[cfg(feature = "cuda")]
pub use slowmo_cuda::{Slices, cudarc};
pub use slowmo_protocol::schedule::Exchange;
pub use tensors::{
    Counter, Half, NamedTensors, TensorError, Tensors, Values, ValuesMut, digest, read_widened,
    write_rounded,
};
pub use worker::{AsyncWorker, Buffers, ResumedFrom, StepReport, Synchronized, Worker};

/// Compiles the Rust snippets of the documentation as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/chaos.md")]
    struct Chaos;
    #[doc = include_str!("../../docs/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../../docs/clusters.md")]
    struct Clusters;
    #[doc = include_str!("../../docs/compare.md")]
    struct Compare;
    #[doc = include_str!("../../docs/configuration.md")]
    struct Configuration;
    #[doc = include_str!("../../docs/fairscale.md")]
    struct Fairscale;
    #[cfg(feature = "cuda")]
    #[doc = include_str!("../../docs/gpus.md")]
    struct Gpus;
    #[doc = include_str!("../../docs/memory.md")]
    struct Memory;
    #[doc = include_str!("../../docs/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../../docs/recipes.md")]
    struct Recipes;
}
