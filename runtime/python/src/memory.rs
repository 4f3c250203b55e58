//! Tensors that Python owns, lent to the runtime by address. Only this file reads and writes memory
//! at an address; the package says device, layout and
//! type of each, which are checked here.
#![expect(
    unsafe_code,
    reason = "a tensor's memory comes from Python as an address and a length"
)]

use pyo3::prelude::*;
use pyo3::types::PyAny;
use slowmo::{TensorError, Tensors};

/// The name of the only type that is lent.
const FLOAT32: &str = "float32";
/// The name of main memory among devices.
const MAIN_MEMORY: &str = "cpu";

/// One tensor, as the package describes it: name, address, bytes from there to the end of its memory,
/// shape, type, device, whether it is one block in row-major order, and the object that owns the
/// memory.
type Described = (
    String,
    usize,
    usize,
    Vec<usize>,
    String,
    String,
    bool,
    Py<PyAny>,
);

/// Float32 tensors in main memory, in the order in which they were described. They hold the owners
/// of the memory, so that it stays allocated for the time of a call, whatever Python's other
/// threads drop meanwhile.
pub struct Lent {
    tensors: Vec<LentTensor>,
}

struct LentTensor {
    name: String,
    /// Not null, aligned, and of `elements` float32 values: [`Lent::new`] has checked what can be
    /// checked.
    address: usize,
    shape: Vec<usize>,
    elements: usize,
    /// The storage to which the address belongs.
    _owner: Py<PyAny>,
}

impl Lent {
    /// Takes a list of descriptions.
    ///
    /// # Errors
    /// A tensor is not float32, or its address cannot be one.
    pub fn new(described: Vec<Described>) -> Result<Self, TensorError> {
        let tensors = described
            .into_iter()
            .map(LentTensor::new)
            .collect::<Result<_, _>>()?;
        Ok(Self { tensors })
    }
}

impl LentTensor {
    fn new(described: Described) -> Result<Self, TensorError> {
        let (name, address, bytes, shape, kind, device, contiguous, owner) = described;
        if kind != FLOAT32 {
            return Err(TensorError::NotFloat32 { name, found: kind });
        }
        if device != MAIN_MEMORY {
            let message = format!(
                "it is on {device}, and slowmo's Python package lends tensors in main memory: move \
                 it there with .cpu()"
            );
            return Err(TensorError::Device { name, message });
        }
        if !contiguous {
            return Err(TensorError::NotContiguous { name });
        }
        let elements = shape
            .iter()
            .try_fold(1usize, |elements, dimension| {
                elements.checked_mul(*dimension)
            })
            .filter(|elements| *elements <= isize::MAX as usize / size_of::<f32>());
        let Some(elements) = elements else {
            return Err(TensorError::Framework {
                name,
                message: format!("its shape {shape:?} is too large"),
            });
        };
        let is_one = address != 0 && address.is_multiple_of(align_of::<f32>());
        if elements > 0 && !is_one {
            return Err(TensorError::Framework {
                name,
                message:
                    "it has no memory any more, or is not aligned: lend tensors that are allocated"
                        .to_owned(),
            });
        }
        if elements * size_of::<f32>() > bytes {
            return Err(TensorError::Framework {
                name,
                message: format!(
                    "its shape {shape:?} needs more memory than the {bytes} bytes that are left of \
                     it: its storage was resized"
                ),
            });
        }
        Ok(Self {
            name,
            address,
            shape,
            elements,
            _owner: owner,
        })
    }

    fn values(&self) -> &[f32] {
        if self.elements == 0 {
            return &[];
        }
        // SAFETY: the package describes contiguous tensors of float32 values in main memory, with
        // the address, the shape and the size of storage that they have at this call, and `_owner`
        // keeps the storage allocated while `self` lives. The address is not null and aligned, the
        // length fits into the storage and into an isize (`LentTensor::new`). All bit patterns are float32 values. Nobody writes
        // meanwhile: the caller's thread is in this call, and the package's documentation forbids
        // others to change lent tensors during one, as PyTorch does for its own operations.
        unsafe { std::slice::from_raw_parts(self.address as *const f32, self.elements) }
    }

    fn values_mut(&mut self) -> &mut [f32] {
        if self.elements == 0 {
            return &mut [];
        }
        // SAFETY: as in `values`; the package refuses arrays that may not be written. Tensors that
        // share memory are no aliases: `Lent` makes one slice at a time, which ends before the
        // next one begins.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut f32, self.elements) }
    }
}

impl Tensors for Lent {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        self.tensors
            .iter()
            .for_each(|tensor| visit(&tensor.name, tensor.values()));
        Ok(())
    }

    fn elements(&self) -> Result<usize, TensorError> {
        Ok(self.tensors.iter().map(|tensor| tensor.elements).sum())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        for tensor in &mut self.tensors {
            let name = std::mem::take(&mut tensor.name);
            visit(&name, tensor.values_mut());
            tensor.name = name;
        }
        Ok(())
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        let shape = |tensor: &LentTensor| (tensor.name.clone(), tensor.shape.clone());
        Ok(self.tensors.iter().map(shape).collect())
    }
}

impl FromPyObject<'_, '_> for Lent {
    type Error = PyErr;

    fn extract(described: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Self::new(described.extract()?).map_err(crate::errors::tensor)
    }
}
