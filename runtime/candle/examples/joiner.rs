//! Measures the cost of a node that joins midway, with its optimizer's state reset or copied from a
//! member (`joiner_buffers`): two nodes train the digits, a third joins after some steps.
//!
//! `cargo run --release --manifest-path runtime/candle/Cargo.toml --example joiner -- [TAU]`: five
//! seeds of each, in a few minutes. `docs/state.md` has the result.

#[path = "../tests/cluster/mod.rs"]
mod cluster;

use candle_core::{DType, Device, Tensor};
use candle_nn::optim::ParamsAdamW;
use candle_nn::{Module, Optimizer, Sequential, VarBuilder, VarMap, loss::cross_entropy};
use cluster::{Cluster, tensors};
use slowmo::{BaseName, Buffers, Config, ElasticSampler, Runtime, Tensors};
use slowmo_candle::{AdamW, CandleModel, CandleVariables, Sgd, SgdConfig};
use slowmo_examples::digits::{CLASSES, Dataset, PIXELS};
use slowmo_examples::random::{Purpose, generator, unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const MEMBERS: u64 = 2;
const JOINER: u64 = 3;
const SEEDS: u64 = 5;
const HIDDEN: usize = 64;
const BATCH: usize = 16;
/// Steps of an outer round, unless the command line says otherwise.
const TAU: u64 = 48;
/// Steps of the members when the joiner starts; it is a member one or two rounds later.
const JOINS_AT: u64 = 240;
/// Rounds that are looked at after the join.
const ROUNDS: u64 = 4;
/// So long that the joiner has found the others within a round.
const STEP: Duration = Duration::from_millis(4);

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Inner {
    AdamW,
    Momentum,
}

/// An optimizer whose state travels.
enum Optimizing {
    AdamW(AdamW),
    Sgd(Sgd),
}

impl Optimizing {
    fn state(&mut self) -> &mut (dyn Tensors + Send) {
        match self {
            Self::AdamW(adamw) => adamw,
            Self::Sgd(sgd) => sgd,
        }
    }
}

/// A node's run as far as it is looked at: its rounds.
#[derive(Clone, Debug, Default)]
struct Seen {
    rounds: Vec<Round>,
}

/// A round as one node saw it.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The step that it ended.
    step: u64,
    /// How far the node's own steps moved the model, as Euclidean distance.
    moved: f32,
    /// The loss on the test images of the node's own model, before the average.
    own: f32,
    /// The same of the model that all nodes have after it.
    shared: f32,
}

/// Where the run is, for all of its nodes.
#[derive(Default)]
struct Run {
    tau: u64,
    /// The step of the slowest member.
    step: AtomicU64,
    /// The joiner's first step; `u64::MAX` until it has joined.
    joined: AtomicU64,
}

fn main() -> Result<(), Failure> {
    let tau = std::env::args().nth(1).map_or(Ok(TAU), |tau| tau.parse())?;
    println!("tau = {tau}, {SEEDS} seeds; in the joiner's first round:");
    println!(
        "| optimizer | joiner_buffers | joiner moves | members move | joiner's test loss | \
         members' | shared test loss, before and after {ROUNDS} rounds |"
    );
    println!("|---|---|---|---|---|---|---|");
    for inner in [Inner::AdamW, Inner::Momentum] {
        for way in ["reset", "copy"] {
            let all: Result<Vec<_>, _> = (0..SEEDS)
                .map(|seed| measure(inner, way, seed, tau))
                .collect();
            show(inner, way, &all?);
        }
    }
    Ok(())
}

/// The figures of one run.
#[derive(Debug)]
struct Figures {
    /// The joiner's first round.
    joiner: Round,
    /// The same round of the members.
    members: Vec<Round>,
    /// Test loss of the shared model after the last round without the joiner, and after each of
    /// those with it.
    shared: Vec<f32>,
}

fn measure(inner: Inner, way: &str, seed: u64, tau: u64) -> Result<Figures, Failure> {
    let config = Config {
        base: BaseName::None,
        tau,
        min_nodes: MEMBERS as usize,
        ..Config::default()
    }
    .with("joiner_buffers", way)?;
    let cluster = Cluster::new(&config);
    let run = Arc::new(Run {
        tau,
        joined: AtomicU64::new(u64::MAX),
        ..Run::default()
    });
    let begin = |id: u64| {
        let node = cluster.start(id);
        let run = Arc::clone(&run);
        thread::spawn(move || train(&node, inner, seed, &run))
    };
    let mut threads: Vec<_> = (1..=MEMBERS).map(begin).collect();
    while run.step.load(Ordering::Relaxed) < JOINS_AT && !threads.iter().any(|t| t.is_finished()) {
        thread::sleep(STEP);
    }
    threads.push(begin(JOINER));
    let mut seen = Vec::new();
    for thread in threads {
        seen.push(thread.join().map_err(|_| "a node panicked")??);
    }
    let (joiner, members) = seen.split_last().ok_or("no node")?;
    let first = *joiner.rounds.first().ok_or("the joiner saw no round")?;
    let same = |node: &Seen| {
        node.rounds
            .iter()
            .find(|round| round.step == first.step)
            .copied()
    };
    let before = members[0]
        .rounds
        .iter()
        .take_while(|round| round.step < first.step);
    let shared = before.last().into_iter().chain(&joiner.rounds);
    Ok(Figures {
        joiner: first,
        members: members.iter().filter_map(same).collect(),
        shared: shared.map(|round| round.shared).collect(),
    })
}

