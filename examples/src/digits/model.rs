//! The multilayer perceptron 64-128-64-10 over candle variables.

use super::data::{CLASSES, Dataset, PIXELS};
use super::dense::Dense;
use crate::random::{self, Purpose};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use slowmo::CandleVariables;
use slowmo::{TensorError, Tensors};

/// Width of each layer: inputs, hidden units, outputs.
const WIDTHS: [usize; 4] = [PIXELS, 128, 64, CLASSES];
const LAYERS: usize = WIDTHS.len() - 1;

/// ReLU between fully connected layers.
///
/// Weights are stored as `[inputs, outputs]`, so that all passes run along rows.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Layer>,
    /// The same variables under their names, for the runtime.
    variables: CandleVariables,
    device: Device,
}

#[derive(Clone, Debug)]
struct Layer {
    weight: Var,
    bias: Var,
}

/// Reasons why a model could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Candle refused an operation.
    #[error("candle: {0}")]
    Framework(#[from] candle_core::Error),
    /// The variables cannot be passed to the runtime.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Quality of a model on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// Share of the images classified correctly, 0–1.
    pub accuracy: f64,
}

impl Mlp {
    /// Initializes weights and biases uniformly in ±1/√inputs, torch's default for linear layers.
    ///
    /// # Errors
    /// Candle refuses to allocate, or the runtime refuses the variables.
    pub fn seeded(seed: u64) -> Result<Self, ModelError> {
        Self::seeded_on(seed, &Device::Cpu)
    }

    /// Initializes as [`Self::seeded`] with the same values, on a device.
    ///
    /// # Errors
    /// As [`Self::seeded`].
    pub fn seeded_on(seed: u64, device: &Device) -> Result<Self, ModelError> {
        let mut generator = random::generator(seed, Purpose::Weights);
        let mut layers = Vec::with_capacity(LAYERS);
        for pair in WIDTHS.windows(2) {
            let inputs = pair[0];
            let outputs = pair[1];
            let bound = 1.0 / (inputs as f32).sqrt();
            let mut uniform = |count: usize| {
                (0..count)
                    .map(|_| bound * (2.0 * random::unit(&mut generator) - 1.0))
                    .collect()
            };
            let weight = Var::from_vec(uniform(inputs * outputs), (inputs, outputs), device)?;
            layers.push(Layer {
                weight,
                bias: Var::from_vec(uniform(outputs), outputs, device)?,
            });
        }
        let named = layers.iter().enumerate().flat_map(|(index, layer)| {
            let name = |part: &str| format!("layer{}.{part}", index + 1);
            [
                (name("weight"), layer.weight.clone()),
                (name("bias"), layer.bias.clone()),
            ]
        });
        Ok(Self {
            variables: CandleVariables::new(named)?,
            layers,
            device: device.clone(),
        })
    }

    /// The trainable variables.
    #[must_use]
    pub fn variables(&self) -> &CandleVariables {
        &self.variables
    }

    /// The trainable variables, to be passed to the runtime for writing: they share their storage
    /// with the layers.
    #[must_use]
    pub fn variables_mut(&mut self) -> &mut CandleVariables {
        &mut self.variables
    }

