//! An opened GPU: its context, the communication stream, the compiled kernels. Launches take raw
//! addresses; the safety section of each launch says what they must be.

use crate::error::GpuError;
use crate::kernels::{self, KERNELS, Kernel, THREADS};
use crate::libraries::Library;
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// Blocks of a launch for each multiprocessor: enough to use the whole memory bandwidth.
const BLOCKS_PER_PROCESSOR: u32 = 8;

/// The driver's description of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its index, from 0.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its UUID, which does not change with the other GPUs present, as `CUDA_VISIBLE_DEVICES` takes
    /// it.
    pub uuid: String,
    /// Total bytes of memory.
    pub memory: u64,
    /// Compute capability, like (9, 0).
    pub capability: (i32, i32),
}

/// All GPUs that this process sees.
///
/// # Errors
/// The driver is missing or does not start.
pub fn gpus() -> Result<Vec<GpuInfo>, GpuError> {
    Library::Driver.require()?;
    match result::init() {
        Ok(()) => {}
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
        Err(error) => return Err(GpuError::driver("starting the CUDA driver")(error)),
    }
    let count = CudaContext::device_count().map_err(GpuError::driver("counting GPUs"))?;
    (0..usize::try_from(count).unwrap_or_default())
        .map(describe)
        .collect()
}

fn describe(ordinal: usize) -> Result<GpuInfo, GpuError> {
    let failed = GpuError::driver("asking what a GPU is");
    let device =
        result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX)).map_err(&failed)?;
    let name = result::device::get_name(device).map_err(&failed)?;
    let uuid = uuid_text(
        result::device::get_uuid(device)
            .map_err(&failed)?
            .bytes
            .map(|byte| byte.to_ne_bytes()[0]),
    );
    // SAFETY: the driver has just returned this device.
    let memory = unsafe { result::device::total_mem(device) }.map_err(&failed)?;
    let attribute = |attribute| {
        // SAFETY: the driver has just returned this device.
        unsafe { result::device::get_attribute(device, attribute) }
    };
    let major = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        .map_err(&failed)?;
    let minor = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        .map_err(&failed)?;
    Ok(GpuInfo {
        ordinal,
        name,
        uuid,
        memory: memory as u64,
        capability: (major, minor),
    })
}

/// Formats `GPU-` and the bytes as a UUID.
fn uuid_text(bytes: [u8; 16]) -> String {
    let dash = |index: usize| {
        if [4, 6, 8, 10].contains(&index) {
            "-"
        } else {
            ""
        }
    };
    let digits: String = bytes
        .iter()
        .enumerate()
        .map(|(index, byte)| format!("{}{byte:02x}", dash(index)))
        .collect();
    format!("GPU-{digits}")
}

/// Makes a context current on the calling thread while this lives, then restores the one before:
/// training code may use another GPU's.
pub(crate) struct Bound(Option<sys::CUcontext>);

impl Bound {
    pub(crate) fn new(context: &CudaContext) -> Result<Self, GpuError> {
        let failed = GpuError::driver("using a GPU");
        let before = result::ctx::get_current().map_err(&failed)?;
        // SAFETY: the context lives and is retained by the caller.
        unsafe { result::ctx::set_current(context.cu_ctx()) }.map_err(&failed)?;
        Ok(Self(before))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: it was the thread's context before and is still valid; null stands for no
        // context.
        let restored = unsafe { result::ctx::set_current(self.0.unwrap_or(std::ptr::null_mut())) };
        if let Err(error) = restored {
            tracing::debug!(%error, "a thread's GPU is not as it was");
        }
    }
}

/// Waits for a GPU's stream on drop, also in a panic: memory that its copies read and write may
/// then be freed.
pub(crate) struct Waits<'a>(pub &'a Gpu);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.synchronize() {
            tracing::warn!(%error, "a GPU's stream has failed");
        }
    }
}

/// A GPU with its kernels, and the stream on which slowmo copies and computes.
#[derive(Clone)]
pub struct Gpu {
    info: Arc<GpuInfo>,
    stream: Arc<CudaStream>,
    functions: Arc<[CudaFunction]>,
    blocks_max: u32,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Gpu").field(&self.info).finish()
    }
}

/// Maps a load error: a driver that is older than NVRTC does not know its PTX.
fn not_loaded(error: DriverError) -> GpuError {
    let remedy = match error {
        DriverError(sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION) => {
            "; update the driver, or use an NVRTC that is not newer"
        }
        _ => "",
    };
    GpuError::Driver {
        doing: "loading the kernels",
        message: format!("{error}{remedy}"),
    }
}

