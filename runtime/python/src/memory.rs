//! Tensors that Python owns, lent to the runtime by address. Only this file reads and writes memory
//! at an address; the package says device, layout and type of each, which are checked here.
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
/// The beginning of a GPU's name, before its number.
#[cfg(feature = "cuda")]
const GPU: &str = "cuda:";

/// One tensor, as the package describes it: name, address, bytes from there to the end of its memory,
/// shape, type, device, the stream on which the device works (0 in main memory), whether it is one
/// block in row-major order, and the object that owns the memory.
type Described = (
    String,
    usize,
    usize,
    Vec<usize>,
    String,
    String,
    u64,
    bool,
    Py<PyAny>,
);

/// Where a tensor's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Main,
    #[cfg(feature = "cuda")]
    Gpu {
        ordinal: usize,
        stream: u64,
    },
}

impl Place {
    /// The place that a device's name and stream tell.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "no GPU has a stream")
    )]
    fn new(device: &str, stream: u64) -> Result<Self, String> {
        if device == MAIN_MEMORY {
            return Ok(Self::Main);
        }
        #[cfg(feature = "cuda")]
        if let Some(ordinal) = device.strip_prefix(GPU).and_then(|text| text.parse().ok()) {
            return Ok(Self::Gpu { ordinal, stream });
        }
        let where_else = if cfg!(feature = "cuda") {
            "and on GPUs of CUDA"
        } else {
            "(a build with the feature cuda: also on GPUs)"
        };
        Err(format!(
            "it is on {device}, and slowmo's Python package lends tensors in main memory \
             {where_else}: move it there with .cpu()"
        ))
    }
}

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
    place: Place,
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
        let (name, address, bytes, shape, kind, device, stream, contiguous, owner) = described;
        if kind != FLOAT32 {
            return Err(TensorError::NotFloat32 { name, found: kind });
        }
        let place = match Place::new(&device, stream) {
            Ok(place) => place,
            Err(message) => return Err(TensorError::Device { name, message }),
        };
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
            place,
            shape,
            elements,
            _owner: owner,
        })
    }

    /// The values of a tensor in main memory.
    fn values(&self) -> &[f32] {
        if self.elements == 0 {
            return &[];
        }
        // SAFETY: the callers have looked at `place`; the package describes contiguous tensors of float32 values in main memory, with
        // the address, the shape and the size of storage that they have at this call, and `_owner`
        // keeps the storage allocated while `self` lives. The address is not null and aligned, the
        // length fits into the storage and into an isize (`LentTensor::new`). All bit patterns are float32 values. Nobody writes
        // meanwhile: the caller's thread is in this call, and the package's documentation forbids
        // others to change lent tensors during one, as PyTorch does for its own operations.
        unsafe { std::slice::from_raw_parts(self.address as *const f32, self.elements) }
    }

    /// The values of a tensor in main memory.
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
        for tensor in &self.tensors {
            match tensor.place {
                Place::Main => visit(&tensor.name, tensor.values()),
                #[cfg(feature = "cuda")]
                Place::Gpu { ordinal, stream } => {
                    visit(&tensor.name, &tensor.copied(ordinal, stream)?);
                }
            }
        }
        Ok(())
    }

    fn elements(&self) -> Result<usize, TensorError> {
        Ok(self.tensors.iter().map(|tensor| tensor.elements).sum())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        for tensor in &mut self.tensors {
            let name = std::mem::take(&mut tensor.name);
            let visited = tensor.change(&mut |values| visit(&name, values));
            tensor.name = name;
            visited?;
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self) -> Option<&dyn slowmo::internal::OnGpu> {
        let is_on_gpu = |tensor: &LentTensor| tensor.place != Place::Main;
        // Optimizers keep counters in main memory: a mixture goes through copies.
        let all = !self.tensors.is_empty() && self.tensors.iter().all(is_on_gpu);
        all.then_some(self as &dyn slowmo::internal::OnGpu)
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        let shape = |tensor: &LentTensor| (tensor.name.clone(), tensor.shape.clone());
        Ok(self.tensors.iter().map(shape).collect())
    }
}

impl LentTensor {
    /// Passes the values, or a copy of those on a GPU, and keeps what `visit` makes of them.
    fn change(&mut self, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), TensorError> {
        match self.place {
            Place::Main => visit(self.values_mut()),
            #[cfg(feature = "cuda")]
            Place::Gpu { ordinal, stream } => {
                let mut values = self.copied(ordinal, stream)?;
                visit(&mut values);
                // SAFETY: as in `copied`.
                let written = unsafe { self.placed(ordinal, stream).write(&values) };
                written.map_err(|error| self.refused(error))?;
            }
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl LentTensor {
    fn placed(&self, ordinal: usize, stream: u64) -> slowmo_cuda::Placed {
        slowmo_cuda::Placed {
            address: self.address as u64,
            elements: self.elements,
            ordinal,
            stream,
        }
    }

    /// A copy of the values of a tensor on a GPU.
    fn copied(&self, ordinal: usize, stream: u64) -> Result<Vec<f32>, TensorError> {
        // SAFETY: the package describes contiguous float32 tensors with the address, the shape, the
        // GPU and PyTorch's current stream that they have at this call; `_owner` keeps the storage
        // allocated, and `LentTensor::new` has checked that the values lie in it. PyTorch destroys
        // no stream.
        let copied = unsafe { self.placed(ordinal, stream).read() };
        copied.map_err(|error| self.refused(error))
    }

    fn refused(&self, error: impl ToString) -> TensorError {
        TensorError::Device {
            name: self.name.clone(),
            message: error.to_string(),
        }
    }
}

// SAFETY: as in `LentTensor::copied`; `each` refuses tensors of two GPUs or streams, and those in
// main memory beside others on a GPU. Nobody else changes them meanwhile, as in `values`.
#[cfg(feature = "cuda")]
unsafe impl slowmo::internal::OnGpu for Lent {
    fn ordinal(&self) -> usize {
        self.gpu().map_or(0, |(ordinal, _)| ordinal)
    }

    fn stream(&self) -> u64 {
        self.gpu().map_or(0, |(_, stream)| stream)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, u64, usize)) -> Result<(), TensorError> {
        let first = self.tensors.first().map(|tensor| tensor.place);
        for tensor in &self.tensors {
            if Some(tensor.place) != first {
                return Err(tensor.refused(
                    "it is on another device or stream than the first one: lend tensors of one",
                ));
            }
            visit(&tensor.name, tensor.address as u64, tensor.elements);
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl Lent {
    /// The GPU and the stream of the first tensor.
    fn gpu(&self) -> Option<(usize, u64)> {
        match self.tensors.first()?.place {
            Place::Main => None,
            Place::Gpu { ordinal, stream } => Some((ordinal, stream)),
        }
    }
}

impl FromPyObject<'_, '_> for Lent {
    type Error = PyErr;

    fn extract(described: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Self::new(described.extract()?).map_err(crate::errors::tensor)
    }
}
