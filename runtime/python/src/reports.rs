//! The reports of `synchronize`, `step` and `resumed`, as Python sees them. The fields are those of
//! the runtime's own types, which document them.

use pyo3::prelude::*;
use std::path::PathBuf;

/// The result of `synchronize`.
#[pyclass(frozen, get_all, module = "slowmo")]
#[derive(Clone, Debug)]
pub struct Synchronized {
    pub nodes: usize,
    pub node_rank: usize,
    pub workers: usize,
    pub worker: usize,
    pub round: u64,
    pub step: u64,
}

impl From<slowmo::Synchronized> for Synchronized {
    fn from(from: slowmo::Synchronized) -> Self {
        Self {
            nodes: from.nodes,
            node_rank: from.node_rank,
            workers: from.workers,
            worker: from.worker,
            round: from.round,
            step: from.step,
        }
    }
}

/// The result of one `step`.
#[pyclass(frozen, get_all, module = "slowmo")]
#[derive(Clone, Debug)]
pub struct StepReport {
    pub step: u64,
    pub exchange: &'static str,
    pub slow_step: bool,
    pub round: Option<u64>,
    pub contributors: usize,
    pub weight: f64,
    pub nodes: usize,
    pub node_rank: usize,
    pub caught_up: bool,
    pub drained: bool,
}

impl From<slowmo::StepReport> for StepReport {
    fn from(from: slowmo::StepReport) -> Self {
        let exchange = match from.exchange {
            slowmo::Exchange::Nothing => "nothing",
            slowmo::Exchange::Gossip => "gossip",
            slowmo::Exchange::Average => "average",
            slowmo::Exchange::SlowRound => "slow_round",
        };
        Self {
            step: from.step,
            exchange,
            slow_step: from.slow_step,
            round: from.round,
            contributors: from.contributors,
            weight: from.weight,
            nodes: from.nodes,
            node_rank: from.node_rank,
            caught_up: from.caught_up,
            drained: from.drained,
        }
    }
}

/// The checkpoint that the training continues from.
#[pyclass(frozen, get_all, module = "slowmo")]
#[derive(Clone, Debug)]
pub struct ResumedFrom {
    pub path: PathBuf,
    pub step: u64,
    pub rounds: u64,
    pub run: u32,
    pub cursors: Vec<(u64, String)>,
}

impl From<slowmo::ResumedFrom> for ResumedFrom {
    fn from(from: slowmo::ResumedFrom) -> Self {
        Self {
            path: from.path,
            step: from.step,
            rounds: from.rounds,
            run: from.run,
            cursors: from.cursors,
        }
    }
}

/// Gives a report a text for people, with its fields.
macro_rules! shown {
    ($($report:ident { $($field:ident),* })*) => {
        $(
            #[pymethods]
            impl $report {
                fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
                    let mut fields = Vec::new();
                    $(
                        let value = slf.getattr(stringify!($field))?.repr()?;
                        fields.push(format!("{}={value}", stringify!($field)));
                    )*
                    Ok(format!("{}({})", stringify!($report), fields.join(", ")))
                }
            }
        )*
    };
}

shown! {
    Synchronized { nodes, node_rank, workers, worker, round, step }
    StepReport {
        step, exchange, slow_step, round, contributors, weight, nodes, node_rank, caught_up, drained
    }
    ResumedFrom { path, step, rounds, run, cursors }
}
