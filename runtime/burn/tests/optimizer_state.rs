//! An optimizer's state travels: to nodes that join, and into checkpoints.
#![allow(clippy::unwrap_used)]

#[path = "../../candle/tests/cluster/mod.rs"]
mod cluster;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use cluster::Cluster;
use slowmo::{BaseName, Config, Runtime, Tensors, Worker, digest};
use slowmo_burn::{Modules, OptimizerState, StagedModule};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const TAU: u64 = 4;
const RATE: f64 = 0.001;

fn config() -> Config {
    Config {
        base: BaseName::None,
        tau: TAU,
        ..Config::default()
    }
}

#[derive(Module, Debug)]
struct Net {
    layer: Linear,
}

/// A linear model that AdamW trains.
struct Training {
    net: Net,
    adamw: ModuleOptimizer,
    device: Device,
}

impl Training {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        Self {
            net: Net {
                layer: LinearConfig::new(4, 3).init(&device),
            },
            adamw: AdamWConfig::new().init(),
            device,
        }
    }

    fn begin(&mut self, worker: &mut Worker) -> u64 {
        let begun = worker.synchronize_module_with(&mut self.net, &mut self.adamw);
        begun.unwrap().step
    }

    /// One step towards outputs of 1; returns the next one.
    fn step(&mut self, worker: &mut Worker) -> u64 {
        let input = Tensor::<2>::ones([1, 4], &self.device);
        let missed = self.net.layer.forward(input) - 1.0;
        let gradients = (missed.clone() * missed).sum().backward();
        let gradients = GradientsParams::from_grads(gradients, &self.net);
        self.net = self.adamw.step(RATE, self.net.clone(), gradients);
        let report = worker.step_module_with(&mut self.net, &mut self.adamw, RATE);
        report.unwrap().step + 1
    }

    /// The steps that AdamW has counted.
    fn steps(&mut self) -> u64 {
        let mut steps = Vec::new();
        OptimizerState::of(&mut self.adamw, &self.net)
            .read(&mut |name, values| {
                if name == "layer.weight.momentum.time" {
                    steps.push(values[0] as u64);
                }
            })
            .unwrap();
        assert_eq!(steps.len(), 1);
        steps[0]
    }

    fn digests(&mut self) -> [String; 2] {
        [
            digest(&StagedModule::of(&self.net).parameters).unwrap(),
            digest(&OptimizerState::of(&mut self.adamw, &self.net)).unwrap(),
        ]
    }
}

#[test]
fn a_resumed_training_continues_with_the_moments_and_their_count() {
    let folder = tempfile::tempdir().unwrap();
    let keeps = Config {
        checkpoints: Some(folder.path().to_owned()),
        checkpoint_every: Some(1),
        ..config()
    };
    let train = |config: &Config, from: u64, to: u64| {
        let seen = Cluster::run(config, 1, move |node: &Runtime| {
            let mut training = Training::new();
            let mut worker = node.worker(0).unwrap();
            let mut step = training.begin(&mut worker);
            assert_eq!((step, training.steps()), (from, from));
            let begun = training.digests();
            while step < to {
                step = training.step(&mut worker);
            }
            worker.leave().unwrap();
            [begun, training.digests()]
        });
        seen.into_iter().next().unwrap()
    };
    let [_, half] = train(&keeps, 0, 2 * TAU);
    let resumed = Config {
        checkpoint_every: None,
        ..keeps
    };
    let [begun, whole] = train(&resumed, 2 * TAU, 4 * TAU);
    assert_eq!(begun, half);
    // The same again: nothing depends on when a node was started.
    assert_eq!(train(&resumed, 2 * TAU, 4 * TAU), [begun, whole]);
}

#[test]
fn a_joiner_begins_with_a_member_s_moments_unless_they_are_reset() {
    for (way, copies) in [("copy", true), ("reset", false)] {
        let config = config().with("joiner_buffers", way).unwrap();
        let cluster = Cluster::new(&config);
        let joined = Arc::new(AtomicU64::new(u64::MAX));
        let begun = Arc::new(AtomicU64::new(0));
        let train = |id: u64| {
            let node = cluster.start(id);
            let joined = Arc::clone(&joined);
            let trains = Arc::clone(&begun);
            thread::spawn(move || {
                let mut training = Training::new();
                let mut worker = node.worker(0).unwrap();
                let mut step = training.begin(&mut worker);
                let begun = (step, training.steps());
                if id > 1 {
                    joined.store(step, Ordering::Relaxed);
                }
                while step < joined.load(Ordering::Relaxed).saturating_add(2 * TAU) {
                    thread::sleep(Duration::from_millis(1));
                    step = training.step(&mut worker);
                    trains.store(step, Ordering::Relaxed);
                }
                worker.leave().unwrap();
                (begun, training.steps())
            })
        };
        let member = train(1);
        while begun.load(Ordering::Relaxed) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let joiner = train(2);
        let (first, _) = member.join().unwrap();
        assert_eq!(first, (0, 0));
        let ((step, steps), last) = joiner.join().unwrap();
        assert!(
            step > 0 && step.is_multiple_of(TAU),
            "it joins with a round: {step}"
        );
        assert_eq!(steps, if copies { step } else { 0 }, "{way}");
        assert_eq!(last, steps + 2 * TAU);
    }
}
