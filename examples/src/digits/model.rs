//! The multilayer perceptron 64-128-64-10 over candle variables, and how it lends its values to the runtime.

use super::data::{CLASSES, Dataset, PIXELS};
use super::dense::Dense;
use super::sgd::float32_mut;
use crate::random::{self, Purpose};
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Storage, Tensor, Var};
use slowmo::{TensorError, Tensors};
use std::cell::RefCell;

/// Inputs, hidden units and outputs.
const WIDTHS: [usize; 4] = [PIXELS, 128, 64, CLASSES];
const LAYERS: usize = WIDTHS.len() - 1;
/// Weights and biases, layer after layer: the order in which they are lent.
const NAMES: [&str; 2 * LAYERS] = ["layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias", "layer3.weight", "layer3.bias"];

/// ReLU between fully connected layers.
///
/// Weights are stored `[inputs, outputs]`: all passes then run along rows.
#[derive(Clone, Debug)]
pub struct Mlp {
    variables: Vec<Var>,
}

/// One gradient a variable, in the variables' order.
#[derive(Clone, Debug)]
pub struct Gradients {
    tensors: Vec<Tensor>,
}

/// How well a model does on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// Share of the images classified correctly, 0–1.
    pub accuracy: f64,
}

impl Mlp {
    /// Weights and biases uniform in ±1/√inputs, torch's default for linear layers.
    ///
    /// # Errors
    /// Candle refuses to allocate.
    pub fn seeded(seed: u64) -> candle_core::Result<Self> {
        let mut generator = random::generator(seed, Purpose::Weights);
        let mut variables = Vec::with_capacity(NAMES.len());
        for pair in WIDTHS.windows(2) {
            let (inputs, outputs) = (pair[0], pair[1]);
            let bound = 1.0 / (inputs as f32).sqrt();
            let mut uniform = |count: usize| (0..count).map(|_| bound * (2.0 * random::unit(&mut generator) - 1.0)).collect();
            variables.push(Var::from_vec(uniform(inputs * outputs), (inputs, outputs), &Device::Cpu)?);
            variables.push(Var::from_vec(uniform(outputs), outputs, &Device::Cpu)?);
        }
        Ok(Self { variables })
    }

    /// The trainable variables, in the order in which they are lent.
    #[must_use]
    pub fn variables(&self) -> &[Var] {
        &self.variables
    }

    /// The number of values.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.variables.iter().map(|variable| variable.elem_count()).sum()
    }

    /// Logits `[n, 10]` of pixels `[n, 64]`.
    ///
    /// # Errors
    /// Pixels of another shape.
    pub fn forward(&self, pixels: &Tensor) -> candle_core::Result<Tensor> {
        let mut activation = pixels.clone();
        for (index, layer) in self.variables.chunks_exact(2).enumerate() {
            activation = activation.apply_op3(&layer[0], &layer[1], Dense { input_gradient: index > 0 })?;
            if index + 1 < LAYERS {
                activation = activation.relu()?;
            }
        }
        Ok(activation)
    }

    /// Mean cross-entropy of a batch and its gradients; `labels` are `[n]` u32.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn loss_and_gradients(&self, pixels: &Tensor, labels: &Tensor) -> candle_core::Result<(f64, Gradients)> {
        let loss = candle_nn::loss::cross_entropy(&self.forward(pixels)?, labels)?;
        let mut store = loss.backward()?;
        let mut tensors = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            let Some(gradient) = store.remove(variable) else { candle_core::bail!("a variable took no part in the loss") };
            tensors.push(gradient);
        }
        Ok((f64::from(loss.to_scalar::<f32>()?), Gradients { tensors }))
    }

    /// Loss and accuracy on the whole of `data`.
    ///
    /// # Errors
    /// Candle refuses.
    pub fn evaluate(&self, data: &Dataset) -> candle_core::Result<Evaluation> {
        let all: Vec<usize> = (0..data.len()).collect();
        let (pixels, labels) = data.batch(&all)?;
        let logits = self.forward(&pixels)?.detach();
        let loss = f64::from(candle_nn::loss::cross_entropy(&logits, &labels)?.to_scalar::<f32>()?);
        let right: u32 = logits.argmax(1)?.eq(&labels)?.to_dtype(candle_core::DType::U32)?.sum_all()?.to_scalar()?;
        Ok(Evaluation { loss, accuracy: f64::from(right) / data.len().max(1) as f64 })
    }

    /// All values in lending order.
    ///
    /// # Errors
    /// As [`Tensors::read`].
    pub fn to_flat(&self) -> Result<Vec<f32>, TensorError> {
        flatten(self)
    }

    /// Takes all values from `flat`, as [`Mlp::to_flat`] gave them.
    ///
    /// # Errors
    /// As [`Tensors::write`]. Values beyond the end of `flat` stay as they are.
    pub fn set_flat(&mut self, flat: &[f32]) -> Result<(), TensorError> {
        unflatten(self, flat)
    }
}

impl Gradients {
    /// One gradient a variable.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Takes all values from `flat`, in the variables' order.
    ///
    /// # Errors
    /// As [`Tensors::write`]. Values beyond the end of `flat` stay as they are.
    pub fn set_flat(&mut self, flat: &[f32]) -> Result<(), TensorError> {
        unflatten(self, flat)
    }
}

