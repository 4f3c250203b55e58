//! Values that training code passes as slices of cudarc, without copies.

use crate::error::GpuError;
use crate::gpu::Bound;
use crate::libraries::Library;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use slowmo_actors::ports::device::{OnGpu, TensorError, Tensors};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

/// Float32 tensors on one GPU, in registration order. Operations on them are ordered after the work
/// of their own streams, and before the later work of the first tensor's stream; other streams that
/// read them afterwards wait for that one.
#[derive(Debug)]
pub struct Slices<'a> {
    slices: Vec<(String, &'a mut CudaSlice<f32>)>,
}

impl<'a> Slices<'a> {
    /// Borrows these slices; their names are `tensor 0`, `tensor 1`, …
    #[must_use]
    pub fn new(slices: impl IntoIterator<Item = &'a mut CudaSlice<f32>>) -> Self {
        Self::named(slices.into_iter().enumerate().map(|(index, slice)| {
            let mut name = String::new();
            // Writing to a string never fails.
            _ = write!(name, "tensor {index}");
            (name, slice)
        }))
    }

    /// Borrows these slices, with names for error messages.
    #[must_use]
    pub fn named(slices: impl IntoIterator<Item = (String, &'a mut CudaSlice<f32>)>) -> Self {
        Self {
            slices: slices.into_iter().collect(),
        }
    }

    fn first_stream(&self) -> Option<&Arc<CudaStream>> {
        self.slices.first().map(|(_, slice)| slice.stream())
    }
}

fn failed(name: &str) -> impl Fn(DriverError) -> TensorError {
    let name = name.to_owned();
    move |error| TensorError::Device {
        name: name.clone(),
        message: error.to_string(),
    }
}

impl Tensors for Slices<'_> {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        for (name, slice) in &self.slices {
            let values = slice.stream().clone_dtoh(&**slice).map_err(failed(name))?;
            slice.stream().synchronize().map_err(failed(name))?;
            visit(name, &values);
        }
        Ok(())
    }

    fn elements(&self) -> Result<usize, TensorError> {
        Ok(self.slices.iter().map(|(_, slice)| slice.len()).sum())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        for (name, slice) in &mut self.slices {
            let stream = Arc::clone(slice.stream());
            let mut values = stream.clone_dtoh(&**slice).map_err(failed(name))?;
            stream.synchronize().map_err(failed(name))?;
            visit(name, &mut values);
            stream
                .memcpy_htod(&values, &mut **slice)
                .map_err(failed(name))?;
            // The copy reads `values` until then.
            stream.synchronize().map_err(failed(name))?;
        }
        Ok(())
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        Ok(self
            .slices
            .iter()
            .map(|(name, slice)| (name.clone(), vec![slice.len()]))
            .collect())
    }

    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        self.first_stream().map(|_| self as &dyn OnGpu)
    }
}

// SAFETY: the slices are borrowed as long as this is, so they stay allocated, and nobody else reads
// or writes them; lengths, GPU and stream are the slices' own, and `each` refuses slices of two
// GPUs.
unsafe impl OnGpu for Slices<'_> {
    fn ordinal(&self) -> usize {
        self.first_stream()
            .map_or(0, |stream| stream.context().ordinal())
    }

    fn stream(&self) -> u64 {
        self.first_stream()
            .map_or(0, |stream| stream.cu_stream() as u64)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, u64, usize)) -> Result<(), TensorError> {
        let Some(stream) = self.first_stream() else {
            return Ok(());
        };
        let mut joined: Vec<&Arc<CudaStream>> = vec![stream];
        for (name, slice) in &self.slices {
            if !joined.contains(&slice.stream()) {
                // Other work may still read the slice on its stream.
                stream.join(slice.stream()).map_err(failed(name))?;
                joined.push(slice.stream());
            }
            if slice.ordinal() != self.ordinal() {
                let message = format!(
                    "it is on GPU {}, the first tensor on GPU {}: lend each worker's tensors alone",
                    slice.ordinal(),
                    self.ordinal()
                );
                return Err(TensorError::Device {
                    name: name.clone(),
                    message,
                });
            }
            // The stream waits for the last writer of the slice.
            let (address, _read) = slice.device_ptr(stream);
            visit(name, address, slice.len());
        }
        Ok(())
    }
}

