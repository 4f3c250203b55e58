//! Parameters of 16 bits, and what rounding leaves of the optimizer's steps.

use super::parameters::Parameters;
use slowmo::{Half, TensorError, Tensors, Values, ValuesMut, read_widened, write_rounded};

/// Type in which the parameters are kept and lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterType {
    /// Float32.
    #[default]
    F32,
    /// Bfloat16.
    Bf16,
    /// Float16.
    F16,
}

impl ParameterType {
    /// The type of 16 bits, if it is one.
    #[must_use]
    pub fn half(self) -> Option<Half> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(Half::BFloat16),
            Self::F16 => Some(Half::Float16),
        }
    }
}

/// Parameters of 16 bits. The model computes with their float32 values, as a framework does that
/// multiplies 16 bits and adds up in float32.
///
/// An optimizer's step is often smaller than the distance between two values of the type, and would
/// be rounded away. So what rounding leaves is kept, in the same type, and added to the next step
/// (Kahan's summation).
#[derive(Clone, Debug)]
pub struct HalfParameters {
    half: Half,
    list: Vec<HalfParameter>,
}

#[derive(Clone, Debug)]
struct HalfParameter {
    name: String,
    shape: Vec<usize>,
    bits: Vec<u16>,
    left: Vec<u16>,
}

impl HalfParameters {
    /// The parameters, rounded.
    #[must_use]
    pub fn of(parameters: &Parameters, half: Half) -> Self {
        let list = parameters.list.iter().map(|parameter| HalfParameter {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            bits: parameter.values.iter().map(|x| half.round(*x)).collect(),
            left: vec![0; parameter.values.len()],
        });
        let list = list.collect();
        Self { half, list }
    }

    /// Takes over what an optimizer made of the float32 values.
    pub fn take(&mut self, parameters: &Parameters) {
        let half = self.half;
        for (ours, theirs) in self.list.iter_mut().zip(&parameters.list) {
            let places = ours.bits.iter_mut().zip(&mut ours.left);
            for ((bits, left), value) in places.zip(&theirs.values) {
                let exact = value + half.widen(*left);
                *bits = half.round(exact);
                *left = half.round(exact - half.widen(*bits));
            }
        }
    }

    /// Writes the values into float32 parameters of the same shapes.
    pub fn widen_into(&self, parameters: &mut Parameters) {
        for (ours, theirs) in self.list.iter().zip(&mut parameters.list) {
            self.half.widen_all(&ours.bits, &mut theirs.values);
        }
    }
}

impl Tensors for HalfParameters {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        read_widened(self, visit)
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        write_rounded(self, visit)
    }

    fn lend(&self, visit: &mut dyn FnMut(&str, Values<'_>)) -> Result<(), TensorError> {
        for parameter in &self.list {
            visit(&parameter.name, Values::Half(self.half, &parameter.bits));
        }
        Ok(())
    }

    fn lend_mut(&mut self, visit: &mut dyn FnMut(&str, ValuesMut<'_>)) -> Result<(), TensorError> {
        for parameter in &mut self.list {
            let bits = &mut parameter.bits;
            visit(&parameter.name, ValuesMut::Half(self.half, bits));
        }
        Ok(())
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        let shape = |parameter: &HalfParameter| (parameter.name.clone(), parameter.shape.clone());
        Ok(self.list.iter().map(shape).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::parameters::Parameter;
    use super::*;

    #[test]
    fn steps_that_are_too_small_for_the_type_add_up() {
        let one = Parameter {
            name: "x".to_owned(),
            shape: vec![1],
            values: vec![1.0],
        };
        let mut parameters = Parameters { list: vec![one] };
        let mut halves = HalfParameters::of(&parameters, Half::BFloat16);
        // A bfloat16 near 1 moves by 2⁻⁸ at least.
        for _ in 0..256 {
            parameters.list[0].values[0] -= 1.0 / 4096.0;
            halves.take(&parameters);
            halves.widen_into(&mut parameters);
        }
        assert_eq!(parameters.flat(), [1.0 - 1.0 / 16.0]);
        assert_eq!(slowmo::digest(&halves).unwrap().len(), 32);
    }
}
