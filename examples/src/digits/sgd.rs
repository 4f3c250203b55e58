//! Stochastic gradient descent with Nesterov momentum, in place.

use super::parameters::Parameters;

/// Nesterov SGD as defined by `torch.optim.SGD(nesterov=True)`: `v ← μv + g; x ← x − γ(g + μv)`,
/// with `v` zero at the start.
#[derive(Clone, Debug)]
pub struct NesterovSgd {
    /// Momentum μ.
    momentum: f32,
    /// The velocity `v` of each tensor.
    velocities: Parameters,
}

impl NesterovSgd {
    /// Creates an optimizer of `parameters` with zero velocities.
    #[must_use]
    pub fn new(parameters: &Parameters, momentum: f32) -> Self {
        Self {
            momentum,
            velocities: parameters.zeros_like("velocity."),
        }
    }

    /// The velocities `v`, to be passed to the runtime with the parameters.
    #[must_use]
    pub fn velocities_mut(&mut self) -> &mut Parameters {
        &mut self.velocities
    }

    /// Takes one step at `learning_rate`; `gradients` have the shapes of `parameters`.
    pub fn step(
        &mut self,
        parameters: &mut Parameters,
        gradients: &Parameters,
        learning_rate: f32,
    ) {
        let tensors = parameters.list.iter_mut().zip(&gradients.list);
        for ((x, g), v) in tensors.zip(&mut self.velocities.list) {
            for ((x, g), v) in x.values.iter_mut().zip(&g.values).zip(&mut v.values) {
                *v = self.momentum * *v + g;
                *x -= learning_rate * (g + self.momentum * *v);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::Parameter;
    use super::*;

    /// γ = 0.1, μ = 0.9 on ½(x − 1)²: worked out by hand from the definition of `torch.optim.SGD`.
    #[test]
    fn three_steps_by_hand() {
        let of = |values: &[f32]| Parameters {
            list: vec![Parameter {
                name: "x".to_owned(),
                shape: vec![values.len()],
                values: values.to_vec(),
            }],
        };
        let mut x = of(&[0.0, 1.0]);
        let mut sgd = NesterovSgd::new(&x, 0.9);
        // g = −1, v = −1, x = 0.1·1.9; g = −0.81, v = −1.71, x += 0.1·(0.81 + 1.539);
        // g = −0.5751, v = −2.1141, x += 0.1·(0.5751 + 1.90269).
        for expected in [0.19, 0.4249, 0.672_679] {
            let gradient: Vec<f32> = x.flat().iter().map(|x| x - 1.0).collect();
            sgd.step(&mut x, &of(&gradient), 0.1);
            let values = x.flat();
            assert!(
                (values[0] - expected).abs() < 1e-6,
                "{} against {expected}",
                values[0]
            );
            assert_eq!(values[1], 1.0);
        }
    }
}
