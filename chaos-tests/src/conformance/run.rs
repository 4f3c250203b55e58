//! Runs one case: a runtime per node, a thread per worker, torch's SGD as the inner optimizer.

use super::case::Case;
use crate::cluster::{Cluster, ClusterError, Link, start};
use slowmo::{GradientError, StepError, SynchronizeError, Worker, WorkerError};
use std::thread::{JoinHandle, spawn};

/// The reason why a case could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The nodes did not start.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A worker's handle was refused, or it could not leave.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The bootstrap failed.
    #[error(transparent)]
    Synchronize(#[from] SynchronizeError),
    /// A gradient mean failed.
    #[error(transparent)]
    Gradients(#[from] GradientError),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A worker's thread panicked.
    #[error("a worker's thread panicked")]
    Panicked,
}

/// Runs `case` and returns the largest absolute difference from the recorded parameters (infinite
/// if a value is not finite).
///
/// # Errors
/// A node or worker failed.
pub fn run(case: &Case, link: Link) -> Result<f32, RunError> {
    let trajectories = trajectories(case, link)?;
    let pairs = trajectories
        .iter()
        .flatten()
        .flatten()
        .zip(case.params.iter().flatten().flatten());
    Ok(pairs
        .map(|(ours, theirs)| (ours - theirs).abs())
        .fold(0.0, |worst, error| {
            if error <= worst {
                worst
            } else {
                error_or_infinite(error)
            }
        }))
}

fn error_or_infinite(error: f32) -> f32 {
    if error.is_finite() {
        error
    } else {
        f32::INFINITY
    }
}

/// Every worker's parameters after each step.
///
/// # Errors
/// A node or worker failed.
pub fn trajectories(case: &Case, link: Link) -> Result<Vec<Vec<Vec<f32>>>, RunError> {
    // Ids are deliberately neither consecutive nor equal to the workers' places; they ascend, as
    // places do.
    let ids: Vec<u64> = (0..case.nodes() as u64).map(|node| 10 + node * 7).collect();
    let Cluster {
        nodes,
        rendezvous: _rendezvous,
    } = start(&ids, link, &case.config())?;
    let mut threads: Vec<JoinHandle<Result<Vec<Vec<f32>>, RunError>>> = Vec::new();
    for index in 0..case.workers {
        let worker = nodes[index / case.gpus_per_node].worker(index % case.gpus_per_node)?;
        let case = case.clone();
        threads.push(spawn(move || train(worker, &case, index)));
    }
    drop(nodes);
    let results: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or(Err(RunError::Panicked)))
        .collect();
    results.into_iter().collect()
}

fn train(mut worker: Worker, case: &Case, index: usize) -> Result<Vec<Vec<f32>>, RunError> {
    let mut params = split(&case.initial, &case.shapes);
    worker.synchronize(&mut params)?;
    let mut momentum: Option<Vec<f32>> = None;
    let mut seen = Vec::with_capacity(case.steps);
    for step in 0..case.steps {
        let flat: Vec<f32> = params.concat();
        let targets = &case.target[index][step % case.target[index].len()];
        let both = case.curvature[index].iter().zip(targets);
        let mut gradients: Vec<f32> = flat
            .iter()
            .zip(both)
            .map(|(x, (curvature, target))| curvature * (x - target))
            .collect();
        worker.average_gradients(&mut gradients)?;
        let rate = case.learning_rate(step);
        let update = sgd(case, &mut momentum, gradients);
        let stepped: Vec<f32> = flat
            .iter()
            .zip(&update)
            .map(|(x, update)| x - rate * update)
            .collect();
        params = split(&stepped, &case.shapes);
        worker.step(&mut params, rate)?;
        seen.push(params.concat());
    }
    worker.leave()?;
    Ok(seen)
}

/// The direction of torch.optim.SGD: the first step takes the gradient as momentum.
fn sgd(case: &Case, momentum: &mut Option<Vec<f32>>, gradients: Vec<f32>) -> Vec<f32> {
    let momentum_rate = case.base_momentum.unwrap_or(0.0);
    if momentum_rate == 0.0 {
        return gradients;
    }
    let buffer = match momentum.take() {
        None => gradients.clone(),
        Some(buffer) => buffer
            .iter()
            .zip(&gradients)
            .map(|(buffer, gradient)| momentum_rate * buffer + gradient)
            .collect(),
    };
    let direction = match case.nesterov == Some(true) {
        true => gradients
            .iter()
            .zip(&buffer)
            .map(|(gradient, buffer)| gradient + momentum_rate * buffer)
            .collect(),
        false => buffer.clone(),
    };
    *momentum = Some(buffer);
    direction
}

/// Splits a flat vector into tensors.
fn split(flat: &[f32], shapes: &[Vec<usize>]) -> Vec<Vec<f32>> {
    let mut rest = flat;
    let mut tensors = Vec::with_capacity(shapes.len());
    for shape in shapes {
        let (tensor, after) = rest.split_at(shape.iter().product());
        tensors.push(tensor.to_vec());
        rest = after;
    }
    tensors
}
