//! Algorithms side by side on the digits: what each learns, sends and takes, next to what others
//! measured.

mod cluster;
mod peers;
mod plot;
mod report;

pub use cluster::{ClusterRun, run_cluster};
pub use peers::{PEER_NODES, PEER_SOURCE, PEER_STEPS, PeerFigures, peer_figures};
pub use plot::{PlotError, plot};
pub use report::{Report, table};

use crate::digits::{Dataset, Mlp, Options, Shards, TrainError};
use crate::method::{Method, Methods, Wire};
use crate::oracle;
use slowmo::tensors::flat::restore;

/// Inner steps between two points of a loss curve.
pub const STEPS_PER_POINT: u64 = 24;
/// Both ways to deal the images, in the order of tables and panels.
pub const BOTH_SHARDS: [Shards; 2] = [Shards::Even, Shards::Skewed];

/// What to compare.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Plan {
    /// Nodes, one worker each.
    #[arg(long, default_value_t = 4)]
    pub nodes: usize,
    /// Runs of each method; figures are their means.
    #[arg(long, default_value_t = 3)]
    pub seeds: u64,
    /// Inner steps of a run.
    #[arg(long, default_value_t = 600)]
    pub steps: u64,
    /// Images a worker takes for one step.
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Learning rate of the inner optimizer.
    #[arg(long, default_value_t = 0.02)]
    pub learning_rate: f32,
    /// Which methods.
    #[arg(long, value_enum, default_value_t)]
    pub methods: Methods,
    /// One way to deal the images; else both.
    #[arg(long, value_enum)]
    pub shards: Option<Shards>,
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

/// What one run ended with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Cross-entropy of the nodes' averaged model on all training images, in nats.
    pub train_loss: f64,
    /// Share of the test images that the averaged model classifies correctly, 0–1.
    pub test_accuracy: f64,
}

/// One method's figures on one way to deal the images; bytes, times and curves are means over the
/// seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Which method.
    pub method: Method,
    /// How the images were dealt.
    pub shards: Shards,
    /// What each run ended with, by seed.
    pub outcomes: Vec<Outcome>,
    /// UDP payload bytes a node sent, the mean over nodes; nothing is sent in a simulation.
    pub sent_bytes_per_node: Option<f64>,
    /// Wall time of one inner step of the slowest node, in milliseconds; not measured in a
    /// simulation.
    pub step_ms: Option<f64>,
    /// Completed inner steps and training loss of the averaged model then.
    pub curve: Vec<(u64, f64)>,
}

impl Figures {
    /// The mean over the seeds, and the standard deviation where there are at least two.
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

/// What has been finished, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Runs finished.
    pub finished: usize,
    /// Runs in all.
    pub runs: usize,
    /// The method just finished.
    pub method: Method,
    /// How its images were dealt.
    pub shards: Shards,
}

/// Runs every method on every way to deal the images, one run after the other.
///
/// # Errors
/// The first run that fails; before any run, that a method cannot be simulated.
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
        ..
    } = *plan;
    let options = Options {
        steps,
        batch,
        learning_rate,
        seed,
        shards,
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
    let mut model = Mlp::seeded(0)?;
    let mut curve = Vec::with_capacity(run.snapshots.len());
    for (step, parameters) in &run.snapshots {
        restore(parameters, model.variables_mut())?;
        curve.push((*step, model.evaluate(train)?.loss));
    }
    restore(&run.parameters, model.variables_mut())?;
    Ok(Figures {
        method: *method,
        shards,
        outcomes: vec![Outcome {
            train_loss: model.evaluate(train)?.loss,
            test_accuracy: model.evaluate(test)?.accuracy,
        }],
        sent_bytes_per_node: run.sent_bytes_per_node,
        step_ms: run.step_ms,
        curve,
    })
}

/// The means over runs of one method; nothing without runs.
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
