//! Runs small training jobs on several real nodes and keeps every worker's parameters after each
//! step.

use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{BaseName, OuterName};
use slowmo::{Config, Runtime, StepReport, Worker};
use slowmo_chaos::cluster::{Cluster, Link, in_memory, start};
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Longest connection, founding or round of a test, in milliseconds: a hang becomes an error that
/// says where.
pub const PATIENCE_MS: u64 = 20_000;

/// The same as a duration.
pub const PATIENCE: Duration = Duration::from_millis(PATIENCE_MS);
/// Longest time until all nodes of a test are at their end.
const ALL_END_WITHIN: Duration = Duration::from_secs(300);

/// The learning rate of [`train`].
pub const RATE: f32 = 0.1;

/// In memory, in order.
pub const IN_ORDER: Link = Link::Memory(None);

/// The gradient of worker `index` (in ascending node id, then worker) at a step and a point.
pub type Gradient = Arc<dyn Fn(usize, usize, &[f32]) -> Vec<f32> + Send + Sync>;

/// A training job with plain SGD as the inner optimizer.
#[derive(Clone)]
pub struct Job {
    pub ids: Vec<u64>,
    pub link: Link,
    pub config: Config,
    pub initial: Vec<f32>,
    pub steps: usize,
    pub gradient: Gradient,
    pub rate: fn(usize) -> f32,
}

/// A worker's view of a run: parameters and report of each step.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub values: Vec<Vec<f32>>,
    pub reports: Vec<StepReport>,
}

impl Job {
    /// A job on `nodes` nodes whose ids ascend with their places, at a rate of 0.1.
    pub fn new(nodes: usize, config: Config, gradient: Gradient) -> Self {
        let ids = (0..nodes as u64).map(|node| 3 + node * node * 11).collect();
        Self {
            ids,
            link: IN_ORDER,
            config,
            initial: vec![0.0],
            steps: 6,
            gradient,
            rate: |_| 0.1,
        }
    }

    /// Runs the cluster. Returns every worker's view, in ascending node id, then worker.
    pub fn run(&self) -> Vec<Seen> {
        let Cluster {
            mut nodes,
            rendezvous: _rendezvous,
        } = start(&self.ids, self.link, &self.config).unwrap();
        nodes.sort_by_key(Runtime::node_id);
        let workers = nodes.iter().flat_map(|node| {
            (0..usize::from(self.config.devices)).map(|index| node.worker(index).unwrap())
        });
        let threads: Vec<_> = workers
            .map(|worker| {
                let job = self.clone();
                thread::spawn(move || job.train(worker))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    }

    /// The parameters only: worker, step, value.
    pub fn values(&self) -> Vec<Vec<Vec<f32>>> {
        self.run().into_iter().map(|seen| seen.values).collect()
    }

    fn train(&self, mut worker: Worker) -> Seen {
        let mut parameters = self.initial.clone();
        let found = worker.synchronize(&mut parameters).unwrap();
        let index = found.node_rank * found.workers + found.worker;
        let mut seen = Seen {
            values: Vec::new(),
            reports: Vec::new(),
        };
        for step in 0..self.steps {
            let mut gradients = (self.gradient)(index, step, &parameters);
            worker.average_gradients(&mut gradients).unwrap();
            let rate = (self.rate)(step);
            descend(&mut parameters, &gradients, rate);
            seen.reports
                .push(worker.step(&mut parameters, rate).unwrap());
            seen.values.push(parameters.clone());
        }
        worker.leave().unwrap();
        seen
    }
}

/// A node's training, and its first inner step.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    pub first: u64,
    pub seen: Seen,
}

/// Trains `values` parameters on node `node`'s own [`noisy`] gradients until `done` says so of a
/// step's report. The node may leave or be dropped afterwards.
pub fn train(
    worker: &mut Worker,
    node: u64,
    values: usize,
    mut done: impl FnMut(&StepReport) -> bool,
) -> Training {
    let mut parameters = uneven(values);
    let first = worker.synchronize(&mut parameters).unwrap().step;
    let mut seen = Seen {
        values: Vec::new(),
        reports: Vec::new(),
    };
    let mut step = first;
    loop {
        let mut gradients = noisy(node as usize, step as usize, &parameters);
        worker.average_gradients(&mut gradients).unwrap();
        descend(&mut parameters, &gradients, RATE);
        let report = worker.step(&mut parameters, RATE).unwrap();
        step = report.step + 1;
        seen.values.push(parameters.clone());
        seen.reports.push(report);
        if done(&report) {
            return Training { first, seen };
        }
    }
}

/// [`train`] with an average every step and SlowMo (α = 1), in one process.
#[derive(Clone)]
pub struct ByTheBook {
    pub parameters: Vec<f32>,
    pub anchor: Vec<f32>,
    pub momentum: Vec<f32>,
}

impl ByTheBook {
    pub fn new(parameters: Vec<f32>) -> Self {
        Self {
            anchor: parameters.clone(),
            momentum: vec![0.0; parameters.len()],
            parameters,
        }
    }

    /// The average of what these nodes' steps lead to.
    pub fn average(&mut self, step: u64, nodes: &[u64]) {
        let replicas = nodes.iter().map(|node| {
            let mut replica = self.parameters.clone();
            let gradients = noisy(*node as usize, step as usize, &replica);
            descend(&mut replica, &gradients, RATE);
            replica
        });
        self.parameters = mean(&replicas.collect::<Vec<_>>());
    }

