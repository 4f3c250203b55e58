//! The definition of each kernel's computation in one form for every implementation: the GPU, the
//! CPU ([`Host`], the arithmetic of `slowmo_protocol`), or an emulation. A kernel's arrays are its
//! pointers, in order.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernels::{Kernel, Wire};
use crate::memory::Scratch;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::encoding::Contribution;
use slowmo_protocol::mean;
use slowmo_protocol::outer::{BmufNbm, Nesterov, OuterStep, Piece, SlowMo};

/// The memory behind one kernel pointer.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// A null pointer.
    Null,
    /// One float32 for each of the launch's `n` values.
    Floats(Vec<f32>),
    /// Encoded values.
    Bytes(Vec<u8>),
    /// An index or a sum.
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

    /// The bytes; empty if the array holds something else.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if let Self::Bytes(bytes) = self {
            bytes
        } else {
            &[]
        }
    }

    fn memory(&self) -> &[u8] {
        match self {
            Self::Null => &[],
            Self::Floats(values) => bytemuck::cast_slice(values),
            Self::Bytes(bytes) => bytes,
            Self::Word(word) => bytemuck::bytes_of(word),
        }
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Null => &mut [],
            Self::Floats(values) => bytemuck::cast_slice_mut(values),
            Self::Bytes(bytes) => bytes,
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

    fn bytes_mut(&mut self) -> &mut [u8] {
        if let Self::Bytes(bytes) = self {
            bytes
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

impl Wire {
    /// The protocol's name of this wire type.
    #[must_use]
    pub fn kind(self) -> WireType {
        match self {
            Self::BFloat16 => WireType::BFloat16,
            Self::Int8 => WireType::Int8,
        }
    }
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
                before.floats_mut().copy_from_slice_if_any(values);
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
            (Kernel::Accumulate, [target, values], [scale]) => {
                mean::mix(target.floats_mut(), values.floats(), *scale)
            }
            (Kernel::SlowMo, arrays, [rate, beta, gamma]) => slow_step(
                &SlowMo {
                    alpha: rate / gamma,
                    beta: *beta,
                },
                arrays,
                *gamma,
            ),
            (Kernel::Nesterov, arrays, [eta, mu]) => {
                slow_step(&Nesterov { eta: *eta, mu: *mu }, arrays, 0.0)
            }
            (Kernel::BmufNbm, arrays, [eta, mu]) => {
                slow_step(&BmufNbm { eta: *eta, mu: *mu }, arrays, 0.0)
            }
            (Kernel::NotFinite, [values, Array::Word(first)], []) => {
                *first = first_not_finite(values.floats()).min(*first)
            }
            (Kernel::Digest, [values, Array::Word(sum)], []) => {
                *sum = sum.wrapping_add(digest(values.floats()))
            }
            (Kernel::EncodeGossip(wire), [numerators, residual, bytes], [factor]) => {
                wire.kind().encode_gossip(
                    numerators.floats(),
                    residual.floats_mut(),
                    *factor,
                    bytes.bytes_mut(),
                );
            }
            (
                Kernel::EncodeContribution(wire),
                [values, reference, residual, bytes, next],
                [weight],
            ) => {
                let residual = (*residual != Array::Null).then(|| residual.floats());
                let values = values.floats();
                let reference = reference.floats();
                let weight = f64::from(*weight);
                let contribution = Contribution {
                    values,
                    weight,
                    reference,
                    residual,
                };
                wire.kind()
                    .encode_contribution(contribution, bytes.bytes_mut(), next.floats_mut());
            }
            (Kernel::EncodePublication(wire), [values, reference, bytes, dropped], []) => {
                wire.kind().encode_publication(
                    values.floats_mut(),
                    reference.floats(),
                    bytes.bytes_mut(),
                    dropped.floats_mut(),
                );
            }
            (Kernel::Encode(wire), [values, bytes], []) => wire
                .kind()
                .encode_in_place(values.floats_mut(), bytes.bytes_mut()),
            (Kernel::Decode(wire), [bytes, target], []) => {
                wire.kind().decode(bytes.bytes(), target.floats_mut())
            }
            (Kernel::AccumulateEncoded(wire), [bytes, target], [scale]) => {
                wire.kind().mix(bytes.bytes(), *scale, target.floats_mut())
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

fn slow_step(rule: &impl OuterStep, arrays: &mut [Array], gamma: f32) {
    if let [values, anchor, momentum, next] = arrays {
        let anchor = anchor.floats();
        let momentum = momentum.floats();
        rule.step(
            Piece {
                values: values.floats_mut(),
                anchor,
                momentum,
                next_momentum: next.floats_mut(),
            },
            gamma,
        );
    }
}

trait CopyIfAny {
    fn copy_from_slice_if_any(&mut self, values: &[f32]);
}

impl CopyIfAny for [f32] {
    fn copy_from_slice_if_any(&mut self, values: &[f32]) {
        if !self.is_empty() {
            self.copy_from_slice(values);
        }
    }
}

fn first_not_finite(values: &[f32]) -> u64 {
    values
        .iter()
        .position(|value| !value.is_finite())
        .map_or(u64::MAX, |index| index as u64)
}

/// The digest that a GPU computes of its memory: a sum over the values, each mixed with its index,
/// so that the parts may be added in any order.
#[must_use]
pub fn digest(values: &[f32]) -> u64 {
    values
        .iter()
        .enumerate()
        .fold(0, |sum: u64, (index, value)| {
            sum.wrapping_add(mixed(index as u64, value.to_bits()))
        })
}

/// The finalizer of splitmix64.
fn mixed(index: u64, bits: u32) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let z = (index << 32 | u64::from(bits))
        .wrapping_add((index >> 32).wrapping_mul(GOLDEN))
        .wrapping_add(GOLDEN);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// An array on the GPU.
enum Resident {
    Null,
    Floats(Scratch<f32>),
    Bytes(Scratch<u8>),
    Word(Scratch<u64>),
}

impl Resident {
    fn of(gpu: &Gpu, array: &Array) -> Result<Self, GpuError> {
        const WHAT: &str = "a kernel's array";
        let resident = match array {
            Array::Null => Self::Null,
            Array::Floats(values) => Self::Floats(Scratch::zeros(gpu, values.len(), WHAT)?),
            Array::Bytes(bytes) => Self::Bytes(Scratch::zeros(gpu, bytes.len(), WHAT)?),
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
            Self::Bytes(bytes) => bytes.address(),
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