fn train(node: &Runtime, inner: Inner, seed: u64, run: &Run) -> Result<Seen, Failure> {
    let (model, map) = model(seed)?;
    let mut lent = CandleModel::from_var_map(&map)?;
    let mut optimizer = match inner {
        Inner::AdamW => Optimizing::AdamW(AdamW::of(
            &lent.parameters,
            ParamsAdamW {
                lr: 0.003,
                ..ParamsAdamW::default()
            },
        )?),
        Inner::Momentum => Optimizing::Sgd(Sgd::of(
            &lent.parameters,
            SgdConfig {
                learning_rate: 0.03,
                momentum: 0.9,
                nesterov: true,
                ..SgdConfig::default()
            },
        )?),
    };
    let data = Dataset::train()?;
    let test = tensors(&Dataset::test()?.all());
    let mut sampler = ElasticSampler::new(data.len(), BATCH, seed)?;
    let mut worker = node.worker(0)?;
    worker.attach_sampler(&sampler);
    let place = worker.synchronize_with(
        &mut lent.parameters,
        Buffers {
            optimizer: optimizer.state(),
            model: &mut lent.buffers,
        },
    )?;
    let mut seen = Seen::default();
    let mut start = values(&lent.parameters)?;
    let joins = node.node_id() == JOINER;
    if joins {
        run.joined.store(place.step, Ordering::Relaxed);
    }
    let mut step = place.step;
    loop {
        let joined = run.joined.load(Ordering::Relaxed);
        if step >= joined.saturating_add(ROUNDS * run.tau) {
            break;
        }
        thread::sleep(STEP);
        let (pixels, labels) = tensors(&data.batch(sampler.next_batch()));
        let loss = cross_entropy(&model.forward(&pixels)?, &labels)?;
        let gradients = loss.backward()?;
        let rate = match &mut optimizer {
            Optimizing::AdamW(adamw) => {
                adamw.step(&gradients)?;
                adamw.learning_rate()
            }
            Optimizing::Sgd(sgd) => {
                sgd.step(&gradients)?;
                sgd.learning_rate()
            }
        };
        let due = worker.is_due();
        let own = if due { test_loss(&model, &test)? } else { 0.0 };
        let reached = if due {
            values(&lent.parameters)?
        } else {
            Vec::new()
        };
        let report = worker.step_with(
            &mut lent.parameters,
            Buffers {
                optimizer: optimizer.state(),
                model: &mut lent.buffers,
            },
            rate as f32,
        )?;
        if due {
            seen.rounds.push(Round {
                step: report.step,
                moved: distance(&start, &reached),
                own,
                shared: test_loss(&model, &test)?,
            });
            start = values(&lent.parameters)?;
        }
        step = report.step + 1;
        if !joins {
            run.step.store(step, Ordering::Relaxed);
        }
    }
    worker.leave()?;
    Ok(seen)
}

fn values(parameters: &CandleVariables) -> Result<Vec<f32>, Failure> {
    let mut all = Vec::new();
    parameters.read(&mut |_, values| all.extend_from_slice(values))?;
    Ok(all)
}

fn distance(one: &[f32], other: &[f32]) -> f32 {
    let squares = one
        .iter()
        .zip(other)
        .map(|(one, other)| (one - other).powi(2));
    squares.sum::<f32>().sqrt()
}

fn test_loss(model: &Sequential, (pixels, labels): &(Tensor, Tensor)) -> Result<f32, Failure> {
    Ok(cross_entropy(&model.forward(pixels)?, labels)?.to_scalar()?)
}

/// A perceptron 64-64-10 with weights of the seed.
fn model(seed: u64) -> Result<(Sequential, VarMap), Failure> {
    // Candle cannot seed the CPU's random numbers.
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let model = candle_nn::seq()
        .add(candle_nn::linear(PIXELS, HIDDEN, builder.pp("hidden"))?)
        .add(candle_nn::Activation::Relu)
        .add(candle_nn::linear(HIDDEN, CLASSES, builder.pp("output"))?);
    let mut random = generator(seed, Purpose::Weights);
    CandleModel::from_var_map(&map)?
        .parameters
        .write(&mut |_, values| {
            let bound = 0.2;
            values.fill_with(|| bound * (2.0 * unit(&mut random) - 1.0));
        })?;
    Ok((model, map))
}

fn show(inner: Inner, way: &str, all: &[Figures]) {
    let mean = |of: &dyn Fn(&Figures) -> f32| all.iter().map(of).sum::<f32>() / all.len() as f32;
    let members = |of: fn(&Round) -> f32| {
        mean(&|one| one.members.iter().map(of).sum::<f32>() / one.members.len() as f32)
    };
    let shared: Vec<String> = (0..=ROUNDS as usize)
        .map(|round| mean(&|one| one.shared.get(round).copied().unwrap_or(f32::NAN)))
        .map(|loss| format!("{loss:.4}"))
        .collect();
    println!(
        "| {inner:?} | {way} | {:.2} | {:.2} | {:.4} | {:.4} | {} |",
        mean(&|one| one.joiner.moved),
        members(|round| round.moved),
        mean(&|one| one.joiner.own),
        members(|round| round.own),
        shared.join(", "),
    );
    for one in all {
        eprintln!("{inner:?} {way}: {one:.4?}");
    }
}
