//! The device of a worker whose copy of the model is on a GPU. Values go directly between the
//! borrowed tensors and the node's page-locked buffers; the arithmetic runs on the GPU, in place.

use crate::error::GpuError;
use crate::gpu::{Gpu, Waits};
use crate::kernels::Kernel;
use crate::memory::Scratch;
use cudarc::driver::{result, sys};
use parking_lot::{Mutex, MutexGuard};
use slowmo_actors::buffers::{Buffer, CHUNK_ELEMENTS, ChunkedBuffer, Pool, chunks};
use slowmo_actors::ports::device::{
    Device, FreezeError, MixFactors, Mixed, OnGpu, TensorError, Tensors, Written,
};
use std::ops::Range;
use std::sync::Arc;

/// A GPU; tensors in main memory are passed on to the CPU's device.
#[derive(Debug)]
pub struct CudaDevice {
    gpu: Gpu,
    host: Arc<dyn Device>,
    scratch: Mutex<Option<Work>>,
}

/// GPU memory beside the model: one chunk of values to add to the model, and one word.
#[derive(Debug)]
struct Work {
    correction: Scratch<f32>,
    first: Scratch<u64>,
}

/// A borrowed tensor.
struct Place {
    name: String,
    address: u64,
    elements: usize,
    /// Index of its first value in flat order.
    start: usize,
}

const VALUE_BYTES: usize = size_of::<f32>();

impl CudaDevice {
    /// Creates the device of a worker on this GPU; `host` is for tensors in main memory.
    #[must_use]
    pub fn new(gpu: Gpu, host: Arc<dyn Device>) -> Self {
        Self {
            gpu,
            host,
            scratch: Mutex::new(None),
        }
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Runs `work` on the borrowed tensors, ordered with their owner's work; see [`between`].
    fn ordered<R>(
        &self,
        lent: &dyn OnGpu,
        elements: usize,
        work: impl FnOnce(&[Place]) -> Result<R, GpuError>,
    ) -> Result<R, TensorError> {
        let places = self.places(lent)?;
        let found: usize = places.iter().map(|place| place.elements).sum();
        if found != elements {
            let message =
                format!("the tensors say that they hold {elements} values, and name {found}");
            return Err(TensorError::Device {
                name: String::new(),
                message,
            });
        }
        between(&self.gpu, lent, || work(&places)).map_err(unreachable)
    }

    /// The tensors' addresses, each checked to be memory of this GPU over the tensor's full length.
    fn places(&self, lent: &dyn OnGpu) -> Result<Vec<Place>, TensorError> {
        let ours = self.gpu.info().ordinal;
        if lent.ordinal() != ours {
            let message = format!(
                "the worker's device is GPU {ours}, its tensors are on GPU {}: lend those of its \
                 own GPU",
                lent.ordinal()
            );
            return Err(TensorError::Device {
                name: String::new(),
                message,
            });
        }
        let mut places = Vec::new();
        let mut start = 0;
        lent.each(&mut |name, address, elements| {
            places.push(Place {
                name: name.to_owned(),
                address,
                elements,
                start,
            });
            start += elements;
        })?;
        check_all(
            &self.gpu,
            places
                .iter()
                .map(|place| (place.name.as_str(), place.address, place.elements)),
        )?;
        Ok(places)
    }

    /// GPU scratch memory that is kept from call to call.
    fn scratch(&self) -> Result<MutexGuard<'_, Option<Work>>, GpuError> {
        let mut scratch = self.scratch.lock();
        if scratch.is_none() {
            let correction = Scratch::zeros(&self.gpu, CHUNK_ELEMENTS, "mixing a gossip")?;
            *scratch = Some(Work {
                correction,
                first: Scratch::zeros(&self.gpu, 1, "checking values")?,
            });
        }
        Ok(scratch)
    }