fn unflatten(tensors: &mut impl Tensors, flat: &[f32]) -> Result<(), TensorError> {
    let mut rest = flat;
    tensors.write(&mut |_, values| {
        let (now, later) = rest.split_at(values.len().min(rest.len()));
        values[..now.len()].copy_from_slice(now);
        rest = later;
    })
}

/// All values of lent tensors, one after the other.
///
/// # Errors
/// As [`Tensors::read`].
pub fn flatten(tensors: &(impl Tensors + ?Sized)) -> Result<Vec<f32>, TensorError> {
    let mut flat = Vec::new();
    tensors.read(&mut |_, values| flat.extend_from_slice(values))?;
    Ok(flat)
}

impl Tensors for Mlp {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        NAMES.iter().zip(&self.variables).try_for_each(|(name, variable)| read_tensor(name, variable, visit))
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        NAMES.iter().zip(&self.variables).try_for_each(|(name, variable)| write_tensor(name, variable, visit))
    }
}

impl Tensors for Gradients {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        NAMES.iter().zip(&self.tensors).try_for_each(|(name, tensor)| read_tensor(name, tensor, visit))
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        NAMES.iter().zip(&self.tensors).try_for_each(|(name, tensor)| write_tensor(name, tensor, visit))
    }
}

/// Lends candle's own buffer: no copy.
fn read_tensor(name: &str, tensor: &Tensor, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(values)) = &*storage else { return Err(not_float32(name, tensor)) };
    let (start, end) = layout.contiguous_offsets().ok_or_else(|| TensorError::NotContiguous { name: name.to_owned() })?;
    visit(name, &values[start..end]);
    Ok(())
}

/// Lends candle's own buffer for writing, which only an in-place operation reaches.
fn write_tensor(name: &str, tensor: &Tensor, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
    if tensor.dtype() != candle_core::DType::F32 {
        return Err(not_float32(name, tensor));
    }
    let lend = Lend { name, visit: RefCell::new(visit) };
    tensor.inplace_op1(&lend).map_err(|error| TensorError::Framework { name: name.to_owned(), message: error.to_string() })
}

fn not_float32(name: &str, tensor: &Tensor) -> TensorError {
    TensorError::NotFloat32 { name: name.to_owned(), found: format!("{:?} on {:?}", tensor.dtype(), tensor.device().location()) }
}

type Visit<'a> = dyn FnMut(&str, &mut [f32]) + 'a;

struct Lend<'a> {
    name: &'a str,
    visit: RefCell<&'a mut Visit<'a>>,
}

impl InplaceOp1 for Lend<'_> {
    fn name(&self) -> &'static str {
        "lend"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        (self.visit.borrow_mut())(self.name, float32_mut(storage, layout)?);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_values_within_their_bound() {
        let model = Mlp::seeded(3).unwrap();
        assert_eq!(model.parameters(), 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10);
        let flat = model.to_flat().unwrap();
        assert_eq!(flat, Mlp::seeded(3).unwrap().to_flat().unwrap());
        assert_ne!(flat, Mlp::seeded(4).unwrap().to_flat().unwrap());
        let first = &flat[..64 * 128];
        let variance = first.iter().map(|x| x * x).sum::<f32>() / first.len() as f32;
        assert!(first.iter().all(|x| x.abs() <= 0.125) && (variance - 0.125 * 0.125 / 3.0).abs() < 2e-4, "{variance}");
    }

    #[test]
    fn values_written_are_values_read() {
        let mut model = Mlp::seeded(0).unwrap();
        let wanted: Vec<f32> = (0..model.parameters()).map(|i| i as f32).collect();
        model.set_flat(&wanted).unwrap();
        assert_eq!(model.to_flat().unwrap(), wanted);
        assert_eq!(model.variables()[1].to_vec1::<f32>().unwrap()[0], 8192.0);
    }

    #[test]
    fn gradients_match_finite_differences() {
        let data = Dataset::train().unwrap();
        let (pixels, labels) = data.batch(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let mut model = Mlp::seeded(1).unwrap();
        let (_, mut gradients) = model.loss_and_gradients(&pixels, &labels).unwrap();
        let gradient = flatten(&gradients).unwrap();
        let flat = model.to_flat().unwrap();
        for index in [700, 8_200, 9_000, 16_600, 17_150, flat.len() - 1] {
            let mut loss_at = |shift: f32| {
                let mut moved = flat.clone();
                moved[index] += shift;
                model.set_flat(&moved).unwrap();
                model.loss_and_gradients(&pixels, &labels).unwrap().0
            };
            let slope = (loss_at(1e-2) - loss_at(-1e-2)) / 2e-2;
            assert!((slope - f64::from(gradient[index])).abs() < 1e-3, "{index}: {slope} against {}", gradient[index]);
        }
        // The runtime averages gradients in place.
        gradients.write(&mut |_, values| values.fill(0.0)).unwrap();
        assert!(flatten(&gradients).unwrap().iter().all(|value| *value == 0.0));
    }
}
