//! The training loop of one start of a node: what a user writes, with inner steps that only take time.

use super::record::Record;
use crate::sim::config::Config;
use crate::sim::node::training::GAMMA;
use crate::sim::random::Random;
use slowmo::{AsyncWorker, Buffers, ElasticSampler, StepReport, SynchronizeError};
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
    /// Hundredths of the usual time that an inner step takes.
    pub slowness: Arc<AtomicU32>,
}

/// How a loop ended.
#[derive(Debug)]
pub enum Ended {
    /// The node has handed over and left.
    Left,
    /// The node has stopped under it.
    Stopped,
    /// It failed, and why.
    Failed(String),
}

/// The model of one node, and the buffers of its optimizer.
struct Model {
    parameters: Vec<f32>,
    buffers: Vec<f32>,
    random: Random,
}

impl Model {
    /// Every node moves in its own way, by eighths.
    fn drift(&mut self) -> f32 {
        self.random.below(17) as f32 / 64.0 - 0.125
    }
}

/// Trains until the node leaves, stops or fails.
pub async fn train(mut training: Training, record: Record) -> Ended {
    let ended = run(&mut training).await;
    match ended {
        Ok(()) => match training.worker.leave().await {
            Ok(()) => Ended::Left,
            Err(_) => Ended::Stopped,
        },
        Err(failure) if failure.stopped => Ended::Stopped,
        Err(failure) => {
            let (now, what) = (record.now(), format!("the training of {} failed: {}", training.start.node, failure.why));
            record.with(|watch| watch.broken(now.0, "progress", what));
            Ended::Failed(failure.why)
        }
    }
}

/// Why a loop cannot go on.
struct Failure {
    stopped: bool,
    why: String,
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let why = error.to_string();
        // Every operation says so in the same words, whatever its enum.
        Self { stopped: why.contains(&slowmo::ExchangeError::Stopped.to_string()), why }
    }
}

async fn run(training: &mut Training) -> Result<(), Failure> {
    let Training { start, config, worker, slowness } = training;
    let seed = config.seed ^ start.node.0.rotate_left(20) ^ start.incarnation.0.rotate_left(40);
    let first = |index: usize| start.node.0 as f32 + start.incarnation.0 as f32 / 64.0 + index as f32 / 8.0;
    let (parameters, buffers) = ((0..config.parameters).map(first).collect(), vec![0.0; config.buffers]);
    let mut model = Model { parameters, buffers, random: Random::new(seed, 2) };
    let mut sampler = None;
    if let Some(settings) = config.samples {
        let made = ElasticSampler::new(settings.samples as usize, settings.batch as usize, settings.seed)?;
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
    let buffers = Buffers { optimizer: &mut model.buffers, model: &mut () };
    worker.synchronize_with(&mut model.parameters, buffers).await.map(|_| ())
}

async fn compute(config: &Config, random: &mut Random, slowness: &AtomicU32) {
    let (base, more) = config.compute;
    let takes = (base + random.below(more)) * u64::from(slowness.load(Ordering::Relaxed)) / 100;
    tokio::time::sleep(Duration::from_micros(takes)).await;
}

async fn step(config: &Config, worker: &mut AsyncWorker, model: &mut Model) -> Result<StepReport, Failure> {
    let mut gradients: Vec<f32> = (0..config.parameters).map(|_| model.drift()).collect();
    if config.algorithm.base == Base::AllReduce {
        worker.average_gradients(&mut gradients).await?;
    }
    model.parameters.iter_mut().zip(&gradients).for_each(|(value, gradient)| *value += gradient);
    for index in 0..model.buffers.len() {
        model.buffers[index] = model.buffers[index] / 2.0 + model.drift();
    }
    let buffers = Buffers { optimizer: &mut model.buffers, model: &mut () };
    Ok(worker.step_with(&mut model.parameters, buffers, GAMMA).await?)
}
