//! Rates at which a GPU copies and computes, in bytes moved per second: the median of several runs,
//! timed by events on its stream.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernels::Kernel;
use crate::memory::{Pinned, Scratch};
use cudarc::driver::{result, sys};
use slowmo_actors::buffers::Memory;

/// Number of runs of which the median is taken.
const RUNS: usize = 9;

/// A measured rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// The measured operation.
    pub name: &'static str,
    /// Bytes read and written in one run.
    pub bytes: u64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// The share of the reference rate, which is listed before it; `None` for the reference rates
    /// themselves.
    pub share: Option<f64>,
}

/// The GPU's copy bandwidth; the rates of the mix and of the division; page-locked copies and the
/// device's own copies. Each uses arrays of `bytes` bytes, or of a sixth of the free memory if that
/// is less.
///
/// # Errors
/// Not enough memory, or another error of the driver.
pub fn rates(gpu: &Gpu, bytes: usize) -> Result<Vec<Rate>, GpuError> {
    let room = usize::try_from(gpu.memory()?.0 / 6).unwrap_or(usize::MAX);
    let n = (bytes.min(room) / size_of::<f32>()).max(1);
    let arrays = (0..2)
        .map(|_| Scratch::<f32>::zeros(gpu, n, "measuring rates"))
        .collect::<Result<Vec<_>, _>>()?;
    let word = Scratch::<u64>::zeros(gpu, 1, "measuring rates")?;
    let at = |index: usize| arrays[index].address();
    let size = arrays[0].len() * size_of::<f32>();
    let copy = rate("copy on the GPU", 2 * size, gpu, || {
        // SAFETY: both are scratch of this size.
        unsafe { result::memcpy_dtod_async(at(0), at(1), size, gpu.stream().cu_stream()) }
            .map_err(GpuError::driver("copying"))
    })?;
    let mix = rate("mix", 3 * size, gpu, || {
        // SAFETY: scratch of this size each.
        unsafe {
            gpu.launch(
                Kernel::Mix,
                &[at(0), at(1), 0, word.address()],
                n,
                &[0.5, 1.0],
            )
        }
    })?;
    let divide = rate("divide", 2 * size, gpu, || {
        // SAFETY: the same.
        unsafe { gpu.launch(Kernel::Divide, &[at(0)], n, &[1.5]) }
    })?;
    let mut rates = vec![copy.clone(), against(mix, &copy), against(divide, &copy)];
    drop(arrays);
    rates.extend(copies(gpu, n)?);
    Ok(rates)
}

/// Rates of page-locked copies in one piece, and in the chunks that the device copies.
fn copies(gpu: &Gpu, n: usize) -> Result<Vec<Rate>, GpuError> {
    let array = Scratch::<f32>::zeros(gpu, n, "measuring copies")?;
    let Some(mut pinned) = Pinned::new(gpu).allocate(n) else {
        let message = format!(
            "{} bytes of the host's memory cannot be page-locked: see ulimit -l, or measure with \
             less",
            n * size_of::<f32>()
        );
        return Err(GpuError::Driver {
            doing: "measuring copies",
            message,
        });
    };
    let size = n * size_of::<f32>();
    let chunk = slowmo_actors::buffers::CHUNK_ELEMENTS;
    let whole_out = rate("page-locked copy to the host", size, gpu, || {
        // SAFETY: both are of this size; `rate` waits.
        unsafe { gpu.copy_out(array.address(), pinned.values_mut()) }
    })?;
    let chunks_out = rate("chunks to the host", size, gpu, || {
        pinned
            .values_mut()
            .chunks_mut(chunk)
            .enumerate()
            .try_for_each(|(index, values)| {
                // SAFETY: a part of both; `rate` waits.
                unsafe {
                    gpu.copy_out(
                        array.address() + (index * chunk * size_of::<f32>()) as u64,
                        values,
                    )
                }
            })
    })?;
    let whole_in = rate("page-locked copy to the GPU", size, gpu, || {
        // SAFETY: both are of this size; `rate` waits.
        unsafe { gpu.copy_in(pinned.values(), array.address()) }
    })?;
    let chunks_in = rate("chunks to the GPU", size, gpu, || {
        pinned
            .values()
            .chunks(chunk)
            .enumerate()
            .try_for_each(|(index, values)| {
                // SAFETY: a part of both; `rate` waits.
                unsafe {
                    gpu.copy_in(
                        values,
                        array.address() + (index * chunk * size_of::<f32>()) as u64,
                    )
                }
            })
    })?;
    Ok(vec![
        whole_out.clone(),
        against(chunks_out, &whole_out),
        whole_in.clone(),
        against(chunks_in, &whole_in),
    ])
}

fn against(rate: Rate, yardstick: &Rate) -> Rate {
    Rate {
        share: Some(rate.bytes_per_second / yardstick.bytes_per_second),
        ..rate
    }
}

fn rate(
    name: &'static str,
    bytes: usize,
    gpu: &Gpu,
    mut work: impl FnMut() -> Result<(), GpuError>,
) -> Result<Rate, GpuError> {
    let failed = GpuError::driver("timing");
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let mut seconds = Vec::new();
    // The first run warms up.
    for _ in 0..=RUNS {
        let begun = gpu.stream().record_event(timed).map_err(&failed)?;
        let done = work();
        let ended = gpu.stream().record_event(timed).map_err(&failed)?;
        gpu.synchronize()?;
        done?;
        seconds.push(f64::from(begun.elapsed_ms(&ended).map_err(&failed)?) / 1_000.0);
    }
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    Ok(Rate {
        name,
        bytes: bytes as u64,
        bytes_per_second: bytes as f64 / seconds[RUNS / 2],
        share: None,
    })
}
