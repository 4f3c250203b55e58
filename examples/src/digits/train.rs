//! The training loop of one node: its workers, each on its own thread, and their reports.

use super::source::{Source, SourceError};
use super::{
    DataError, Dataset, Event, HalfParameters, Mlp, NesterovSgd, ParameterType, Shards, Summary,
};
use slowmo::internal::tensors::flat::RestoreError;
use slowmo::{Buffers, Config, Runtime, StepReport, Synchronized, Tensors, Worker};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Momentum of the inner optimizer.
pub const MOMENTUM: f32 = 0.9;
/// Inner steps between consecutive [`Event::Step`] events.
const STEPS_PER_EVENT: u64 = 5;

/// Training parameters, equal on every node.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Options {
    /// Total inner steps, including those before this node joined.
    #[arg(long, default_value_t = 600)]
    pub steps: u64,
    /// Ends at the first round after which this many epochs are used up completely, instead of
    /// after `steps`; even shards only.
    #[arg(long, conflicts_with = "steps")]
    pub epochs: Option<u64>,
    /// Reports the loss on all training images after every this many rounds; 0 never.
    #[arg(long, default_value_t = 0)]
    pub rounds_per_evaluation: u64,
    /// Writes the images that this node used in decided rounds into a new file in this folder, one
    /// line `round epoch image` each; even shards only.
    #[arg(long)]
    pub samples_log: Option<PathBuf>,
    /// Minimum duration of an inner step in milliseconds: the rest is slept, as if the model were
    /// larger.
    #[arg(long, default_value_t = 0)]
    pub step_ms: u64,
    /// Images per worker and step.
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Learning rate of the inner optimizer (SGD with Nesterov momentum 0.9).
    #[arg(long, default_value_t = 0.02)]
    pub learning_rate: f32,
    /// Seed of the initial weights, the shards and the order of the images.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Method of dealing the images to the workers.
    #[arg(long, value_enum, default_value_t)]
    pub shards: Shards,
    /// Type in which the parameters are kept and lent to the runtime.
    #[arg(long, value_enum, default_value_t)]
    pub dtype: ParameterType,
    /// Keeps a copy of worker 0's parameters after every this many completed inner steps; 0 keeps
    /// none.
    #[arg(skip)]
    pub steps_per_snapshot: u64,
    /// Deals the images to the bootstrap workers once, even where shards are even, for results that
    /// do not depend on rounds.
    #[arg(skip)]
    pub fixed_batches: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steps: 600,
            epochs: None,
            rounds_per_evaluation: 0,
            samples_log: None,
            step_ms: 0,
            batch: 16,
            learning_rate: 0.02,
            seed: 0,
            shards: Shards::Even,
            dtype: ParameterType::F32,
            steps_per_snapshot: 0,
            fixed_batches: false,
        }
    }
}

/// Period at which the accuracy is shown during training.
const ACCURACY_INTERVAL: Duration = Duration::from_secs(1);

/// A finished run and its final parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Figures of the run.
    pub summary: Summary,
    /// Worker 0's final parameters, flat.
    pub parameters: Vec<f32>,
    /// Numbers of completed inner steps, each with worker 0's parameters at that time, as requested
    /// by [`Options::steps_per_snapshot`].
    pub snapshots: Vec<(u64, Vec<f32>)>,
}

