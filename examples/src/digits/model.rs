//! The multilayer perceptron 64-128-64-10 in plain loops over rows: a model of this size spends
//! more time in a framework's scheduling than on arithmetic. `runtime/candle` has the example that
//! trains with one.

use super::data::{Batch, CLASSES, Dataset, PIXELS};
use super::parameters::{Parameter, Parameters};
use crate::random::{self, Purpose};

/// Width of each layer: inputs, hidden units, outputs.
const WIDTHS: [usize; 4] = [PIXELS, 128, 64, CLASSES];
const LAYERS: usize = WIDTHS.len() - 1;
/// Number of independent partial sums of a dot product, so that it fills vector registers.
const LANES: usize = 8;

/// ReLU between fully connected layers.
///
/// Weights are stored as `[inputs, outputs]`, so that all passes run along rows. The parameters
/// are `layer1.weight`, `layer1.bias`, `layer2.weight`, …
#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    parameters: Parameters,
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
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let mut generator = random::generator(seed, Purpose::Weights);
        let mut list = Vec::with_capacity(2 * LAYERS);
        for (index, pair) in WIDTHS.windows(2).enumerate() {
            let inputs = pair[0];
            let outputs = pair[1];
            let bound = 1.0 / (inputs as f32).sqrt();
            let mut uniform = |part: &str, shape: &[usize]| Parameter {
                name: format!("layer{}.{part}", index + 1),
                shape: shape.to_vec(),
                values: (0..shape.iter().product())
                    .map(|_| bound * (2.0 * random::unit(&mut generator) - 1.0))
                    .collect(),
            };
            list.push(uniform("weight", &[inputs, outputs]));
            list.push(uniform("bias", &[outputs]));
        }
        Self {
            parameters: Parameters { list },
        }
    }

    /// The trainable parameters.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The trainable parameters, for writing.
    #[must_use]
    pub fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// Weights and biases of layer `index`, counted from 0.
    fn layer(&self, index: usize) -> (&[f32], &[f32]) {
        let list = &self.parameters.list;
        (&list[2 * index].values, &list[2 * index + 1].values)
    }

    /// The activations that enter each layer, and the logits `[n, 10]` at the end.
    fn forward(&self, pixels: &[f32]) -> Vec<Vec<f32>> {
        let mut activations = vec![pixels.to_vec()];
        for index in 0..LAYERS {
            let (weight, bias) = self.layer(index);
            let mut y = dense(&activations[index], weight, bias, WIDTHS[index]);
            if index + 1 < LAYERS {
                y.iter_mut().for_each(|value| *value = value.max(0.0));
            }
            activations.push(y);
        }
        activations
    }

    /// Mean cross-entropy of a batch, and its gradients.
    #[must_use]
    pub fn loss_and_gradients(&self, batch: &Batch) -> (f64, Parameters) {
        let mut activations = self.forward(&batch.pixels);
        let logits = activations.pop().unwrap_or_default();
        let (loss, mut gradient) = cross_entropy(&logits, &batch.labels);
        let mut gradients = self.parameters.zeros_like("");
        for index in (0..LAYERS).rev() {
            let x = &activations[index];
            let of_layer = &mut gradients.list[2 * index..=2 * index + 1];
            weight_gradient(x, &gradient, WIDTHS[index], &mut of_layer[0].values);
            for row in gradient.chunks_exact(WIDTHS[index + 1]) {
                add_scaled(&mut of_layer[1].values, 1.0, row);
            }
            if index > 0 {
                gradient = input_gradient(&gradient, self.layer(index).0, WIDTHS[index + 1]);
                // ReLU passes nothing where it passed no value.
                for (gradient, x) in gradient.iter_mut().zip(x) {
                    if *x <= 0.0 {
                        *gradient = 0.0;
                    }
                }
            }
        }
        (loss, gradients)
    }

    /// Loss and accuracy on the whole of `data`.
    #[must_use]
    pub fn evaluate(&self, data: &Dataset) -> Evaluation {
        let all = data.all();
        let logits = self.forward(&all.pixels).pop().unwrap_or_default();
        let (loss, _) = cross_entropy(&logits, &all.labels);
        let rows = logits.chunks_exact(CLASSES).zip(&all.labels);
        let right = rows
            .filter(|(row, label)| argmax(row) == usize::from(**label))
            .count();
        Evaluation {
            loss,
            accuracy: right as f64 / data.len().max(1) as f64,
        }
    }
}

