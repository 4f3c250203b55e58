//! Memory: page-locked buffers of the host, which a GPU copies from and to at its full rate, and
//! scratch memory on the GPU.

use crate::error::GpuError;
use crate::gpu::{Bound, Gpu};
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, DriverError, result, sys};
use parking_lot::{Mutex, RwLock};
use slowmo_actors::buffers::{Block, Memory};
use std::sync::Arc;

/// Page-locked memory for the node's buffers; buffers that cannot be page-locked come from the
/// allocator and are copied more slowly.
#[derive(Debug)]
pub struct Pinned {
    context: Arc<CudaContext>,
}

impl Pinned {
    /// Memory for buffers that this GPU, or any other of the process, copies from and to.
    #[must_use]
    pub fn new(gpu: &Gpu) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(gpu.context()),
        })
    }
}

impl Memory for Pinned {
    fn allocate(&self, elements: usize) -> Option<Box<dyn Block>> {
        let bytes = elements
            .checked_mul(size_of::<f32>())
            .filter(|bytes| *bytes > 0)?;
        // The driver may wait for a GPU that waits for another GPU's collective, whose start waits
        // for the driver.
        let _calm = COLLECTIVES.try_write()?;
        let _bound = Bound::new(&self.context).ok()?;
        LEFT.lock().drain(..).for_each(Left::free);
        // SAFETY: the context is bound to this thread.
        let allocated = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let address = match allocated {
            Ok(address) => address.cast::<f32>(),
            Err(error) => {
                tracing::warn!(
                    bytes,
                    %error,
                    "a buffer is not page-locked: copies to and from the GPU are slower"
                );
                return None;
            }
        };
        // SAFETY: the memory has just been allocated with this length; zeros are valid floats.
        unsafe { std::ptr::write_bytes(address, 0, elements) };
        Some(Box::new(Locked {
            address,
            elements,
            context: Arc::clone(&self.context),
        }))
    }
}

/// Read-locked by collectives under way; write-locked while page-locked memory is allocated or
/// freed.
pub(crate) static COLLECTIVES: RwLock<()> = RwLock::new(());

/// Page-locked memory that could not be freed while a collective was under way; the next buffer
/// allocation frees it.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// Memory to be freed.
struct Left {
    address: *mut f32,
    context: Arc<CudaContext>,
}

// SAFETY: nobody else has access to the memory.
unsafe impl Send for Left {}

impl Left {
    fn free(self) {
        let freed = Bound::new(&self.context).and_then(|_bound| {
            // SAFETY: from `malloc_host`, and freed once.
            unsafe { result::free_host(self.address.cast()) }
                .map_err(GpuError::driver("freeing page-locked memory"))
        });
        if let Err(error) = freed {
            tracing::debug!(%error, "page-locked memory is not freed: the GPU's context is gone");
        }
    }
}

/// A page-locked buffer.
#[derive(Debug)]
struct Locked {
    address: *mut f32,
    elements: usize,
    context: Arc<CudaContext>,
}

// SAFETY: it owns its memory, which any thread may read and write; every copy of a GPU is waited
// for before the borrow ends.
unsafe impl Send for Locked {}
// SAFETY: shared references only read.
unsafe impl Sync for Locked {}

impl Block for Locked {
    fn values(&self) -> &[f32] {
        // SAFETY: allocated with this length, initialized, and written through `&mut self` only.
        unsafe { std::slice::from_raw_parts(self.address, self.elements) }
    }

    fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: the same, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.elements) }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let left = Left {
            address: self.address,
            context: Arc::clone(&self.context),
        };
        match COLLECTIVES.try_write() {
            Some(_calm) => left.free(),
            None => LEFT.lock().push(left),
        }
    }
}

/// A buffer on the GPU.
#[derive(Debug)]
pub(crate) struct Scratch<T> {
    slice: CudaSlice<T>,
    address: u64,
}

impl<T: cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits> Scratch<T> {
    /// Allocates this many zeros, at least one, because the driver cannot allocate zero bytes.
    ///
    /// # Errors
    /// There is not enough memory (with sizes), or another error of the driver.
    pub(crate) fn zeros(gpu: &Gpu, elements: usize, what: &'static str) -> Result<Self, GpuError> {
        let wanted = elements.saturating_mul(size_of::<T>()) as u64;
        let slice = gpu
            .stream()
            .alloc_zeros(elements.max(1))
            .map_err(|error| out_of_memory(gpu, what, wanted, error))?;
        let address = slice.device_ptr(gpu.stream()).0;
        Ok(Self { slice, address })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.slice.len()
    }
}

fn out_of_memory(gpu: &Gpu, what: &'static str, wanted: u64, error: DriverError) -> GpuError {
    match (error, gpu.memory()) {
        (DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY), Ok((free, total))) => {
            let place = format!("GPU {} ({})", gpu.info().ordinal, gpu.info().name);
            GpuError::OutOfMemory {
                what,
                place,
                wanted,
                free,
                total,
            }
        }
        _ => GpuError::driver(what)(error),
    }
}

impl Gpu {
    /// Queues a copy of values to the host behind everything on the stream.
    ///
    /// # Safety
    /// `address` is memory of this GPU with as many values. `target` is neither read nor written
    /// nor freed before the stream was waited for.
    pub(crate) unsafe fn copy_out<T>(
        &self,
        address: u64,
        target: &mut [T],
    ) -> Result<(), GpuError> {
        if target.is_empty() {
            return Ok(());
        }
        let failed = GpuError::driver("copying from a GPU");
        let _bound = self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtoh_async(target, address, self.stream().cu_stream()) }
            .map_err(&failed)
    }

    /// Queues writing zeros behind everything on the stream.
    ///
    /// # Safety
    /// `address` is memory of this GPU with as many bytes, which nobody else touches until the
    /// stream is past this.
    pub(crate) unsafe fn zero(&self, address: u64, bytes: usize) -> Result<(), GpuError> {
        let failed = GpuError::driver("clearing memory of a GPU");
        let _bound = self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(address, 0, bytes, self.stream().cu_stream()) }
            .map_err(&failed)
    }

    /// Queues a copy of values to the GPU behind everything on the stream.
    ///
    /// # Safety
    /// `address` is memory of this GPU with as many values, which nobody else touches until the
    /// stream is past this. `values` are neither written nor freed before the stream was waited
    /// for.
    pub(crate) unsafe fn copy_in<T>(&self, values: &[T], address: u64) -> Result<(), GpuError> {
        if values.is_empty() {
            return Ok(());
        }
        let failed = GpuError::driver("copying to a GPU");
        let _bound = self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_htod_async(address, values, self.stream().cu_stream()) }
            .map_err(&failed)
    }
}