/// Float32 values of another library on a GPU, by address, for callers that need them in main
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Their address on the GPU.
    pub address: u64,
    /// How many they are.
    pub elements: usize,
    /// Index of the GPU in this process, from 0.
    pub ordinal: usize,
    /// The stream on which their owner works, as [`OnGpu::stream`] tells it.
    pub stream: u64,
}

impl Placed {
    /// Copies the values to main memory, as they are after the stream's earlier work.
    ///
    /// # Errors
    /// The driver is missing, or refuses the copy.
    ///
    /// # Safety
    /// What [`OnGpu`] asks of tensors holds for these values.
    pub unsafe fn read(&self) -> Result<Vec<f32>, GpuError> {
        let mut values = vec![0.0; self.elements];
        self.ready(|| {
            // SAFETY: the caller says that as many values are at this address; the GPU's context is
            // bound, and the copy is over on return.
            unsafe { result::memcpy_dtoh_sync(&mut values, self.address) }
        })?;
        Ok(values)
    }

    /// Copies as many values from main memory to their place.
    ///
    /// # Errors
    /// As for [`Placed::read`], and for another number of values; the values on the GPU are
    /// unchanged, or changed in part.
    ///
    /// # Safety
    /// As for [`Placed::read`].
    pub unsafe fn write(&self, values: &[f32]) -> Result<(), GpuError> {
        if values.len() != self.elements {
            return Err(GpuError::Driver {
                doing: "copying a tensor",
                message: format!("{} values for a place of {}", values.len(), self.elements),
            });
        }
        self.ready(|| {
            // SAFETY: as in `read`.
            unsafe { result::memcpy_htod_sync(self.address, values) }
        })
    }

    /// Copies with the GPU's context bound, after the stream's earlier work.
    fn ready(&self, copy: impl FnOnce() -> Result<(), DriverError>) -> Result<(), GpuError> {
        if self.elements == 0 {
            return Ok(());
        }
        Library::Driver.require()?;
        let failed = GpuError::driver("copying a tensor");
        let context = CudaContext::new(self.ordinal).map_err(&failed)?;
        let _bound = Bound::new(&context)?;
        // SAFETY: the caller of `read` or `write` says that this is a stream of this GPU's primary
        // context, which is not destroyed.
        unsafe { result::stream::synchronize(self.stream as sys::CUstream) }.map_err(&failed)?;
        copy().map_err(&failed)
    }
}

/// The location of a slice of another library's tensors: its address on this GPU, the GPU's number,
/// and its stream as [`OnGpu`] tells it. The stream waits for the last writer of the slice.
#[must_use]
pub fn place(slice: &CudaSlice<f32>) -> (u64, usize, u64) {
    let stream = slice.stream();
    let (address, _read) = slice.device_ptr(stream);
    (address, slice.ordinal(), stream.cu_stream() as u64)
}

/// Passes a part of a slice as values in main memory, and copies the changes back.
///
/// # Errors
/// The driver's error; the slice is then unchanged, or changed in part.
pub fn change(
    slice: &mut CudaSlice<f32>,
    range: Range<usize>,
    visit: &mut dyn FnMut(&mut [f32]),
) -> Result<(), GpuError> {
    let failed = GpuError::driver("copying a tensor");
    let stream = Arc::clone(slice.stream());
    let outside = || GpuError::Driver {
        doing: "copying a tensor",
        message: "its values lie outside its storage".to_owned(),
    };
    let mut part = slice.try_slice_mut(range).ok_or_else(outside)?;
    let mut values = stream.clone_dtoh(&part).map_err(&failed)?;
    stream.synchronize().map_err(&failed)?;
    visit(&mut values);
    stream.memcpy_htod(&values, &mut part).map_err(&failed)?;
    // The copy reads `values` until then.
    stream.synchronize().map_err(&failed)
}
