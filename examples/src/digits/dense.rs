//! A fully connected layer as one candle operation, forward and backward.
//!
//! For 16 images, candle's general matrix product spends more time on asking the system for its
//! processors than on arithmetic (1.0 of 1.5 ms per step); plain loops over rows have no such cost
//! and need no threads.

use super::sgd::float32;
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Storage, Tensor};

/// Number of independent partial sums of a dot product, so that it fills vector registers.
const LANES: usize = 8;

/// The operation `x·W + b` with `x` `[n, inputs]`, `W` `[inputs, outputs]`, `b` `[outputs]`.
#[derive(Clone, Copy, Debug)]
pub struct Dense {
    /// Whether `x` is another layer's output and needs a gradient; the images do not.
    pub input_gradient: bool,
}

impl CustomOp3 for Dense {
    fn name(&self) -> &'static str {
        "dense"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, inputs) = x_layout.shape().dims2()?;
        let (w_inputs, outputs) = w_layout.shape().dims2()?;
        if inputs != w_inputs || b_layout.shape().dims1()? != outputs {
            candle_core::bail!(
                "dense: {inputs} inputs for weights [{w_inputs}, {outputs}] and biases {:?}",
                b_layout.shape()
            );
        }
        let y = forward(
            float32(x, x_layout)?,
            float32(w, w_layout)?,
            float32(b, b_layout)?,
            rows,
        );
        Ok((CpuStorage::F32(y), Shape::from((rows, outputs))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _b: &Tensor,
        _y: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let (rows, outputs) = gradient.dims2()?;
        let inputs = w.dim(0)?;
        let (of_x, of_w, of_b) = with_values(x, |x| {
            with_values(w, |w| {
                with_values(&gradient, |gradient| {
                    let of_x = self
                        .input_gradient
                        .then(|| input_gradient(gradient, w, outputs));
                    Ok((
                        of_x,
                        weight_gradient(x, gradient, rows, outputs),
                        bias_gradient(gradient, outputs),
                    ))
                })
            })
        })?;
        let of_x = of_x
            .map(|values| Tensor::from_vec(values, (rows, inputs), &Device::Cpu))
            .transpose()?;
        let of_w = Tensor::from_vec(of_w, (inputs, outputs), &Device::Cpu)?;
        Ok((
            of_x,
            Some(of_w),
            Some(Tensor::from_vec(of_b, outputs, &Device::Cpu)?),
        ))
    }
}

fn with_values<R>(tensor: &Tensor, use_values: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => use_values(float32(storage, layout)?),
        _ => candle_core::bail!("dense runs on the CPU only, with {:?}", DType::F32),
    }
}

/// Forward pass, row by row: `y ← b + Σ_k x_k·W_k`.
fn forward(x: &[f32], w: &[f32], b: &[f32], rows: usize) -> Vec<f32> {
    let mut y = b.repeat(rows);
    let inputs = x.len() / rows.max(1);
    for (x, y) in x
        .chunks_exact(inputs.max(1))
        .zip(y.chunks_exact_mut(b.len().max(1)))
    {
        for (x, w) in x.iter().zip(w.chunks_exact(b.len().max(1))) {
            add_scaled(y, *x, w);
        }
    }
    y
}

/// Gradient of the weights, `xᵀ·g`.
fn weight_gradient(x: &[f32], gradient: &[f32], rows: usize, outputs: usize) -> Vec<f32> {
    let inputs = x.len() / rows.max(1);
    let mut of_w = vec![0.0; inputs * outputs];
    for (x, gradient) in x
        .chunks_exact(inputs.max(1))
        .zip(gradient.chunks_exact(outputs.max(1)))
    {
        for (x, of_w) in x.iter().zip(of_w.chunks_exact_mut(outputs.max(1))) {
            add_scaled(of_w, *x, gradient);
        }
    }
    of_w
}

/// Gradient of the input, `g·Wᵀ`.
fn input_gradient(gradient: &[f32], w: &[f32], outputs: usize) -> Vec<f32> {
    let rows = gradient.chunks_exact(outputs.max(1));
    rows.flat_map(|gradient| w.chunks_exact(outputs.max(1)).map(|w| dot(gradient, w)))
        .collect()
}

/// Gradient of the bias, the sum of `g`'s rows.
fn bias_gradient(gradient: &[f32], outputs: usize) -> Vec<f32> {
    let mut of_b = vec![0.0; outputs];
    gradient
        .chunks_exact(outputs.max(1))
        .for_each(|gradient| add_scaled(&mut of_b, 1.0, gradient));
    of_b
}

fn add_scaled(sum: &mut [f32], factor: f32, values: &[f32]) {
    sum.iter_mut()
        .zip(values)
        .for_each(|(sum, value)| *sum += factor * value);
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    let left = left.chunks_exact(LANES);
    let right = right.chunks_exact(LANES);
    let rest: f32 = left
        .remainder()
        .iter()
        .zip(right.remainder())
        .map(|(left, right)| left * right)
        .sum();
    let mut sums = [0.0f32; LANES];
    for (left, right) in left.zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use candle_core::Var;

    fn variable(shape: (usize, usize), factor: f32) -> Var {
        let values = (0..shape.0 * shape.1)
            .map(|i| ((i as f32) * factor).sin())
            .collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    fn assert_same(left: &Tensor, right: &Tensor) {
        assert_eq!(left.dims(), right.dims());
        let difference = (left - right)
            .unwrap()
            .abs()
            .unwrap()
            .max_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap();
        // The sums reach tens, and their order of summation differs.
        assert!(difference < 1e-4, "{difference}");
    }

    #[test]
    fn forward_and_gradients_equal_candles_own() {
        let x = variable((5, 11), 0.7);
        let w = variable((11, 19), 0.3);
        let b = Var::from_tensor(&variable((1, 19), 0.9).squeeze(0).unwrap()).unwrap();
        let ours = x
            .apply_op3(
                &w,
                &b,
                Dense {
                    input_gradient: true,
                },
            )
            .unwrap();
        let theirs = x.matmul(&w).unwrap().broadcast_add(&b).unwrap();
        assert_same(&ours, &theirs);
        let gradients = |y: &Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let ours = gradients(&ours);
        let theirs = gradients(&theirs);
        for variable in [&x, &w, &b] {
            assert_same(ours.get(variable).unwrap(), theirs.get(variable).unwrap());
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let b = Var::zeros(19, DType::F32, &Device::Cpu).unwrap();
        assert!(
            variable((5, 10), 0.7)
                .apply_op3(
                    &variable((11, 19), 0.3),
                    &b,
                    Dense {
                        input_gradient: true
                    }
                )
                .is_err()
        );
    }
}
