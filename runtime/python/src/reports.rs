//! The reports of `synchronize`, `step` and `resumed`, as Python sees them. The fields are those of
//! the runtime's own types, which document them.

use pyo3::prelude::*;
use std::path::PathBuf;

/// The result of `synchronize`.
#[pyclass(frozen, get_all, module = "slowmo")]
#[derive(Clone, Debug)]
pub struct Synchronized {
    /// Nodes in the view.
    pub nodes: usize,
    /// This node's place among them, in ascending order of ids.
    pub node_rank: usize,
    /// Workers of this node.
    pub workers: usize,
    /// This worker's place among them.
    pub worker: usize,
    /// The next round; 1 where a training begins.
    pub round: u64,
    /// The next inner step; 0 where a training begins.
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
    /// The inner step that is complete, counted from 0.
    pub step: u64,
    /// What was exchanged: "nothing", "gossip", "average" or "slow_round".
    pub exchange: &'static str,
    /// Whether the step took SlowMo's slow step, on an exact average or on this node's own values.
    pub slow_step: bool,
    /// The round that was decided, if one was due.
    pub round: Option<u64>,
    /// Nodes whose values were averaged, this one included; 0 if nothing was exchanged.
    pub contributors: usize,
    /// This node's push-sum weight after the step; 1 without gossip.
    pub weight: f64,
    /// Nodes in the view; 0 if nothing was exchanged.
    pub nodes: usize,
    /// This node's place among them, in ascending order of ids.
    pub node_rank: usize,
    /// Whether this node had missed rounds and took over the others' parameters.
    pub caught_up: bool,
    /// Whether this node was drained, and has handed over with this step.
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
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// The next inner step.
    pub step: u64,
    /// Rounds that were decided before it was written.
    pub rounds: u64,
    /// The run that wrote it.
    pub run: u32,
    /// The text that each node set with `set_cursor`, by the node's id.
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
