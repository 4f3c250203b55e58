//! The gradients of a module's parameters.

use crate::path::Path;
use crate::{tensor, values};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use slowmo::{TensorError, Tensors};

/// The gradients of a module, in the same order and of the same lengths on every worker: a
/// parameter that took no part in the loss counts as zeros, and gets a gradient when it is written.
/// Copies nothing until it is read.
#[derive(Debug)]
pub struct ModuleGradients<'a, M> {
    module: &'a M,
    gradients: &'a mut GradientsParams,
}

impl<'a, M: Module> ModuleGradients<'a, M> {
    /// Borrows the gradients of this module.
    #[must_use]
    pub fn new(module: &'a M, gradients: &'a mut GradientsParams) -> Self {
        Self { module, gradients }
    }
}

impl<M: Module + Sync> Tensors for ModuleGradients<'_, M> {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        let mut read = Read {
            path: Path::default(),
            gradients: self.gradients,
            visit,
            result: Ok(()),
        };
        self.module.visit(&mut read);
        read.result
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        let mut write = Write {
            path: Path::default(),
            gradients: self.gradients,
            visit,
            result: Ok(()),
        };
        self.module.visit(&mut write);
        write.result
    }

    fn elements(&self) -> Result<usize, TensorError> {
        let mut count = Count(0);
        self.module.visit(&mut count);
        Ok(count.0)
    }
}

/// A parameter's gradient, or zeros.
fn gradient<const D: usize>(
    name: &str,
    param: &Param<Tensor<D>>,
    gradients: &GradientsParams,
) -> Result<Vec<f32>, TensorError> {
    match gradients.get::<D>(param.id) {
        Some(gradient) => values(name, gradient),
        None => Ok(vec![0.0; param.shape().num_elements()]),
    }
}

struct Read<'a> {
    path: Path,
    gradients: &'a GradientsParams,
    visit: &'a mut dyn FnMut(&str, &[f32]),
    result: Result<(), TensorError>,
}

impl ModuleVisitor for Read<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.result.is_err() || !param.is_require_grad() {
            return;
        }
        let name = self.path.name();
        self.result =
            gradient(&name, param, self.gradients).map(|values| (self.visit)(&name, &values));
    }
}

struct Write<'a> {
    path: Path,
    gradients: &'a mut GradientsParams,
    visit: &'a mut dyn FnMut(&str, &mut [f32]),
    result: Result<(), TensorError>,
}

impl ModuleVisitor for Write<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.result.is_err() || !param.is_require_grad() {
            return;
        }
        let name = self.path.name();
        self.result = gradient(&name, param, self.gradients).map(|mut values| {
            (self.visit)(&name, &mut values);
            // Gradients are tensors without gradients of their own.
            let device = param.device().without_autodiff();
            let averaged = tensor(values, param.dims(), &device);
            self.gradients.register::<D>(param.id, averaged);
        });
    }
}

struct Count(usize);

impl ModuleVisitor for Count {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.0 += param.shape().num_elements();
        }
    }
}
