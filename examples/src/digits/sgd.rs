//! Stochastic gradient descent with Nesterov momentum over candle variables, in place: two fused
//! passes per variable on the CPU, candle's own operations elsewhere.

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Result, Var};
use slowmo::CandleVariables;
use slowmo::TensorError;

/// Nesterov SGD as defined by `torch.optim.SGD(nesterov=True)`: `v ← μv + g; x ← x − γ(g + μv)`,
/// with `v` zero at the start.
#[derive(Debug)]
pub struct NesterovSgd {
    /// Momentum μ.
    momentum: f32,
    /// Each variable with its velocity `v`.
    velocities: Vec<(Var, Var)>,
}

impl NesterovSgd {
    /// Creates an optimizer of `variables` with zero velocities.
    ///
    /// # Errors
    /// Candle refuses to allocate.
    pub fn new(variables: Vec<Var>, momentum: f32) -> Result<Self> {
        let at_rest = |variable: Var| {
            Var::from_tensor(&variable.zeros_like()?).map(|velocity| (variable, velocity))
        };
        Ok(Self {
            momentum,
            velocities: variables.into_iter().map(at_rest).collect::<Result<_>>()?,
        })
    }

    /// The velocities `v`, to be passed to the runtime under the names of their variables; they
    /// share their storage with the optimizer.
    ///
    /// # Errors
    /// A name occurs twice, or the runtime does not accept a variable.
    pub fn buffers<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> std::result::Result<CandleVariables, TensorError> {
        CandleVariables::new(
            names
                .map(|name| format!("velocity.{name}"))
                .zip(self.velocities.iter().map(|(_, velocity)| velocity.clone())),
        )
    }

    /// Takes one step at `learning_rate`. A variable without a gradient stays unchanged.
    ///
    /// # Errors
    /// A gradient has another shape, or is not contiguous float32 on the CPU; some variables may
    /// have changed.
    pub fn step(&mut self, gradients: &GradStore, learning_rate: f32) -> Result<()> {
        let accumulate = Accumulate {
            momentum: self.momentum,
        };
        let descend = Descend {
            momentum: self.momentum,
            learning_rate,
        };
        for (variable, velocity) in &mut self.velocities {
            let Some(gradient) = gradients.get(variable) else {
                continue;
            };
            if !variable.device().is_cpu() {
                velocity.set(&(velocity.as_tensor() * f64::from(self.momentum))?.add(gradient)?)?;
                let direction = (velocity.as_tensor() * f64::from(self.momentum))?.add(gradient)?;
                variable.set(
                    &variable
                        .as_tensor()
                        .sub(&(direction * f64::from(learning_rate))?)?,
                )?;
                continue;
            }
            velocity.inplace_op2(gradient, &accumulate)?;
            variable.inplace_op3(gradient, velocity, &descend)?;
        }
        Ok(())
    }
}

/// The operation `v ← μv + g`.
struct Accumulate {
    momentum: f32,
}

impl InplaceOp2 for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn cpu_fwd(
        &self,
        v: &mut CpuStorage,
        v_layout: &Layout,
        g: &CpuStorage,
        g_layout: &Layout,
    ) -> Result<()> {
        for (v, g) in float32_mut(v, v_layout)?
            .iter_mut()
            .zip(float32(g, g_layout)?)
        {
            *v = self.momentum * *v + g;
        }
        Ok(())
    }
}

/// The operation `x ← x − γ(g + μv)`.
struct Descend {
    momentum: f32,
    learning_rate: f32,
}

impl InplaceOp3 for Descend {
    fn name(&self) -> &'static str {
        "descend"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_layout: &Layout,
        g: &CpuStorage,
        g_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<()> {
        let directions = float32(g, g_layout)?.iter().zip(float32(v, v_layout)?);
        for (x, (g, v)) in float32_mut(x, x_layout)?.iter_mut().zip(directions) {
            *x -= self.learning_rate * (g + self.momentum * v);
        }
        Ok(())
    }
}

/// The values of a contiguous float32 tensor.
pub(super) fn float32<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let (start, end) = contiguous(layout)?;
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// The values of a contiguous float32 tensor, for writing.
fn float32_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    let (start, end) = contiguous(layout)?;
    match storage {
        CpuStorage::F32(values) => Ok(&mut values[start..end]),
        _ => candle_core::bail!("a tensor is not float32: convert it first"),
    }
}

fn contiguous(layout: &Layout) -> Result<(usize, usize)> {
    layout.contiguous_offsets().ok_or_else(|| {
        candle_core::Error::Msg("a tensor is not contiguous: make it contiguous first".to_owned())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};

    /// γ = 0.1, μ = 0.9 on ½(x − 1)²: worked out by hand from the definition of `torch.optim.SGD`.
    #[test]
    fn three_steps_by_hand() {
        let x = Var::from_vec(vec![0.0f32, 1.0], 2, &Device::Cpu).unwrap();
        let mut sgd = NesterovSgd::new(vec![x.clone()], 0.9).unwrap();
        // g = −1, v = −1, x = 0.1·1.9; g = −0.81, v = −1.71, x += 0.1·(0.81 + 1.539);
        // g = −0.5751, v = −2.1141, x += 0.1·(0.5751 + 1.90269).
        for expected in [0.19, 0.4249, 0.672_679] {
            let loss = (x.as_tensor() - 1.0)
                .unwrap()
                .sqr()
                .unwrap()
                .affine(0.5, 0.0)
                .unwrap()
                .sum_all()
                .unwrap();
            sgd.step(&loss.backward().unwrap(), 0.1).unwrap();
            let values = x.to_vec1::<f32>().unwrap();
            assert!(
                (values[0] - expected).abs() < 1e-6,
                "{} against {expected}",
                values[0]
            );
            assert_eq!(values[1], 1.0);
        }
    }

    #[test]
    fn a_transposed_gradient_is_refused() {
        let x = Var::from_vec(vec![0.0f32; 6], (2, 3), &Device::Cpu).unwrap();
        let mut store = x.sum_all().unwrap().backward().unwrap();
        store.insert(
            &x,
            Tensor::zeros((3, 2), candle_core::DType::F32, &Device::Cpu)
                .unwrap()
                .t()
                .unwrap(),
        );
        assert!(
            NesterovSgd::new(vec![x], 0.9)
                .unwrap()
                .step(&store, 0.1)
                .is_err()
        );
    }
}
