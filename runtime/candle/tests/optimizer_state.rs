//! An optimizer's state travels: into checkpoints, and to nodes that join.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{DType, Device, Tensor};
use candle_nn::optim::ParamsAdamW;
use candle_nn::{Linear, Module, Optimizer, VarBuilder, VarMap};
use slowmo::{BaseName, Buffers, Config, Runtime, digest};
use slowmo_candle::{AdamW, CandleModel};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

mod cluster;
use cluster::Cluster;

const TAU: u64 = 4;

fn config() -> Config {
    Config {
        base: BaseName::None,
        tau: TAU,
        ..Config::default()
    }
}

/// A linear model that AdamW trains.
struct Training {
    linear: Linear,
    model: CandleModel,
    adamw: AdamW,
}

impl Training {
    fn new() -> Self {
        let map = VarMap::new();
        let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let linear = candle_nn::linear(4, 3, builder.pp("layer")).unwrap();
        let model = CandleModel::from_var_map(&map).unwrap();
        let adamw = AdamW::of(&model.parameters, ParamsAdamW::default()).unwrap();
        Self {
            linear,
            model,
            adamw,
        }
    }

    fn begin(&mut self, worker: &mut slowmo::Worker) -> u64 {
        let buffers = Buffers {
            optimizer: &mut self.adamw,
            model: &mut self.model.buffers,
        };
        let parameters = &mut self.model.parameters;
        worker.synchronize_with(parameters, buffers).unwrap().step
    }

    /// One step towards outputs of 1; returns the next one.
    fn step(&mut self, worker: &mut slowmo::Worker) -> u64 {
        let input = Tensor::ones((1, 4), DType::F32, &Device::Cpu).unwrap();
        let missed = (self.linear.forward(&input).unwrap() - 1.0).unwrap();
        let loss = missed.sqr().unwrap().sum_all().unwrap();
        self.adamw.step(&loss.backward().unwrap()).unwrap();
        let rate = self.adamw.learning_rate() as f32;
        let buffers = Buffers {
            optimizer: &mut self.adamw,
            model: &mut self.model.buffers,
        };
        let report = worker.step_with(&mut self.model.parameters, buffers, rate);
        report.unwrap().step + 1
    }

    fn digests(&self) -> [String; 2] {
        [
            digest(&self.model.parameters).unwrap(),
            digest(&self.adamw).unwrap(),
        ]
    }
}

#[test]
fn a_resumed_training_continues_with_the_moments_and_their_count() {
    let folder = tempfile::tempdir().unwrap();
    let keeps = |folder: &Path| Config {
        checkpoints: Some(folder.to_owned()),
        checkpoint_every: Some(1),
        ..config()
    };
    let train = |config: &Config, from: u64, to: u64| {
        let seen = Cluster::run(config, 1, move |node: &Runtime| {
            let mut training = Training::new();
            let mut worker = node.worker(0).unwrap();
            let mut step = training.begin(&mut worker);
            assert_eq!((step, training.adamw.steps()), (from, from));
            let begun = training.digests();
            while step < to {
                step = training.step(&mut worker);
            }
            worker.leave().unwrap();
            [begun, training.digests()]
        });
        seen.into_iter().next().unwrap()
    };
    let [_, half] = train(&keeps(folder.path()), 0, 2 * TAU);
    let resumed = Config {
        checkpoint_every: None,
        ..keeps(folder.path())
    };
    let [begun, whole] = train(&resumed, 2 * TAU, 4 * TAU);
    assert_eq!(begun, half);
    // The same again: nothing depends on when a node was started.
    assert_eq!(train(&resumed, 2 * TAU, 4 * TAU), [begun, whole]);
}

#[test]
fn a_joiner_begins_with_a_member_s_moments_unless_they_are_reset() {
    for (way, copies) in [("copy", true), ("reset", false)] {
        let default = config();
        let config = default.clone().with("joiner_buffers", way).unwrap();
        assert_eq!(config == default, copies, "a copy is the default");
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
                let begun = (step, training.adamw.steps());
                if id > 1 {
                    joined.store(step, Ordering::Relaxed);
                }
                while step < joined.load(Ordering::Relaxed).saturating_add(2 * TAU) {
                    thread::sleep(Duration::from_millis(1));
                    step = training.step(&mut worker);
                    trains.store(step, Ordering::Relaxed);
                }
                worker.leave().unwrap();
                (begun, training.adamw.steps())
            })
        };
        let member = train(1);
        while begun.load(Ordering::Relaxed) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let joiner = train(2);
        let (begun, _) = member.join().unwrap();
        assert_eq!(begun, (0, 0));
        let ((step, steps), last) = joiner.join().unwrap();
        assert!(step > 0 && step % TAU == 0, "it joins with a round: {step}");
        assert_eq!(steps, if copies { step } else { 0 }, "{way}");
        assert_eq!(last, steps + 2 * TAU);
    }
}
