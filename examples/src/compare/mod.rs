//! Comparison of the algorithms on the digits: loss and accuracy, bytes sent and time, next to the
//! figures of other implementations.

mod cluster;
mod peers;
mod plot;
mod report;

pub use cluster::{ClusterRun, run_cluster};
pub use peers::{PEER_NODES, PEER_SOURCE, PEER_STEPS, PeerFigures, peer_figures};
pub use plot::{PlotError, plot};
pub use report::{Report, table};

use crate::digits::{Dataset, Mlp, Options, ParameterType, Shards, TrainError};
use crate::method::{Method, Methods, Wire};
use crate::oracle;
use slowmo::internal::tensors::flat::restore;

/// Inner steps between two points of a loss curve.
pub const STEPS_PER_POINT: u64 = 24;
/// Both ways to deal the images, in the order of tables and panels.
pub const BOTH_SHARDS: [Shards; 2] = [Shards::Even, Shards::Skewed];

/// Parameters of a comparison.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Plan {
    /// Number of nodes, with one worker each.
    #[arg(long, default_value_t = 4)]
    pub nodes: usize,
    /// Runs of each method; figures are their means.
    #[arg(long, default_value_t = 3)]
    pub seeds: u64,
    /// Inner steps of a run.
    #[arg(long, default_value_t = 600)]
    pub steps: u64,
    /// Images per worker and step.
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Learning rate of the inner optimizer.
    #[arg(long, default_value_t = 0.02)]
    pub learning_rate: f32,
    /// Set of methods to compare.
    #[arg(long, value_enum, default_value_t)]
    pub methods: Methods,
    /// Method of dealing the images; both unless given.
    #[arg(long, value_enum)]
    pub shards: Option<Shards>,
    /// Type in which the parameters are kept and lent to the runtime.
    #[arg(long, value_enum, default_value_t)]
    pub dtype: ParameterType,
    /// Simulate all nodes by exact arithmetic in one thread: no runtime, no network, no times.
    #[arg(long)]
    pub simulate: bool,
}

impl Plan {
    fn all_shards(&self) -> Vec<Shards> {
        BOTH_SHARDS
            .into_iter()
            .filter(|shards| self.shards.is_none_or(|only| only == *shards))
            .collect()
    }
}

/// Result of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Cross-entropy of the nodes' averaged model on all training images, in nats.
    pub train_loss: f64,
    /// Share of the test images that the averaged model classifies correctly, 0–1.
    pub test_accuracy: f64,
}

/// Figures of one method with one way of dealing the images; bytes, times and curves are means over
/// the seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The method.
    pub method: Method,
    /// Method of dealing the images.
    pub shards: Shards,
    /// Result of each run, by seed.
    pub outcomes: Vec<Outcome>,
    /// UDP payload bytes sent per node: mean over the nodes; `None` in a simulation.
    pub sent_bytes_per_node: Option<f64>,
    /// Wall time of one inner step of the slowest node, in milliseconds; `None` in a simulation.
    pub step_ms: Option<f64>,
    /// Numbers of completed inner steps, each with the training loss of the averaged model at that
    /// time.
    pub curve: Vec<(u64, f64)>,
}

impl Figures {
    /// The mean over the seeds, and the standard deviation if there are at least two seeds.
    #[must_use]
    pub fn statistics(&self, value: impl Fn(&Outcome) -> f64) -> (f64, Option<f64>) {
        let count = self.outcomes.len() as f64;
        let mean = self.outcomes.iter().map(&value).sum::<f64>() / count;
        let squares = self
            .outcomes
            .iter()
            .map(|outcome| (value(outcome) - mean).powi(2))
            .sum::<f64>();
        (
            mean,
            (count > 1.0).then(|| (squares / (count - 1.0)).sqrt()),
        )
    }
}

/// Progress of the comparison, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Number of finished runs.
    pub finished: usize,
    /// Total number of runs.
    pub runs: usize,
    /// The method just finished.
    pub method: Method,
    /// Method of dealing its images.
    pub shards: Shards,
}

