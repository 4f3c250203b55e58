//! Variables of bfloat16 and float16 beside float32: nodes agree on their bits, and a checkpoint
//! continues with the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::Optimizer;
use candle_nn::optim::ParamsAdamW;
use slowmo::{BaseName, Buffers, Config, Runtime, digest};
use slowmo_candle::{AdamW, CandleGradients, CandleVariables};
use std::path::Path;

mod cluster;
use cluster::Cluster;

const TYPES: [DType; 3] = [DType::BF16, DType::F32, DType::F16];

/// A variable of each type.
fn variables() -> Vec<(String, Var)> {
    let of = |(index, dtype): (usize, DType)| {
        let start = Tensor::arange(0f32, 50.0, &Device::Cpu).unwrap();
        let start = (start * 0.011).unwrap().to_dtype(dtype).unwrap();
        (format!("v{index}"), Var::from_tensor(&start).unwrap())
    };
    TYPES.into_iter().enumerate().map(of).collect()
}

/// `Σ (x − target)²` over all variables, each in its own type.
fn loss(list: &[(String, Var)], target: f64) -> Tensor {
    let parts = list.iter().map(|(_, variable)| {
        let missed = (variable.as_tensor() - target).unwrap();
        let squares = missed.sqr().unwrap().sum_all().unwrap();
        squares.to_dtype(DType::F32).unwrap()
    });
    parts.reduce(|sum, part| (sum + part).unwrap()).unwrap()
}

/// Digests of the variables and of the optimizer at the end, and how far the first variable is from
/// the mean target.
#[derive(Debug, PartialEq)]
struct Seen {
    variables: String,
    optimizer: String,
    missed: f32,
}

/// Trains up to step `end`, towards the node's id.
fn train(node: &Runtime, end: u64) -> Seen {
    let list = variables();
    let mut lent = CandleVariables::new(list.clone()).unwrap();
    let params = ParamsAdamW {
        lr: 0.05,
        weight_decay: 0.0,
        ..ParamsAdamW::default()
    };
    let mut adamw = AdamW::of(&lent, params).unwrap();
    let mut worker = node.worker(0).unwrap();
    let model = &mut ();
    let optimizer = &mut adamw;
    let buffers = Buffers { optimizer, model };
    let mut step = worker.synchronize_with(&mut lent, buffers).unwrap().step;
    while step < end {
        let mut gradients = loss(&list, node.node_id() as f64).backward().unwrap();
        let averaged = &mut CandleGradients::new(&lent, &mut gradients);
        worker.average_gradients(averaged).unwrap();
        adamw.step(&gradients).unwrap();
        let optimizer = &mut adamw;
        let buffers = Buffers { optimizer, model };
        step = worker.step_with(&mut lent, buffers, 0.05).unwrap().step + 1;
    }
    worker.leave().unwrap();
    let missed = (list[0].1.to_dtype(DType::F32).unwrap() - 1.5).unwrap();
    let missed = missed.abs().unwrap().mean_all().unwrap();
    Seen {
        variables: digest(&lent).unwrap(),
        optimizer: digest(&adamw).unwrap(),
        missed: missed.to_scalar().unwrap(),
    }
}

fn run(end: u64, folder: Option<&Path>) -> Vec<Seen> {
    let config = Config {
        base: BaseName::None,
        tau: 4,
        checkpoints: folder.map(Path::to_owned),
        checkpoint_every: folder.map(|_| 1),
        ..Config::default()
    };
    Cluster::run(&config, 2, move |node| train(node, end))
}

#[test]
fn nodes_agree_on_the_bits_and_a_checkpoint_continues_with_them() {
    let straight = run(24, None);
    assert_eq!(straight[0].variables, straight[1].variables);
    assert!(straight[0].missed < 0.4, "{straight:?}");
    let folder = tempfile::tempdir().unwrap();
    run(12, Some(folder.path()));
    let resumed = run(24, Some(folder.path()));
    assert_eq!(resumed, straight);
}
