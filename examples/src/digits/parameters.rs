//! Named tensors of float32 values in main memory: parameters, gradients, velocities.

use slowmo::{TensorError, Tensors};

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name, as checkpoints and errors show it.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values, row by row.
    pub values: Vec<f32>,
}

/// The tensors of a model, in an order that is the same on every node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// The tensors.
    pub list: Vec<Parameter>,
}

impl Parameters {
    /// Zeros of the same shapes; the names get a prefix.
    #[must_use]
    pub fn zeros_like(&self, prefix: &str) -> Self {
        let zeros = |parameter: &Parameter| Parameter {
            name: format!("{prefix}{}", parameter.name),
            shape: parameter.shape.clone(),
            values: vec![0.0; parameter.values.len()],
        };
        Self {
            list: self.list.iter().map(zeros).collect(),
        }
    }

    /// All values, one tensor after the other.
    #[must_use]
    pub fn flat(&self) -> Vec<f32> {
        self.list
            .iter()
            .flat_map(|parameter| parameter.values.iter().copied())
            .collect()
    }
}

impl Tensors for Parameters {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        for parameter in &self.list {
            visit(&parameter.name, &parameter.values);
        }
        Ok(())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        for parameter in &mut self.list {
            visit(&parameter.name, &mut parameter.values);
        }
        Ok(())
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        Ok(self
            .list
            .iter()
            .map(|parameter| (parameter.name.clone(), parameter.shape.clone()))
            .collect())
    }
}