    /// The slow step of a part of the model, after an average.
    pub fn slow_step(&mut self, part: Range<usize>, beta: f32, rate: f32) {
        for index in part {
            let anchor = self.anchor[index];
            let pseudo_gradient = (anchor - self.parameters[index]) / rate;
            self.momentum[index] = beta * self.momentum[index] + pseudo_gradient;
            self.anchor[index] = anchor - rate * self.momentum[index];
            self.parameters[index] = self.anchor[index];
        }
    }
}

/// The model after each step where SlowMo is taken every `tau` steps; `contributors` are whose
/// contributions each step's round was decided with.
pub fn by_the_book(
    values: usize,
    tau: usize,
    beta: f32,
    contributors: &[Vec<u64>],
) -> Vec<Vec<f32>> {
    let mut book = ByTheBook::new(uneven(values));
    let round = |(step, nodes): (usize, &Vec<u64>)| {
        book.average(step as u64, nodes);
        if (step + 1) % tau == 0 {
            book.slow_step(0..values, beta, RATE);
        }
        book.parameters.clone()
    };
    contributors.iter().enumerate().map(round).collect()
}

/// Runs `work(place, node, worker)` for every node of `ids`, each on a thread of its own; what each
/// returned, in their order. The nodes live until all have ended.
pub fn on_nodes<R: Send>(
    ids: &[u64],
    link: Link,
    config: &Config,
    work: impl Fn(usize, &Runtime, Worker) -> R + Sync,
) -> Vec<R> {
    let cluster = start(ids, link, config).unwrap();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (place, node) in cluster.iter().enumerate() {
            let work = &work;
            let worker = node.worker(0).unwrap();
            threads.push(scope.spawn(move || work(place, node, worker)));
        }
        let until = Instant::now() + ALL_END_WITHIN;
        while !threads.iter().all(ScopedJoinHandle::is_finished) {
            if Instant::now() > until {
                let statuses: Vec<_> = cluster.iter().map(Runtime::status).collect();
                eprintln!("not all nodes have ended: {statuses:#?}");
                // The scope would wait for them for ever.
                std::process::exit(1);
            }
            thread::sleep(Duration::from_millis(5));
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Starts node `node` in a hub where others may come and go; `peers` are the nodes that it knows
/// of.
pub fn in_hub(hub: &MemoryHub, node: u64, peers: &[u64], config: &Config) -> Runtime {
    let config = Config {
        node_id: Some(node),
        runtime_threads: Some(1),
        ..config.clone()
    };
    Runtime::builder()
        .config(config)
        .network(in_memory(hub, node, peers))
        .faulty()
        .spawn()
        .unwrap()
}

/// Waits until something is reached; the failure names `what`.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < PATIENCE, "{what}: never");
        thread::sleep(Duration::from_millis(1));
    }
}

/// One step of SGD.
pub fn descend(parameters: &mut [f32], gradients: &[f32], rate: f32) {
    parameters
        .iter_mut()
        .zip(gradients)
        .for_each(|(x, gradient)| *x -= rate * gradient);
}

/// Parabolas of many elements; every worker, element and step has its own center.
pub fn noisy(worker: usize, step: usize, x: &[f32]) -> Vec<f32> {
    let center = |index: usize| ((worker * 131 + step * 17 + index * 7) % 23) as f32 * 0.173 - 1.9;
    let curvature = |index: usize| 0.4 + ((worker * 3 + index) % 5) as f32 * 0.21;
    x.iter()
        .enumerate()
        .map(|(index, x)| curvature(index) * (x - center(index)))
        .collect()
}

/// [`noisy`] as a job's gradient.
pub fn noise() -> Gradient {
    Arc::new(noisy)
}

/// Starting values that are not round.
pub fn uneven(length: usize) -> Vec<f32> {
    (0..length)
        .map(|index| ((index * 37 + 11) % 101) as f32 * 0.0131 - 0.6)
        .collect()
}

/// A configuration that fails soon instead of waiting long.
pub fn config() -> Config {
    Config {
        connect_timeout_ms: PATIENCE_MS,
        meet_timeout_ms: Some(PATIENCE_MS),
        round_timeout_ms: PATIENCE_MS,
        grace_ms: PATIENCE_MS / 2,
        ..Config::default()
    }
}

/// LocalSGD with frequency `f`, SlowMo every `tau` steps.
pub fn local_sgd(f: u64, tau: u64, alpha: f32, beta: f32) -> Config {
    Config {
        base: BaseName::LocalSgd,
        frequency: f,
        tau,
        alpha,
        beta,
        ..config()
    }
}

/// Synchronous SGP with one peer, SlowMo every `tau` steps.
pub fn sgp(tau: u64, beta: f32) -> Config {
    Config {
        base: BaseName::Sgp,
        staleness: 0,
        tau,
        beta,
        ..config()
    }
}

/// SGP behind the computation of the next step, SlowMo every `tau` steps.
pub fn overlapped(tau: u64, beta: f32) -> Config {
    Config {
        staleness: 1,
        ..sgp(tau, beta)
    }
}

/// Only outer rounds, with another outer optimizer.
pub fn outer_only(outer: OuterName, tau: u64, eta: f32, mu: f32) -> Config {
    Config {
        base: BaseName::None,
        outer,
        tau,
        eta,
        mu,
        ..config()
    }
}

/// The mean of vectors, summed in their order.
pub fn mean(vectors: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = vectors[0].clone();
    for vector in &vectors[1..] {
        sum.iter_mut()
            .zip(vector)
            .for_each(|(sum, value)| *sum += value);
    }
    sum.iter_mut().for_each(|sum| *sum /= vectors.len() as f32);
    sum
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every value within a relative error (absolute below 1).
pub fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(1.0);
        assert!(
            error <= tolerance,
            "value {index}: {found} against {expected}, off by {error:e}"
        );
    }
}

/// Checks that a text has all these parts.
pub fn assert_says(told: &str, parts: &[&str]) {
    for part in parts {
        assert!(told.contains(part), "{told:?} should say {part:?}");
    }
}
