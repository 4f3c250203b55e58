//! slowmo for Python: the extension module `slowmo._slowmo`, on which the package `slowmo` stands.
//! It lends tensors to the runtime by address, waits without the interpreter's lock, and translates
//! errors, reports and the log.
//!
//! | file | holds |
//! |---|---|
//! | `memory` | the tensors' memory: the only `unsafe` blocks |
//! | `worker` | a worker's handle |
//! | `node` | the node of this process |
//! | `config` | settings |
//! | `reports` | what a call reports |
//! | `process` | one node a process, none after a fork |
//! | `waiting` | waits that release the interpreter and hear Ctrl-C |
//! | `errors` | one exception class per error type |
//! | `log` | the log, on its way to Python's `logging` |
//!
//! `_slowmo.pyi` of the package describes the extension to type checkers.
#![deny(missing_docs)]

mod config;
mod errors;
mod log;
mod memory;
mod node;
mod process;
mod reports;
mod sampler;
mod waiting;
mod worker;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _slowmo {
    #[pymodule_export]
    use crate::config::Config;
    #[pymodule_export]
    use crate::errors::{
        CheckpointError, ConfigError, GradientError, ProcessError, SamplerError, SlowmoError,
        SpawnError, StepError, SynchronizeError, TensorError, WorkerError,
    };
    #[pymodule_export]
    use crate::log::{logged, start_log};
    #[pymodule_export]
    use crate::node::{Runtime, export_checkpoint};
    #[pymodule_export]
    use crate::reports::{ResumedFrom, StepReport, Synchronized};
    #[pymodule_export]
    use crate::sampler::ElasticSampler;
    #[pymodule_export]
    use crate::worker::Worker;

    /// The package's version.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