impl Gpu {
    /// Opens GPU `ordinal` and compiles the kernels for it, or takes them from the cache. Its
    /// context is the one that the process's training code uses on that GPU, too.
    ///
    /// # Errors
    /// A library is missing, there is no such GPU, or the driver does not open it.
    pub fn open(ordinal: usize) -> Result<Self, GpuError> {
        let all = gpus()?;
        let found = all.len();
        let info = all.into_iter().nth(ordinal).ok_or(GpuError::NoSuchGpu {
            wanted: ordinal,
            found,
        })?;
        let failed = GpuError::driver("opening a GPU");
        let image = kernels::image(info.capability)?;
        let before = result::ctx::get_current().ok().flatten();
        let context = CudaContext::new(ordinal).map_err(&failed)?;
        // Opening has made the context current on this thread; `Bound` restores the one before.
        let _restores = Bound(before);
        let module = context.load_module(image).map_err(not_loaded)?;
        let function = |kernel: Kernel| {
            module
                .load_function(kernel.name())
                .map_err(GpuError::driver("loading a kernel"))
        };
        let functions = KERNELS
            .into_iter()
            .map(function)
            .collect::<Result<Vec<_>, _>>()?
            .into();
        let stream = context.new_stream().map_err(&failed)?;
        let processors = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(&failed)?;
        let blocks_max = BLOCKS_PER_PROCESSOR * u32::try_from(processors).unwrap_or(1).max(1);
        Ok(Self {
            info: Arc::new(info),
            stream,
            functions,
            blocks_max,
        })
    }

    /// The driver's description of this GPU.
    #[must_use]
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// The stream on which slowmo copies and computes.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The GPU's context.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// The driver does not tell.
    pub fn memory(&self) -> Result<(u64, u64), GpuError> {
        let (free, total) = self
            .context()
            .mem_get_info()
            .map_err(GpuError::driver("asking for free memory"))?;
        Ok((free as u64, total as u64))
    }

    /// Makes this GPU current on the calling thread until the returned value is dropped.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn bind(&self) -> Result<Bound, GpuError> {
        Bound::new(self.context())
    }

    /// Waits until everything on the stream is done, regardless of errors recorded on the context
    /// before.
    ///
    /// # Errors
    /// Work on the stream failed; the stream runs nothing more then.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _bound = self.bind()?;
        // SAFETY: the stream lives as long as the GPU.
        unsafe { result::stream::synchronize(self.stream.cu_stream()) }
            .map_err(GpuError::driver("waiting for a GPU"))
    }

    /// Records an event at the stream's current position.
    pub(crate) fn mark(&self) -> Result<CudaEvent, GpuError> {
        self.stream
            .record_event(None)
            .map_err(GpuError::driver("recording an event"))
    }

    /// Queues a kernel on `n` values behind everything on the stream.
    ///
    /// # Safety
    /// The addresses are memory of this GPU, of the sizes that the kernel reads and writes for `n`
    /// values, or null where the kernel says that they may be; until the stream has passed the
    /// launch nobody else writes what it reads, or touches what it writes.
    pub(crate) unsafe fn launch(
        &self,
        kernel: Kernel,
        addresses: &[u64],
        n: usize,
        floats: &[f32],
    ) -> Result<(), GpuError> {
        debug_assert_eq!(
            (addresses.len(), floats.len()),
            (kernel.pointers(), kernel.floats()),
            "{kernel:?}"
        );
        if n == 0 {
            return Ok(());
        }
        let failed = GpuError::driver(kernel.name());
        let Some(at) = KERNELS.iter().position(|other| *other == kernel) else {
            return Ok(());
        };
        let _bound = self.bind()?;
        let mut addresses = addresses.to_vec();
        let mut count = n as u64;
        let mut floats = floats.to_vec();
        let mut parameters: Vec<*mut c_void> = addresses
            .iter_mut()
            .map(|address| (&raw mut *address).cast())
            .collect();
        parameters.push((&raw mut count).cast());
        parameters.extend(
            floats
                .iter_mut()
                .map(|float| (&raw mut *float).cast::<c_void>()),
        );
        let blocks = u32::try_from(n.div_ceil(THREADS as usize))
            .unwrap_or(u32::MAX)
            .min(self.blocks_max);
        let grid = (blocks, 1, 1);
        let block = (THREADS, 1, 1);
        let function = self.functions[at].cu_function();
        // SAFETY: the parameters are those of the kernel's signature, live until the launch has
        // copied them, and the caller vouches for the memory.
        unsafe {
            result::launch_kernel(
                function,
                grid,
                block,
                0,
                self.stream.cu_stream(),
                &mut parameters,
            )
        }
        .map_err(&failed)
    }
}