/// A fully connected layer, row by row: `y ← b + Σ_k x_k·W_k`.
fn dense(x: &[f32], w: &[f32], b: &[f32], inputs: usize) -> Vec<f32> {
    let mut y = b.repeat(x.len() / inputs);
    for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(b.len())) {
        for (x, w) in x.iter().zip(w.chunks_exact(b.len())) {
            add_scaled(y, *x, w);
        }
    }
    y
}

/// Adds the gradient of the weights, `xᵀ·g`.
fn weight_gradient(x: &[f32], gradient: &[f32], inputs: usize, of_w: &mut [f32]) {
    let outputs = of_w.len() / inputs;
    for (x, gradient) in x.chunks_exact(inputs).zip(gradient.chunks_exact(outputs)) {
        for (x, of_w) in x.iter().zip(of_w.chunks_exact_mut(outputs)) {
            add_scaled(of_w, *x, gradient);
        }
    }
}

/// Gradient of a layer's input, `g·Wᵀ`.
fn input_gradient(gradient: &[f32], w: &[f32], outputs: usize) -> Vec<f32> {
    gradient
        .chunks_exact(outputs)
        .flat_map(|gradient| w.chunks_exact(outputs).map(|w| dot(gradient, w)))
        .collect()
}

/// Mean cross-entropy of logits `[n, 10]`, and its gradient: `(softmax − one-hot) / n`.
fn cross_entropy(logits: &[f32], labels: &[u8]) -> (f64, Vec<f32>) {
    let count = labels.len().max(1) as f32;
    let mut loss = 0.0;
    let mut gradient = Vec::with_capacity(logits.len());
    for (row, label) in logits.chunks_exact(CLASSES).zip(labels) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
        let log_sum = sum.ln();
        loss += f64::from(log_sum - (row[usize::from(*label)] - largest));
        gradient.extend(row.iter().enumerate().map(|(class, logit)| {
            let softmax = (logit - largest - log_sum).exp();
            let target = if class == usize::from(*label) {
                1.0
            } else {
                0.0
            };
            (softmax - target) / count
        }));
    }
    (loss / f64::from(count), gradient)
}

/// Index of the largest value, the first of equal ones.
fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    best
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

    #[test]
    fn the_same_seed_gives_the_same_values_within_their_bound() {
        let flat = Mlp::seeded(3).parameters().flat();
        assert_eq!(flat.len(), 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10);
        assert_eq!(Mlp::seeded(3), Mlp::seeded(3));
        assert_ne!(Mlp::seeded(3), Mlp::seeded(4));
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
        let batch = data.batch(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let model = Mlp::seeded(1);
        let gradient = model.loss_and_gradients(&batch).1.flat();
        for index in [5, 700, 8_400, 9_000, 16_600, 17_150, gradient.len() - 1] {
            let loss_at = |shift: f32| {
                let mut moved = model.clone();
                let mut offset = index;
                for parameter in &mut moved.parameters.list {
                    match parameter.values.get_mut(offset) {
                        Some(value) => {
                            *value += shift;
                            break;
                        }
                        None => offset -= parameter.values.len(),
                    }
                }
                moved.loss_and_gradients(&batch).0
            };
            let slope = (loss_at(1e-2) - loss_at(-1e-2)) / 2e-2;
            assert!(
                (slope - f64::from(gradient[index])).abs() < 1e-3,
                "{index}: {slope} against {}",
                gradient[index]
            );
        }
    }

    #[test]
    fn evaluation_of_logits_by_hand() {
        let mut logits = vec![0.0; 2 * CLASSES];
        logits[3] = 2.0;
        let (loss, gradient) = cross_entropy(&logits, &[3, 7]);
        let first = (2.0f64.exp() + 9.0).ln() - 2.0;
        let second = 10.0f64.ln();
        assert!((loss - (first + second) / 2.0).abs() < 1e-6, "{loss}");
        assert!((gradient[CLASSES + 7] - (0.1 - 1.0) / 2.0).abs() < 1e-6);
        assert_eq!(
            (argmax(&logits[..CLASSES]), argmax(&logits[CLASSES..])),
            (3, 0)
        );
    }
}
