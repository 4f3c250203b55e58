//! A candle model on handwritten digits as one node of a cluster.
//!
//! In the folder of this package, alone: `cargo run --release --example digits`. Four nodes:
//! `slowmo launch --nodes 4 -- target/release/examples/digits --slowmo-tau 12`.

use candle_core::{DType, Device, Tensor};
use candle_nn::optim::ParamsAdamW;
use candle_nn::{Module, Optimizer, Sequential, VarBuilder, VarMap, loss};
use slowmo::{Buffers, Config, ElasticSampler, Runtime};
use slowmo_candle::{AdamW, CandleGradients, CandleModel};
use slowmo_examples::digits::{Batch, CLASSES, Dataset, PIXELS};
use slowmo_examples::log;

const HIDDEN: usize = 128;
const BATCH: usize = 16;
const STEPS: u64 = 600;
const LEARNING_RATE: f64 = 0.003;

fn main() -> anyhow::Result<()> {
    log::to_standard_error(log::LevelFilter::WARN)?;
    let train = Dataset::train()?;
    let runtime = Runtime::builder().config(Config::load()?).spawn()?;
    let mut worker = runtime.worker(0)?;
    let device = match worker.gpu() {
        Some(gpu) if cfg!(feature = "cuda") => Device::new_cuda(gpu)?,
        _ => Device::Cpu,
    };

    let map = VarMap::new();
    let model = model(VarBuilder::from_varmap(&map, DType::F32, &device))?;
    let mut lent = CandleModel::from_var_map(&map)?;
    let params = ParamsAdamW {
        lr: LEARNING_RATE,
        ..ParamsAdamW::default()
    };
    let mut optimizer = AdamW::of(&lent.parameters, params)?;

    // Each sample of an epoch goes to one of the present nodes.
    let mut sampler = ElasticSampler::new(train.len(), BATCH, 0)?;
    worker.attach_sampler(&sampler);
    let buffers = Buffers {
        optimizer: &mut optimizer,
        model: &mut lent.buffers,
    };
    let place = worker.synchronize_with(&mut lent.parameters, buffers)?;
    let mut step = place.step;
    while worker.is_running() && step < STEPS {
        let (pixels, labels) = tensors(&train.batch(sampler.next_batch()), &device)?;
        let loss = loss::cross_entropy(&model.forward(&pixels)?, &labels)?;
        let mut gradients = loss.backward()?;
        worker.average_gradients(&mut CandleGradients::new(&lent.parameters, &mut gradients))?;
        optimizer.step(&gradients)?;
        worker.report_loss(f64::from(loss.to_scalar::<f32>()?));
        let buffers = Buffers {
            optimizer: &mut optimizer,
            model: &mut lent.buffers,
        };
        let report = worker.step_with(&mut lent.parameters, buffers, LEARNING_RATE as f32)?;
        step = report.step + 1;
    }
    worker.leave()?;

    let (pixels, labels) = tensors(&Dataset::test()?.all(), &device)?;
    let right = model.forward(&pixels)?.argmax(1)?.eq(&labels)?;
    let accuracy = right.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
    println!("accuracy on the test images: {:.1} %", 100.0 * accuracy);
    Ok(())
}

/// A perceptron 64-128-10.
fn model(builder: VarBuilder) -> candle_core::Result<Sequential> {
    Ok(candle_nn::seq()
        .add(candle_nn::linear(PIXELS, HIDDEN, builder.pp("hidden"))?)
        .add(candle_nn::Activation::Relu)
        .add(candle_nn::linear(HIDDEN, CLASSES, builder.pp("output"))?))
}

/// Pixels `[n, 64]` float32 and labels `[n]` u32.
fn tensors(batch: &Batch, device: &Device) -> candle_core::Result<(Tensor, Tensor)> {
    let count = batch.labels.len();
    let labels: Vec<u32> = batch.labels.iter().copied().map(u32::from).collect();
    Ok((
        Tensor::from_slice(&batch.pixels, (count, PIXELS), device)?,
        Tensor::from_vec(labels, count, device)?,
    ))
}