    /// The number of values of the model.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.variables
            .iter()
            .map(|(_, variable)| variable.elem_count())
            .sum()
    }

    /// Logits `[n, 10]` of pixels `[n, 64]`.
    ///
    /// # Errors
    /// The pixels have another shape.
    pub fn forward(&self, pixels: &Tensor) -> candle_core::Result<Tensor> {
        let mut activation = pixels.to_device(&self.device)?;
        for (index, layer) in self.layers.iter().enumerate() {
            activation = if self.device.is_cpu() {
                activation.apply_op3(
                    &layer.weight,
                    &layer.bias,
                    Dense {
                        input_gradient: index > 0,
                    },
                )?
            } else {
                activation
                    .matmul(layer.weight.as_tensor())?
                    .broadcast_add(layer.bias.as_tensor())?
            };
            if index + 1 < LAYERS {
                activation = activation.relu()?;
            }
        }
        Ok(activation)
    }

    /// Mean cross-entropy of a batch and its gradients; `labels` are `[n]` u32.
    ///
    /// # Errors
    /// The shapes do not match.
    pub fn loss_and_gradients(
        &self,
        pixels: &Tensor,
        labels: &Tensor,
    ) -> candle_core::Result<(f64, GradStore)> {
        let loss = candle_nn::loss::cross_entropy(
            &self.forward(pixels)?,
            &labels.to_device(&self.device)?,
        )?;
        Ok((f64::from(loss.to_scalar::<f32>()?), loss.backward()?))
    }

    /// Loss and accuracy on the whole of `data`.
    ///
    /// Candle refuses an operation.
    /// Candle refuses.
    pub fn evaluate(&self, data: &Dataset) -> candle_core::Result<Evaluation> {
        let all: Vec<usize> = (0..data.len()).collect();
        let (pixels, labels) = data.batch(&all)?;
        let logits = self.forward(&pixels)?.detach();
        let labels = labels.to_device(&self.device)?;
        let loss = f64::from(candle_nn::loss::cross_entropy(&logits, &labels)?.to_scalar::<f32>()?);
        let right: u32 = logits
            .argmax(1)?
            .eq(&labels)?
            .to_dtype(candle_core::DType::U32)?
            .sum_all()?
            .to_scalar()?;
        Ok(Evaluation {
            loss,
            accuracy: f64::from(right) / data.len().max(1) as f64,
        })
    }
}

/// All values of the given tensors, one after the other; unlike `slowmo::internal::tensors::flat::freeze`,
/// values that diverged are included.
///
/// # Errors
/// As [`Tensors::read`].
pub fn flatten(tensors: &(impl Tensors + ?Sized)) -> Result<Vec<f32>, TensorError> {
    let mut flat = Vec::new();
    tensors.read(&mut |_, values| flat.extend_from_slice(values))?;
    Ok(flat)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use slowmo::CandleGradients;
    use slowmo::internal::tensors::flat::restore;

    #[test]
    fn the_same_seed_gives_the_same_values_within_their_bound() {
        let model = Mlp::seeded(3).unwrap();
        assert_eq!(
            model.parameters(),
            64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
        );
        let flat = |seed| flatten(Mlp::seeded(seed).unwrap().variables()).unwrap();
        assert_eq!(flatten(model.variables()).unwrap(), flat(3));
        assert_ne!(flat(3), flat(4));
        let flat = flat(3);
        let first = &flat[..128 + 64 * 128];
        let variance = first.iter().map(|x| x * x).sum::<f32>() / first.len() as f32;
        assert!(
            first.iter().all(|x| x.abs() <= 0.125) && (variance - 0.125 * 0.125 / 3.0).abs() < 2e-4,
            "{variance}"
        );
    }

    #[test]
    fn gradients_match_finite_differences() {
        let data = Dataset::train().unwrap();
        let (pixels, labels) = data.batch(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let mut model = Mlp::seeded(1).unwrap();
        let (_, mut store) = model.loss_and_gradients(&pixels, &labels).unwrap();
        let gradient = flatten(&CandleGradients::new(model.variables(), &mut store)).unwrap();
        let flat = flatten(model.variables()).unwrap();
        for index in [5, 700, 8_400, 9_000, 16_600, 17_150, flat.len() - 1] {
            let mut loss_at = |shift: f32| {
                let mut moved = flat.clone();
                moved[index] += shift;
                restore(&moved, model.variables_mut()).unwrap();
                model.loss_and_gradients(&pixels, &labels).unwrap().0
            };
            let slope = (loss_at(1e-2) - loss_at(-1e-2)) / 2e-2;
            assert!(
                (slope - f64::from(gradient[index])).abs() < 1e-3,
                "{index}: {slope} against {}",
                gradient[index]
            );
        }
    }
}