    /// The index of the tensor's first value that is not finite; `launch` runs the kernel that
    /// writes it to `first`.
    fn first_of(
        &self,
        work: &Work,
        launch: impl FnOnce(u64) -> Result<(), GpuError>,
    ) -> Result<Option<usize>, GpuError> {
        let mut first = [u64::MAX];
        // SAFETY: the scratch holds one word, which only this device uses; the stream is waited for
        // below, also after an error.
        unsafe { self.gpu.copy_in(&first, work.first.address()) }?;
        let launched = launch(work.first.address());
        // SAFETY: the same.
        let copied = unsafe { self.gpu.copy_out(work.first.address(), &mut first) };
        self.gpu.synchronize()?;
        launched.and(copied).map(|()| {
            usize::try_from(first[0])
                .ok()
                .filter(|first| *first != usize::MAX)
        })
    }

    fn not_finite(&self, place: &Place, work: &Work) -> Result<Option<FreezeError>, GpuError> {
        // SAFETY: the place was checked, and its owner's stream waits for ours before the tensor is
        // written again.
        let found = self.first_of(work, |first| unsafe {
            self.gpu.launch(
                Kernel::NotFinite,
                &[place.address, first],
                place.elements,
                &[],
            )
        })?;
        found.map(|index| self.value_at(place, index)).transpose()
    }

    fn value_at(&self, place: &Place, index: usize) -> Result<FreezeError, GpuError> {
        let mut value = [0.0];
        // SAFETY: the index lies in the tensor; the stream is waited for at once.
        unsafe {
            self.gpu
                .copy_out(place.address + (index * VALUE_BYTES) as u64, &mut value)
        }?;
        self.gpu.synchronize()?;
        Ok(FreezeError::NotFinite {
            tensor: place.name.clone(),
            index,
            value: value[0],
        })
    }

    /// Copies the tensors' values out in flat order; values beyond the staging buffer are left out.
    fn copy_all(&self, places: &[Place], staging: &mut [f32]) -> Result<(), GpuError> {
        places.iter().try_for_each(|place| {
            let Some(target) = staging.get_mut(place.start..place.start + place.elements) else {
                return Ok(());
            };
            // SAFETY: the place was checked; `ordered` waits before the staging is given back.
            unsafe { self.gpu.copy_out(place.address, target) }
        })
    }

    /// Mixes the overlap of a chunk and a tensor.
    fn mix_part(
        &self,
        part: &Part<'_>,
        work: &Work,
        first: u64,
        factors: MixFactors,
    ) -> Result<(), GpuError> {
        let scratch = work.correction.address();
        let mut covered = 0;
        part.correction
            .visit(part.start, part.elements, |_, values| {
                covered += values.len()
            });
        if covered > 0 && covered < part.elements {
            // SAFETY: the scratch is as long as a chunk, and kernels before this on the stream have
            // read it.
            unsafe { self.gpu.zero(scratch, part.elements * VALUE_BYTES) }?;
        }
        let mut copied = Ok(());
        part.correction
            .visit(part.start, part.elements, |offset, values| {
                // SAFETY: a chunk has room in the scratch, which kernels before this one on the
                // stream have read; `values` live in the correction, and the stream is waited for
                // before that is given back.
                let copy = unsafe {
                    self.gpu
                        .copy_in(values, scratch + (offset * VALUE_BYTES) as u64)
                };
                copied = std::mem::replace(&mut copied, Ok(())).and(copy);
            });
        copied?;
        let addresses = [
            part.address,
            if covered > 0 { scratch } else { 0 },
            0,
            first,
        ];
        // SAFETY: the part lies in a checked tensor, the scratch is as long as a chunk, and the
        // word is the device's own.
        unsafe {
            self.gpu.launch(
                Kernel::Mix,
                &addresses,
                part.elements,
                &[factors.stays, factors.weight as f32],
            )
        }
    }
}

/// Runs `work` after everything queued so far on the stream of the borrowed tensors and before
/// everything queued there later, and waits until it is done: then the GPU neither reads nor writes
/// the host's buffers any more, whether `work` succeeded or not.
pub(crate) fn between<R>(
    gpu: &Gpu,
    lent: &dyn OnGpu,
    work: impl FnOnce() -> Result<R, GpuError>,
) -> Result<R, GpuError> {
    let _bound = gpu.bind()?;
    let theirs = lent.stream() as sys::CUstream;
    follow(gpu, theirs)?;
    // The wait also happens if `work` panics.
    let waits = Waits(gpu);
    let done = work();
    let left = precede(gpu, theirs);
    let over = gpu.synchronize();
    drop(waits);
    done.and_then(|done| left.and(over).map(|()| done))
}

