//! NCCL's functions, loaded from the library that its packages install (`libnccl.so.2`), and one
//! communicator. The types are cudarc's.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernels::Kernel;
use crate::libraries::Library;
use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use libloading::Symbol;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time for an abort; then the process is ended.
pub const ABORT_WAIT: Duration = Duration::from_secs(30);
/// Polling interval for a communicator that is still at work.
const POLL_EVERY: Duration = Duration::from_micros(50);
/// The magic number of NCCL's configuration.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// The version whose layout [`Config`] has: 2.17. Later versions accept it, and earlier ones have
/// no other.
const CONFIG_VERSION: u32 = 21_700;
/// NCCL's mark for a value that is not configured.
const UNDEFINED: c_int = c_int::MIN;

/// NCCL's communicator configuration, with the fields that 2.17 has.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

/// The NCCL functions in use. The library stays loaded until the process ends.
pub(crate) struct Api {
    get_unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> ncclResult_t,
    comm_init: unsafe extern "C" fn(
        *mut ncclComm_t,
        c_int,
        ncclUniqueId,
        c_int,
        *mut Config,
    ) -> ncclResult_t,
    async_error: unsafe extern "C" fn(ncclComm_t, *mut ncclResult_t) -> ncclResult_t,
    #[allow(clippy::type_complexity)]
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        ncclRedOp_t,
        ncclComm_t,
        CUstream,
    ) -> ncclResult_t,
    #[allow(clippy::type_complexity)]
    broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        ncclDataType_t,
        c_int,
        ncclComm_t,
        CUstream,
    ) -> ncclResult_t,
    group_start: unsafe extern "C" fn() -> ncclResult_t,
    group_end: unsafe extern "C" fn() -> ncclResult_t,
    abort: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t,
    error_string: unsafe extern "C" fn(ncclResult_t) -> *const c_char,
}

/// NCCL's functions, loaded once.
pub(crate) fn api() -> Result<&'static Api, GpuError> {
    static API: OnceLock<Option<Api>> = OnceLock::new();
    API.get_or_init(load).as_ref().ok_or(GpuError::Missing {
        library: Library::Nccl,
    })
}

/// The variable that turns off direct writes. NCCL lets GPUs of one process write each other's
/// buffers directly. It cannot open memory of the driver's pools, which cudarc allocates from, to
/// other GPUs for that, and large operations then fault.
const NO_DIRECT_WRITES: &str = "NCCL_P2P_DIRECT_DISABLE";

fn load() -> Option<Api> {
    if std::env::var_os(NO_DIRECT_WRITES).is_none() {
        // SAFETY: Rust's own readers of the environment are locked out; a node loads NCCL once, as
        // it starts, before it trains. (`slowmo launch` sets the variable for its nodes, so this
        // line is not reached there.)
        unsafe { std::env::set_var(NO_DIRECT_WRITES, "1") };
    }
    let open = |file: &str| {
        // SAFETY: loading runs the library's initializers, which have no preconditions.
        unsafe { libloading::Library::new(file) }.ok()
    };
    let opened = open("libnccl.so.2").or_else(|| open("libnccl.so"))?;
    let library: &'static libloading::Library = Box::leak(Box::new(opened));
    macro_rules! function {
        ($name:literal) => {{
            // SAFETY: the signature is that of NCCL 2's header, which has not changed since the
            // function was added.
            let symbol: Symbol<'static, _> = unsafe { library.get($name) }.ok()?;
            *symbol
        }};
    }
    Some(Api {
        get_unique_id: function!(b"ncclGetUniqueId\0"),
        comm_init: function!(b"ncclCommInitRankConfig\0"),
        async_error: function!(b"ncclCommGetAsyncError\0"),
        all_reduce: function!(b"ncclAllReduce\0"),
        broadcast: function!(b"ncclBroadcast\0"),
        group_start: function!(b"ncclGroupStart\0"),
        group_end: function!(b"ncclGroupEnd\0"),
        abort: function!(b"ncclCommAbort\0"),
        error_string: function!(b"ncclGetErrorString\0"),
    })
}

impl Api {
    fn error(&self, doing: &'static str, result: ncclResult_t) -> GpuError {
        // SAFETY: returns a constant string for every result.
        let text = unsafe { (self.error_string)(result) };
        let message = if text.is_null() {
            format!("{result:?}")
        } else {
            // SAFETY: NCCL's strings end with a zero and live as long as the library.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        };
        GpuError::Nccl { doing, message }
    }

    /// Turns a result into an error; success and "in progress" are none.
    fn check(&self, doing: &'static str, result: ncclResult_t) -> Result<(), GpuError> {
        match result {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            failed => Err(self.error(doing, failed)),
        }
    }

    /// Creates an id for a new group of communicators.
    pub(crate) fn unique_id(&self) -> Result<ncclUniqueId, GpuError> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: writes the id.
        let result = unsafe { (self.get_unique_id)(&raw mut id) };
        self.check("naming a communicator", result).map(|()| id)
    }
}

const DOING: &str = "averaging over the GPUs of this node";

/// One GPU's end of a group. Not `Send`: only the thread that created it uses it, and that thread
/// owns the GPU's part.
pub(crate) struct Communicator {
    api: &'static Api,
    raw: ncclComm_t,
    size: usize,
}

/// A collective operation on a GPU's memory and that of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// The mean over all ranks.
    Mean,
    /// The values of this rank.
    Broadcast(usize),
}

