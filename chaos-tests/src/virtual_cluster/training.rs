//! The training loop of one incarnation of a node: the loop that a user writes, with inner steps
//! that only take time.

use super::record::Record;
use crate::sim::config::Config;
use crate::sim::node::training::GAMMA;
use crate::sim::random::Random;
use slowmo::{
    AsyncWorker, Buffers, ElasticSampler, ExchangeError, GradientError, StepError, StepReport,
    SynchronizeError,
};
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::trace::Start;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A training loop before it begins.
pub struct Training {
    pub start: Start,
    pub config: Config,
    pub worker: AsyncWorker,
    /// Duration of an inner step in hundredths of the usual time.
    pub slowness: Arc<AtomicU32>,
}

/// The model of one node, and the buffers of its optimizer.
struct Model {
    parameters: Vec<f32>,
    buffers: Vec<f32>,
    random: Random,
}

impl Model {
    /// Moves the model: every node drifts in its own way, by eighths.
    fn drift(&mut self) -> f32 {
        self.random.below(17) as f32 / 64.0 - 0.125
    }
}

/// Trains until the node leaves or fails; a failure is a broken rule.
pub async fn train(mut training: Training, record: Record) {
    let failed = match run(&mut training).await {
        Ok(()) | Err(Ended::Drained) => training
            .worker
            .leave()
            .await
            .err()
            .map(|error| error.to_string()),
        Err(Ended::Failed(why)) => Some(why),
    };
    if let Some(why) = failed {
        let now = record.now();
        let what = format!("the training of {} failed: {why}", training.start.node);
        record.with(|watch| watch.broken(now.0, "progress", what));
    }
}

/// The reason why a loop ended.
enum Ended {
    /// The others continued without this node, which wanted to leave.
    Drained,
    /// The node cannot continue, for this reason.
    Failed(String),
}

impl Ended {
    fn of(exchange: Option<&ExchangeError>, error: &impl std::fmt::Display) -> Self {
        if exchange == Some(&ExchangeError::Drained) {
            Self::Drained
        } else {
            Self::Failed(error.to_string())
        }
    }
}

impl From<SynchronizeError> for Ended {
    fn from(error: SynchronizeError) -> Self {
        Self::of(
            if let SynchronizeError::Exchange(exchange) = &error {
                Some(exchange)
            } else {
                None
            },
            &error,
        )
    }
}

impl From<GradientError> for Ended {
    fn from(error: GradientError) -> Self {
        Self::of(
            if let GradientError::Exchange(exchange) = &error {
                Some(exchange)
            } else {
                None
            },
            &error,
        )
    }
}

impl From<StepError> for Ended {
    fn from(error: StepError) -> Self {
        Self::of(
            if let StepError::Exchange {
                error: exchange, ..
            } = &error
            {
                Some(exchange)
            } else {
                None
            },
            &error,
        )
    }
}

async fn run(training: &mut Training) -> Result<(), Ended> {
    let Training {
        start,
        config,
        worker,
        slowness,
    } = training;
    let seed = config.seed ^ start.node.0.rotate_left(20) ^ start.incarnation.0.rotate_left(40);
    let first =
        |index: usize| start.node.0 as f32 + start.incarnation.0 as f32 / 64.0 + index as f32 / 8.0;
    let parameters = (0..config.parameters).map(first).collect();
    let buffers = vec![0.0; config.buffers];
    let mut model = Model {
        parameters,
        buffers,
        random: Random::new(seed, 2),
    };
    let mut sampler = None;
    if let Some(settings) = config.samples {
        let made = ElasticSampler::new(
            settings.samples as usize,
            settings.batch as usize,
            settings.seed,
        );
        let made = made.map_err(|error| Ended::Failed(error.to_string()))?;
        worker.attach_sampler(&made);
        sampler = Some(made);
    }
    synchronize(worker, &mut model).await?;
    loop {
        compute(config, &mut model.random, slowness).await;
        if let Some(sampler) = &mut sampler {
            sampler.next_batch();
        }
        let report = step(config, worker, &mut model).await?;
        if report.drained {
            return Ok(());
        }
    }
}

async fn synchronize(worker: &mut AsyncWorker, model: &mut Model) -> Result<(), SynchronizeError> {
    let buffers = Buffers {
        optimizer: &mut model.buffers,
        model: &mut (),
    };
    worker
        .synchronize_with(&mut model.parameters, buffers)
        .await
        .map(|_| ())
}

async fn compute(config: &Config, random: &mut Random, slowness: &AtomicU32) {
    let (base, more) = config.compute;
    let takes = (base + random.below(more)) * u64::from(slowness.load(Ordering::Relaxed)) / 100;
    tokio::time::sleep(Duration::from_micros(takes)).await;
}

async fn step(
    config: &Config,
    worker: &mut AsyncWorker,
    model: &mut Model,
) -> Result<StepReport, Ended> {
    let mut gradients: Vec<f32> = (0..config.parameters).map(|_| model.drift()).collect();
    if config.algorithm.base == Base::AllReduce {
        worker.average_gradients(&mut gradients).await?;
    }
    model
        .parameters
        .iter_mut()
        .zip(&gradients)
        .for_each(|(value, gradient)| *value += gradient);
    for index in 0..model.buffers.len() {
        model.buffers[index] = model.buffers[index] / 2.0 + model.drift();
    }
    let buffers = Buffers {
        optimizer: &mut model.buffers,
        model: &mut (),
    };
    Ok(worker
        .step_with(&mut model.parameters, buffers, GAMMA)
        .await?)
}