/// Makes the GPU's stream wait for everything queued so far on `theirs`.
fn follow(gpu: &Gpu, theirs: sys::CUstream) -> Result<(), GpuError> {
    let failed = GpuError::driver("waiting for the training stream");
    let event = gpu.context().new_event(None).map_err(&failed)?;
    // SAFETY: the tensors' owner states that this is a stream of this GPU's primary context; the
    // event is of that context.
    unsafe { result::event::record(event.cu_event(), theirs) }.map_err(&failed)?;
    gpu.stream().wait(&event).map_err(&failed)
}

/// Makes `theirs` wait for everything queued so far on the GPU's stream.
fn precede(gpu: &Gpu, theirs: sys::CUstream) -> Result<(), GpuError> {
    let event = gpu.mark()?;
    // SAFETY: as in `follow`.
    unsafe {
        result::stream::wait_event(
            theirs,
            event.cu_event(),
            sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
        )
    }
    .map_err(GpuError::driver("letting the training stream wait"))
}

/// The overlap of a chunk and a tensor.
struct Part<'a> {
    address: u64,
    /// Index of the first value in flat order.
    start: usize,
    elements: usize,
    correction: &'a ChunkedBuffer,
}

/// Cuts a tensor at the chunk borders: first element in flat order and length of each part.
fn parts(place: &Place) -> impl Iterator<Item = (usize, usize)> + use<> {
    let mut at = place.start;
    let end = place.start + place.elements;
    std::iter::from_fn(move || {
        let next = ((at / CHUNK_ELEMENTS + 1) * CHUNK_ELEMENTS).min(end);
        let part = (at < end).then_some((at, next - at));
        at = next;
        part
    })
}

/// Checks that tensors, by name, address and elements, lie entirely in memory of this GPU.
pub(crate) fn check_all<'a>(
    gpu: &Gpu,
    tensors: impl Iterator<Item = (&'a str, u64, usize)>,
) -> Result<(), TensorError> {
    let _bound = gpu.bind().map_err(unreachable)?;
    for (name, address, elements) in tensors {
        let end = elements
            .checked_mul(VALUE_BYTES)
            .and_then(|bytes| address.checked_add(bytes as u64));
        let inside = end.is_some_and(|end| is_allocated(address, end))
            && address.is_multiple_of(VALUE_BYTES as u64);
        if elements > 0 && !inside {
            let message = format!("it is not {elements} values of this GPU's memory");
            return Err(TensorError::Device {
                name: name.to_owned(),
                message,
            });
        }
    }
    Ok(())
}

/// Whether all memory between two addresses belongs to the current context: one allocation, or
/// several adjacent ones, as some allocators map them.
fn is_allocated(address: u64, end: u64) -> bool {
    let mut at = address;
    while at < end {
        let mut base = 0;
        let mut bytes = 0;
        // SAFETY: the driver looks the address up, and writes two numbers.
        let found = unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, at) };
        let next = base.saturating_add(bytes as u64);
        if found != sys::CUresult::CUDA_SUCCESS || next <= at {
            return false;
        }
        at = next;
    }
    true
}

fn unreachable(error: GpuError) -> TensorError {
    TensorError::Device {
        name: String::new(),
        message: error.to_string(),
    }
}

impl Device for CudaDevice {
    fn gpu(&self) -> Option<usize> {
        Some(self.gpu.info().ordinal)
    }