impl Communicator {
    /// Joins the group `id` of `size` GPUs as `rank`; all of them do so at the same time.
    /// `gives_up` is polled while they join.
    pub(crate) fn join(
        gpu: &Gpu,
        id: ncclUniqueId,
        (rank, size): (usize, usize),
        gives_up: impl Fn() -> bool,
    ) -> Result<Self, GpuError> {
        const DOING: &str = "joining the GPUs of this node";
        let api = api()?;
        let ranks = size;
        let _bound = gpu.bind()?;
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        let rank = c_int::try_from(rank).unwrap_or(c_int::MAX);
        let mut config = Config {
            size: size_of::<Config>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is bound to this thread; both pointers are to values that outlive the
        // call.
        let result = unsafe { (api.comm_init)(&raw mut raw, size, id, rank, &raw mut config) };
        let joined = Self {
            api,
            raw,
            size: ranks,
        };
        let settled = api
            .check(DOING, result)
            .and_then(|()| joined.settle(DOING, gives_up));
        match settled {
            Ok(()) => Ok(joined),
            Err(error) => {
                joined.abort_guarded();
                Err(error)
            }
        }
    }

    /// Aborts, and ends the process if the abort hangs: nothing else frees its threads.
    pub(crate) fn abort_guarded(self) {
        let (finished, waits) = mpsc::sync_channel::<()>(1);
        let watchdog = thread::Builder::new().name("slowmo-gpu-abort".to_owned()).spawn(move || {
            if waits.recv_timeout(ABORT_WAIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                tracing::error!(
                    "a GPU does not answer, not even to an abort, for {ABORT_WAIT:?}: this process \
                     ends"
                );
                std::process::abort();
            }
        });
        drop(self);
        drop(finished);
        if let Ok(watchdog) = watchdog {
            _ = watchdog.join();
        }
    }

    /// Waits until NCCL has accepted the queued operation.
    fn settle(&self, doing: &'static str, gives_up: impl Fn() -> bool) -> Result<(), GpuError> {
        loop {
            match self.state(doing)? {
                ncclResult_t::ncclInProgress if gives_up() => {
                    return Err(GpuError::Nccl {
                        doing,
                        message: "it was given up".to_owned(),
                    });
                }
                ncclResult_t::ncclInProgress => std::thread::sleep(POLL_EVERY),
                _ => return Ok(()),
            }
        }
    }

    /// The communicator's state: success or in progress.
    fn state(&self, doing: &'static str) -> Result<ncclResult_t, GpuError> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator lives until it is dropped.
        let asked = unsafe { (self.api.async_error)(self.raw, &raw mut state) };
        self.api.check(doing, asked)?;
        self.api.check(doing, state).map(|()| state)
    }

    /// Queues the same operation for each of these parts of the GPU's memory, behind everything on
    /// its stream.
    ///
    /// # Safety
    /// Each part is memory of the communicator's GPU with as many float32 values, which nobody else
    /// touches before the stream is past this. All ranks name parts of the same lengths in the same
    /// order.
    pub(crate) unsafe fn begin(
        &self,
        gpu: &Gpu,
        operation: Operation,
        parts: &[(u64, usize)],
        gives_up: impl Fn() -> bool,
    ) -> Result<CudaEvent, GpuError> {
        let _bound = gpu.bind()?;
        // SAFETY: every group that is begun is ended below.
        self.api.check(DOING, unsafe { (self.api.group_start)() })?;
        let queued = parts.iter().try_for_each(|part| {
            // SAFETY: the caller's promise.
            let code = unsafe { self.queue(gpu, operation, *part) };
            self.api.check(DOING, code)
        });
        // SAFETY: the group was begun.
        let ended = self.api.check(DOING, unsafe { (self.api.group_end)() });
        queued.and(ended)?;
        self.settle(DOING, gives_up)?;
        if let Operation::Mean = operation {
            for (address, elements) in parts {
                // SAFETY: the same memory, behind the sum on the same stream.
                unsafe { gpu.launch(Kernel::Divide, &[*address], *elements, &[self.size as f32]) }?;
            }
        }
        gpu.mark()
    }

    /// Waits until the started operation is done on all ranks.
    pub(crate) fn finish(
        &self,
        done: &CudaEvent,
        gives_up: impl Fn() -> bool,
    ) -> Result<(), GpuError> {
        let begun = Instant::now();
        while !done.try_is_complete().map_err(GpuError::driver(DOING))? {
            self.state(DOING)?;
            if gives_up() {
                return Err(GpuError::Nccl {
                    doing: DOING,
                    message: format!("it was given up after {:?}", begun.elapsed()),
                });
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Self::begin`].
    unsafe fn queue(
        &self,
        gpu: &Gpu,
        operation: Operation,
        (address, elements): (u64, usize),
    ) -> ncclResult_t {
        let memory = address as *mut c_void;
        let stream = gpu.stream().cu_stream();
        let float = ncclDataType_t::ncclFloat32;
        match operation {
            // SAFETY: in place, as NCCL allows; the memory is the caller's promise.
            Operation::Mean => unsafe {
                (self.api.all_reduce)(
                    memory,
                    memory,
                    elements,
                    float,
                    ncclRedOp_t::ncclSum,
                    self.raw,
                    stream,
                )
            },
            Operation::Broadcast(root) => {
                let root = c_int::try_from(root).unwrap_or(c_int::MAX);
                // SAFETY: the same.
                unsafe {
                    (self.api.broadcast)(memory, memory, elements, float, root, self.raw, stream)
                }
            }
        }
    }
}

impl Drop for Communicator {
    /// Aborts instead of destroying: an abort also ends an operation that hangs, and does not wait
    /// for other ranks.
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: made by `join`, and not used any more.
            let aborted = unsafe { (self.api.abort)(self.raw) };
            if let Err(error) = self.api.check("leaving the GPUs of this node", aborted) {
                tracing::debug!(%error, "a communicator did not end cleanly");
            }
        }
    }
}