/// Reasons why training ended early. Other nodes continue without this one.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The digits in the binary are damaged.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model's values could not be read.
    #[error(transparent)]
    Tensor(#[from] slowmo::TensorError),
    /// The model's values could not be replaced.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The runtime did not start.
    #[error("the runtime did not start: {0}")]
    Spawn(slowmo::SpawnError),
    /// A setting was refused.
    #[error(transparent)]
    Config(#[from] slowmo::ConfigError),
    /// There is no folder in which the nodes of this machine could find each other.
    #[error("no temporary folder: {0}")]
    Folder(std::io::Error),
    /// A worker's handle was refused.
    #[error(transparent)]
    Worker(#[from] slowmo::WorkerError),
    /// The initial parameters did not arrive.
    #[error(transparent)]
    Synchronize(slowmo::SynchronizeError),
    /// The gradients could not be averaged.
    #[error(transparent)]
    Gradients(slowmo::GradientError),
    /// A step of the runtime failed.
    #[error(transparent)]
    Step(slowmo::StepError),
    /// The node could not leave properly.
    #[error(transparent)]
    Leave(slowmo::WorkerError),
    /// The batches could not be dealt.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The simulation knows float32 only.
    #[error("values as {0} are not simulated: only f32 is")]
    NotSimulated(&'static str),
    /// A worker's thread panicked.
    #[error("the thread of worker {0} panicked: its message is on stderr")]
    Panicked(usize),
}

impl From<slowmo::SpawnError> for TrainError {
    fn from(error: slowmo::SpawnError) -> Self {
        Self::Spawn(error)
    }
}

/// Trains as one node of the cluster that `config` describes, with one thread per worker;
/// `on_event` receives the events of worker 0.
///
/// # Errors
/// See [`TrainError`]; the error of the first failing worker.
pub fn train(
    config: Config,
    options: &Options,
    on_event: impl FnMut(&Event) + Send,
) -> Result<Summary, TrainError> {
    train_keeping_model(config, options, on_event).map(|trained| trained.summary)
}

/// As [`train`], but also returns the parameters.
///
/// # Errors
/// As [`train`].
pub fn train_keeping_model(
    config: Config,
    options: &Options,
    mut on_event: impl FnMut(&Event) + Send,
) -> Result<Trained, TrainError> {
    let devices = usize::from(config.devices);
    let runtime = Runtime::builder().config(config).spawn()?;
    let mut workers = (0..devices)
        .map(|index| runtime.worker(index))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter();
    let Some(first) = workers.next() else {
        return Err(TrainError::Panicked(0));
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = workers
            .map(|worker| scope.spawn(move || train_silently(worker, options)))
            .collect();
        let trained = scope
            .spawn(|| train_reporting(first, &runtime, options, &mut on_event))
            .join();
        let others: Vec<_> = others.into_iter().map(|thread| thread.join()).collect();
        let trained = trained.map_err(|_| TrainError::Panicked(0))??;
        for (index, other) in others.into_iter().enumerate() {
            other.map_err(|_| TrainError::Panicked(index + 1))??;
        }
        Ok(trained)
    })
}

fn train_silently(worker: Worker, options: &Options) -> Result<(), TrainError> {
    let mut replica = Replica::synchronized(worker, options)?;
    replica.run(options, |_, _, _| Ok(()))?;
    replica.worker.leave().map_err(TrainError::Leave)
}

fn train_reporting(
    worker: Worker,
    runtime: &Runtime,
    options: &Options,
    on_event: &mut dyn FnMut(&Event),
) -> Result<Trained, TrainError> {
    let mut replica = Replica::synchronized(worker, options)?;
    on_event(&start_event(runtime.node_id(), &replica));
    let mut snapshots = Vec::new();
    let train_data = Dataset::train()?;
    let elapsed = replica.run(options, |report, loss, model| {
        let step = report.step + 1;
        if step % STEPS_PER_EVENT == 0 {
            on_event(&Event::Step { step, loss });
        }
        if let Some(round) = report.round {
            let digest = slowmo::digest(model.parameters())?;
            let evaluate = round.checked_rem(options.rounds_per_evaluation) == Some(0);
            let train_loss = if evaluate {
                Some(model.evaluate(&train_data).loss)
            } else {
                None
            };
            on_event(&Event::Round {
                round,
                step,
                contributors: report.contributors,
                digest,
                train_loss,
            });
        }
        if step.checked_rem(options.steps_per_snapshot) == Some(0) {
            snapshots.push((step, model.parameters().flat()));
        }
        Ok(())
    })?;
    let summary = replica.summary(runtime, elapsed)?;
    on_event(&Event::Done(summary.clone()));
    let parameters = replica.model.parameters().flat();
    replica.worker.leave().map_err(TrainError::Leave)?;
    Ok(Trained {
        summary,
        parameters,
        snapshots,
    })
}

fn start_event(node: u64, replica: &Replica) -> Event {
    let Synchronized {
        nodes,
        node_rank,
        workers,
        round,
        step,
        ..
    } = replica.place;
    Event::Start {
        node,
        node_rank,
        nodes,
        workers,
        round,
        step,
        parameters: replica.model.parameters().flat().len(),
    }
}

/// One worker's copy of the model and all that is needed to train it.
struct Replica {
    worker: Worker,
    place: Synchronized,
    data: Dataset,
    source: Source,
    model: Mlp,
    /// The parameters that are trained and lent, if they are not the model's own.
    halves: Option<HalfParameters>,
    /// Its velocities are passed to the runtime at every step, so that checkpoints contain them.
    optimizer: NesterovSgd,
    /// Inner steps completed.
    steps: u64,
}

impl Replica {
    /// Waits for the cluster's parameters and takes this worker's share of the images.
    fn synchronized(mut worker: Worker, options: &Options) -> Result<Self, TrainError> {
        let data = Dataset::train()?;
        let mut model = Mlp::seeded(options.seed);
        let source = Source::attached(&mut worker, options, data.len())?;
        let mut optimizer = NesterovSgd::new(model.parameters(), MOMENTUM);
        let buffers = Buffers {
            optimizer: optimizer.velocities_mut(),
            model: &mut (),
        };
        let half = options.dtype.half();
        let mut halves = half.map(|half| HalfParameters::of(model.parameters(), half));
        let place = worker
            .synchronize_with(lent(&mut model, &mut halves), buffers)
            .map_err(TrainError::Synchronize)?;
        widen(&mut model, &halves);
        let source = source.placed(&place, &data, options)?;
        Ok(Self {
            worker,
            place,
            data,
            source,
            model,
            halves,
            optimizer,
            steps: place.step,
        })
    }

    /// Trains to the last step, or until the node is drained; `observe` receives each step's
    /// report, batch loss and parameters.
    fn run(
        &mut self,
        options: &Options,
        mut observe: impl FnMut(&StepReport, f64, &Mlp) -> Result<(), TrainError>,
    ) -> Result<Duration, TrainError> {
        let start = Instant::now();
        let test = Dataset::test()?;
        let mut evaluated = start;
        while self.worker.is_running() && !self.source.is_finished(self.steps, options) {
            let begun = Instant::now();
            let batch = self.data.batch(self.source.batch(self.steps));
            let (loss, mut gradients) = self.model.loss_and_gradients(&batch);
            self.worker
                .average_gradients(&mut gradients)
                .map_err(TrainError::Gradients)?;
            let parameters = self.model.parameters_mut();
            self.optimizer
                .step(parameters, &gradients, options.learning_rate);
            if let Some(halves) = &mut self.halves {
                halves.take(parameters);
            }
            self.worker.report_loss(loss);
            if evaluated.elapsed() >= ACCURACY_INTERVAL {
                evaluated = Instant::now();
                self.worker
                    .report("accuracy", self.model.evaluate(&test).accuracy)?;
            }
            std::thread::sleep(
                Duration::from_millis(options.step_ms).saturating_sub(begun.elapsed()),
            );
            let buffers = Buffers {
                optimizer: self.optimizer.velocities_mut(),
                model: &mut (),
            };
            let lent = lent(&mut self.model, &mut self.halves);
            let stepped = self.worker.step_with(lent, buffers, options.learning_rate);
            let report = stepped.map_err(TrainError::Step)?;
            widen(&mut self.model, &self.halves);
            self.steps = report.step + 1;
            self.source.log()?;
            observe(&report, loss, &self.model)?;
        }
        Ok(start.elapsed())
    }

    fn summary(&self, runtime: &Runtime, elapsed: Duration) -> Result<Summary, TrainError> {
        let sent_bytes = runtime.traffic().sent_bytes;
        Ok(Summary {
            node: runtime.node_id(),
            test_accuracy: self.model.evaluate(&Dataset::test()?).accuracy,
            train_loss: self.model.evaluate(&self.data).loss,
            digest: slowmo::digest(self.model.parameters())?,
            steps: self.steps,
            elapsed_s: elapsed.as_secs_f64(),
            sent_bytes,
            samples: self.source.samples_used(),
        })
    }
}

/// Returns the tensors that are lent as the parameters.
fn lent<'a>(model: &'a mut Mlp, halves: &'a mut Option<HalfParameters>) -> &'a mut dyn Tensors {
    match halves {
        Some(halves) => halves,
        None => model.parameters_mut(),
    }
}

/// Lets the model compute with the parameters that were lent.
fn widen(model: &mut Mlp, halves: &Option<HalfParameters>) {
    if let Some(halves) = halves {
        halves.widen_into(model.parameters_mut());
    }
}