    fn freeze(
        &self,
        tensors: &dyn Tensors,
        written: Option<&Written>,
        staging: &mut [f32],
    ) -> Result<(), FreezeError> {
        let Some(lent) = tensors.on_gpu() else {
            return self.host.freeze(tensors, written, staging);
        };
        let found = tensors.elements()?;
        let expected = staging.len();
        if found != expected {
            return Err(FreezeError::Length { found, expected });
        }
        let refused = self.ordered(lent, expected, |places| {
            self.copy_all(places, staging)?;
            let scratch = self.scratch()?;
            let Some(work) = &*scratch else {
                return Ok(None);
            };
            places
                .iter()
                .map(|place| self.not_finite(place, work))
                .find_map(Result::transpose)
                .transpose()
        })?;
        refused.map_or(Ok(()), Err)
    }

    fn copy(&self, tensors: &dyn Tensors, staging: &mut [f32]) -> Result<(), TensorError> {
        let Some(lent) = tensors.on_gpu() else {
            return self.host.copy(tensors, staging);
        };
        self.ordered(lent, tensors.elements()?, |places| {
            self.copy_all(places, staging)
        })
    }

    fn mix(
        &self,
        correction: &ChunkedBuffer,
        factors: MixFactors,
        tensors: &mut dyn Tensors,
        keep: Option<&Arc<Pool>>,
    ) -> Result<Mixed, TensorError> {
        let elements = tensors.elements()?;
        let Some(lent) = tensors.on_gpu() else {
            return self.host.mix(correction, factors, tensors, keep);
        };
        let mut kept: Vec<(usize, Buffer)> = keep.map_or_else(Vec::new, |pool| {
            chunks(0..elements)
                .map(|range| (range.start, pool.take(range.len())))
                .collect()
        });
        let not_finite = self.ordered(lent, elements, |places| {
            let scratch = self.scratch()?;
            let (Some(work), mut found) = (&*scratch, None) else {
                return Ok(None);
            };
            for place in places {
                let first = self.first_of(work, |first| {
                    parts(place).try_for_each(|(start, elements)| {
                        let address = place.address + ((start - place.start) * VALUE_BYTES) as u64;
                        if let Some((begin, buffer)) = kept.get_mut(start / CHUNK_ELEMENTS) {
                            let target =
                                &mut buffer.values_mut()[start - *begin..start - *begin + elements];
                            // SAFETY: the part lies in a checked tensor; `ordered` waits before the
                            // buffers are given back.
                            unsafe { self.gpu.copy_out(address, target) }?;
                        }
                        self.mix_part(
                            &Part {
                                address,
                                start,
                                elements,
                                correction,
                            },
                            work,
                            first,
                            factors,
                        )
                    })
                })?;
                // The kernel's index is relative to the part; which part it was is looked up only
                // when a value is not finite.
                if first.is_some() && found.is_none() {
                    found = self.not_finite(place, work)?;
                }
            }
            Ok(found)
        })?;
        let mut before = ChunkedBuffer::default();
        kept.into_iter()
            .for_each(|(start, buffer)| before.insert(start, buffer.freeze()));
        Ok(Mixed { before, not_finite })
    }

    fn write_back(
        &self,
        values: &ChunkedBuffer,
        start: usize,
        weight: f64,
        tensors: &mut dyn Tensors,
    ) -> Result<Vec<Range<usize>>, TensorError> {
        let Some(lent) = tensors.on_gpu() else {
            return self.host.write_back(values, start, weight, tensors);
        };
        let weight = weight as f32;
        let elements = tensors.elements()?;
        self.ordered(lent, elements, |places| {
            for place in places {
                let mut copied = Ok(());
                values.visit(start + place.start, place.elements, |offset, values| {
                    // SAFETY: the values lie in the checked tensor and live longer than `ordered`
                    // waits.
                    let copy = unsafe {
                        self.gpu
                            .copy_in(values, place.address + (offset * VALUE_BYTES) as u64)
                    };
                    copied = std::mem::replace(&mut copied, Ok(())).and(copy);
                });
                copied?;
                if weight != 1.0 {
                    // SAFETY: a checked tensor, borrowed for writing.
                    unsafe {
                        self.gpu
                            .launch(Kernel::Divide, &[place.address], place.elements, &[weight])
                    }?;
                }
            }
            // Tensors that are reached on a GPU are float32.
            Ok(Vec::new())
        })
    }
}
