//! The definition of each kernel's computation in one form for every implementation: the GPU, the
//! CPU ([`Host`], the arithmetic of `slowmo_protocol`), or an emulation. A kernel's arrays are its
//! pointers, in order.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernels::Kernel;
use crate::memory::Scratch;
use slowmo_protocol::mean;
use slowmo_protocol::sound::{SENT_MAX, first_beyond};

/// The memory behind one kernel pointer.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// A null pointer.
    Null,
    /// One float32 for each of the launch's `n` values.
    Floats(Vec<f32>),
    /// An index.
    Word(u64),
}

impl Array {
    /// The floats; empty if the array holds something else.
    #[must_use]
    pub fn floats(&self) -> &[f32] {
        if let Self::Floats(values) = self {
            values
        } else {
            &[]
        }
    }

    fn memory(&self) -> &[u8] {
        match self {
            Self::Null => &[],
            Self::Floats(values) => bytemuck::cast_slice(values),
            Self::Word(word) => bytemuck::bytes_of(word),
        }
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Null => &mut [],
            Self::Floats(values) => bytemuck::cast_slice_mut(values),
            Self::Word(word) => bytemuck::bytes_of_mut(word),
        }
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        if let Self::Floats(values) = self {
            values
        } else {
            &mut []
        }
    }
}

/// An implementation that runs kernels.
pub trait Arithmetic {
    /// Runs a kernel on `n` values and changes the arrays that it writes.
    ///
    /// # Errors
    /// The kernel could not be run.
    fn run(
        &self,
        kernel: Kernel,
        arrays: &mut [Array],
        n: usize,
        floats: &[f32],
    ) -> Result<(), GpuError>;
}

/// The CPU implementation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Arithmetic for Host {
    fn run(
        &self,
        kernel: Kernel,
        arrays: &mut [Array],
        _: usize,
        floats: &[f32],
    ) -> Result<(), GpuError> {
        match (kernel, arrays, floats) {
            (Kernel::Mix, [model, correction, before, Array::Word(first)], [stays, weight]) => {
                let values = model.floats_mut();
                if let Array::Floats(before) = before {
                    before.copy_from_slice(values);
                }
                let zeros = vec![0.0; values.len()];
                let correction = if *correction == Array::Null {
                    &zeros
                } else {
                    correction.floats()
                };
                if !mean::correct(values, correction, *stays, f64::from(*weight)) {
                    *first = first_not_finite(values).min(*first);
                }
            }
            (Kernel::Divide, [values], [weight]) => {
                mean::divide(values.floats_mut(), f64::from(*weight))
            }
            (Kernel::NotFinite, [values, Array::Word(first)], []) => {
                *first = first_not_finite(values.floats()).min(*first)
            }
            (kernel, arrays, floats) => debug_assert!(
                false,
                "{kernel:?} of {} arrays and {} floats",
                arrays.len(),
                floats.len()
            ),
        }
        Ok(())
    }
}

/// Index of the first value that is not finite, or too large to be sent; else the largest number.
pub(crate) fn first_not_finite(values: &[f32]) -> u64 {
    first_beyond(values, SENT_MAX).map_or(u64::MAX, |index| index as u64)
}

/// An array on the GPU.
enum Resident {
    Null,
    Floats(Scratch<f32>),
    Word(Scratch<u64>),
}

impl Resident {
    fn of(gpu: &Gpu, array: &Array) -> Result<Self, GpuError> {
        const WHAT: &str = "a kernel's array";
        let resident = match array {
            Array::Null => Self::Null,
            Array::Floats(values) => Self::Floats(Scratch::zeros(gpu, values.len(), WHAT)?),
            Array::Word(_) => Self::Word(Scratch::zeros(gpu, 1, WHAT)?),
        };
        let address = resident.address();
        // SAFETY: the scratch has just been made, as long as the array; the caller waits for the
        // stream before the array can change.
        unsafe { gpu.copy_in(array.memory(), address) }?;
        Ok(resident)
    }

    fn address(&self) -> u64 {
        match self {
            Self::Null => 0,
            Self::Floats(values) => values.address(),
            Self::Word(word) => word.address(),
        }
    }
}

impl Arithmetic for Gpu {
    fn run(
        &self,
        kernel: Kernel,
        arrays: &mut [Array],
        n: usize,
        floats: &[f32],
    ) -> Result<(), GpuError> {
        let resident: Result<Vec<Resident>, GpuError> = arrays
            .iter()
            .map(|array| Resident::of(self, array))
            .collect();
        // All copies that were started must end before any memory is given back.
        self.synchronize()?;
        let resident = resident?;
        let addresses: Vec<u64> = resident.iter().map(Resident::address).collect();
        // SAFETY: each array is in memory of its own on this GPU, as long as on the host.
        unsafe { self.launch(kernel, &addresses, n, floats) }?;
        for (array, address) in arrays.iter_mut().zip(addresses) {
            // SAFETY: the same memory; `synchronize` below waits for the stream before anybody
            // reads it.
            unsafe { self.copy_out(address, array.memory_mut()) }?;
        }
        self.synchronize()
    }
}