/// Runs every method with every way of dealing the images, one run after the other.
///
/// # Errors
/// The error of the first run that fails, or, before any run, that a method or type cannot be
/// simulated.
pub fn compare(
    plan: &Plan,
    mut on_progress: impl FnMut(&Progress),
) -> Result<Vec<Figures>, TrainError> {
    let seeds = usize::try_from(plan.seeds).unwrap_or(usize::MAX).max(1);
    let methods = plan.methods.all();
    let all_shards = plan.all_shards();
    if let Some(encoded) = methods
        .iter()
        .find(|method| plan.simulate && method.wire != Wire::Float32)
    {
        return Err(TrainError::NotSimulated(encoded.wire.word()));
    }
    if plan.simulate
        && let Some(half) = plan.dtype.half()
    {
        return Err(TrainError::NotSimulated(half.name()));
    }
    let runs = all_shards.len() * methods.len() * seeds;
    let train = Dataset::train()?;
    let test = Dataset::test()?;
    let mut all = Vec::new();
    let mut finished = 0;
    for shards in all_shards {
        for method in &methods {
            let mut outcomes = Vec::with_capacity(seeds);
            for seed in 0..plan.seeds.max(1) {
                let run = run(plan, method, shards, seed)?;
                outcomes.push(judge(run, method, shards, &train, &test)?);
                finished += 1;
                on_progress(&Progress {
                    finished,
                    runs,
                    method: *method,
                    shards,
                });
            }
            all.extend(mean_of(&outcomes));
        }
    }
    Ok(all)
}

fn run(plan: &Plan, method: &Method, shards: Shards, seed: u64) -> Result<ClusterRun, TrainError> {
    let Plan {
        steps,
        batch,
        learning_rate,
        dtype,
        ..
    } = *plan;
    let options = Options {
        steps,
        batch,
        learning_rate,
        seed,
        shards,
        dtype,
        steps_per_snapshot: STEPS_PER_POINT,
        fixed_batches: true,
        ..Options::default()
    };
    if plan.simulate {
        let run = oracle::train(plan.nodes, method, &options)?;
        return Ok(ClusterRun {
            parameters: run.parameters,
            snapshots: run.snapshots,
            sent_bytes_per_node: None,
            step_ms: None,
        });
    }
    run_cluster(plan.nodes, method, &options)
}

/// Evaluates the averaged models of one run.
fn judge(
    run: ClusterRun,
    method: &Method,
    shards: Shards,
    train: &Dataset,
    test: &Dataset,
) -> Result<Figures, TrainError> {
    let mut model = Mlp::seeded(0);
    let mut curve = Vec::with_capacity(run.snapshots.len());
    for (step, parameters) in &run.snapshots {
        restore(parameters, model.parameters_mut())?;
        curve.push((*step, model.evaluate(train).loss));
    }
    restore(&run.parameters, model.parameters_mut())?;
    Ok(Figures {
        method: *method,
        shards,
        outcomes: vec![Outcome {
            train_loss: model.evaluate(train).loss,
            test_accuracy: model.evaluate(test).accuracy,
        }],
        sent_bytes_per_node: run.sent_bytes_per_node,
        step_ms: run.step_ms,
        curve,
    })
}

/// The means over the runs of one method; `None` without runs.
fn mean_of(runs: &[Figures]) -> Option<Figures> {
    let first = runs.first()?;
    let mean =
        |value: &dyn Fn(&Figures) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
    let point = |index: usize| mean(&|run| run.curve.get(index).map_or(f64::NAN, |point| point.1));
    Some(Figures {
        method: first.method,
        shards: first.shards,
        outcomes: runs
            .iter()
            .flat_map(|run| run.outcomes.iter().copied())
            .collect(),
        sent_bytes_per_node: first
            .sent_bytes_per_node
            .map(|_| mean(&|run| run.sent_bytes_per_node.unwrap_or(f64::NAN))),
        step_ms: first
            .step_ms
            .map(|_| mean(&|run| run.step_ms.unwrap_or(f64::NAN))),
        curve: first
            .curve
            .iter()
            .enumerate()
            .map(|(index, (step, _))| (*step, point(index)))
            .collect(),
    })
}
