//! The exact mean over the GPUs of a node, by NCCL. A thread of its own owns each GPU's communicator, which may not move between threads;
//! training threads hand it addresses and wait.
//!
//! ```text
//!  training thread of worker r           owner of GPU r                    the others' owners
//!     │ all workers meet: same length        │                                   │
//!     ├─ Job { addresses } ─────────────────►│ group of in-place all-reduces ◄──►│
//!     │                                      │ asks for errors until it is done  │
//!     │◄──────────────────────────── done ───┤
//! ```
//! * **A worker that is gone** ends everything: the owners stop asking, abort their communicators, and every later call fails. The node
//!   then leaves the cluster as after any other failure; the other nodes pass it over.
//! * **An abort that hangs** (a GPU that fell off the bus) is waited for so long ([`ABORT_WAIT`]); then the process ends, because nothing
//!   else frees its threads. A launcher sees that and may start another.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::nccl::{Communicator, Operation, api};
use cudarc::nccl::sys::ncclUniqueId;
use slowmo_actors::meeting::Meeting;
use slowmo_actors::ports::device::{Collective, CollectiveError, OnGpu, TensorError, Tensors};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the GPUs of a node may take to meet.
pub const INIT_WAIT: Duration = Duration::from_secs(120);
/// How long an abort may take before the process is ended.
pub const ABORT_WAIT: Duration = Duration::from_secs(30);

/// An operation on one GPU's memory.
struct Job {
    operation: Operation,
    parts: Vec<(u64, usize)>,
    done: SyncSender<Result<(), GpuError>>,
}

/// A GPU's owner.
#[derive(Debug)]
struct Owner {
    gpu: Gpu,
    /// One job at a time: the training thread waits for it.
    jobs: Mutex<Option<SyncSender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The workers of one node, a GPU each.
#[derive(Debug)]
pub struct NcclCollective {
    owners: Vec<Owner>,
    meeting: Meeting,
    /// Set once: everything ends.
    ends: Arc<AtomicBool>,
    /// For tensors in main memory, if all workers lend such.
    host: Arc<dyn Collective>,
}

impl NcclCollective {
    /// The collective of the workers on these GPUs, by rank; `host` is for tensors in main memory. Returns when all GPUs have met.
    ///
    /// # Errors
    /// NCCL is missing, the GPUs cannot reach each other, or do not meet within [`INIT_WAIT`].
    pub fn new(gpus: Vec<Gpu>, host: Arc<dyn Collective>) -> Result<Self, GpuError> {
        let (id, size, ends) = (api()?.unique_id()?, gpus.len(), Arc::new(AtomicBool::new(false)));
        let mut owners = Vec::new();
        let mut joined = Vec::new();
        for (rank, gpu) in gpus.into_iter().enumerate() {
            let ((jobs, inbox), (tell, told)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
            let (part, ends) = (Part { gpu: gpu.clone(), id, rank, size }, Arc::clone(&ends));
            let spawned = thread::Builder::new().name(format!("slowmo-gpu-{rank}")).spawn(move || part.own(&inbox, &tell, &ends));
            let thread = spawned.map_err(|error| GpuError::Nccl { doing: "starting a GPU's thread", message: error.to_string() })?;
            owners.push(Owner { gpu, jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)) });
            joined.push(told);
        }
        let collective = Self { owners, meeting: Meeting::new(size.max(1)), ends, host };
        let deadline = Instant::now() + INIT_WAIT;
        joined.iter().try_for_each(|told| {
            told.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or_else(|_| Err(collective.too_late()))
        })?;
        Ok(collective)
    }

    fn too_late(&self) -> GpuError {
        let message = format!("{} GPUs did not meet within {INIT_WAIT:?}: see NCCL_DEBUG=INFO", self.owners.len());
        GpuError::Nccl { doing: "joining the GPUs of this node", message }
    }

    /// Replaces every worker's values by those of worker `root`.
    ///
    /// # Errors
    /// As of [`Collective::mean`].
    pub fn broadcast(&self, rank: usize, root: usize, values: &mut dyn Tensors) -> Result<(), CollectiveError> {
        self.together(rank, values, Operation::Broadcast(root))
    }

    fn together(&self, rank: usize, values: &mut dyn Tensors, operation: Operation) -> Result<(), CollectiveError> {
        let size = self.size();
        let Some(owner) = self.owners.get(rank) else { return Err(CollectiveError::NoSuchWorker { rank, size }) };
        if size == 1 {
            return self.meeting.gone().map_or(Ok(()), Err);
        }
        let lent = values.on_gpu().ok_or_else(|| mixed(rank))?;
        let elements = values.elements();
        self.meeting.meet(rank, elements)?;
        let parts = parts(lent, owner);
        // NCCL waits for ever where the parts differ.
        let shape = parts.as_ref().map(|parts| shape(parts)).map_err(Clone::clone);
        self.meeting.meet(rank, shape).map_err(|error| match error {
            CollectiveError::Length { rank, .. } => {
                CollectiveError::Device(format!("worker {rank} lends tensors of other lengths than worker 0"))
            }
            other => other,
        })?;
        let parts = parts?;
        let ordered = crate::device::between(&owner.gpu, lent, || self.hand_over(owner, operation, parts));
        ordered.map_err(|error| self.meeting.gone().unwrap_or_else(|| CollectiveError::Device(error.to_string())))
    }

    fn hand_over(&self, owner: &Owner, operation: Operation, parts: Vec<(u64, usize)>) -> Result<(), GpuError> {
        let over = || GpuError::Nccl { doing: "averaging over the GPUs of this node", message: "the GPU's thread has ended".to_owned() };
        let (done, answer) = mpsc::sync_channel(1);
        let jobs = owner.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(over)?;
        jobs.send(Job { operation, parts, done }).map_err(|_| over())?;
        // Ends with the job, or with the thread: that asks whether everything ends.
        answer.recv().map_err(|_| over())?
    }
}

/// A number that is the same for the same lengths in the same order.
fn shape(parts: &[(u64, usize)]) -> usize {
    let lengths: Vec<u8> = parts.iter().flat_map(|(_, elements)| elements.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&lengths) as usize
}

/// Some workers lend GPU memory, this one main memory.
fn mixed(rank: usize) -> CollectiveError {
    let message = format!("worker {rank} lends main memory: the workers of a node lend memory of their GPUs, or all of them main memory");
    CollectiveError::Tensor(TensorError::Device { name: String::new(), message })
}

/// The addresses and lengths of a worker's tensors.
fn parts(lent: &dyn OnGpu, owner: &Owner) -> Result<Vec<(u64, usize)>, TensorError> {
    let mut parts = Vec::new();
    let (ours, theirs) = (owner.gpu.info().ordinal, lent.ordinal());
    if ours != theirs {
        let message = format!("the worker's device is GPU {ours}, its tensors are on GPU {theirs}: lend those of its own GPU");
        return Err(TensorError::Device { name: String::new(), message });
    }
    lent.each(&mut |_, address, elements| parts.push((address, elements)))?;
    Ok(parts)
}

impl Collective for NcclCollective {
    fn size(&self) -> usize {
        self.owners.len()
    }

    fn mean(&self, rank: usize, values: &mut dyn Tensors) -> Result<(), CollectiveError> {
        if values.on_gpu().is_none() {
            return self.host.mean(rank, values);
        }
        self.together(rank, values, Operation::Mean)
    }

    fn abort(&self, rank: usize) {
        self.ends.store(true, Ordering::Release);
        self.meeting.abort(rank);
        self.host.abort(rank);
    }
}

impl Drop for NcclCollective {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let threads: Vec<JoinHandle<()>> = self
            .owners
            .iter()
            .filter_map(|owner| {
                owner.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
                owner.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            })
            .collect();
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

/// What an owner's thread begins with.
struct Part {
    gpu: Gpu,
    id: ncclUniqueId,
    rank: usize,
    size: usize,
}

impl Part {
    /// Joins the others, then runs jobs until there are no more, or everything ends.
    fn own(self, jobs: &Receiver<Job>, joined: &SyncSender<Result<(), GpuError>>, ends: &AtomicBool) {
        let over = || ends.load(Ordering::Acquire);
        let communicator = match Communicator::join(&self.gpu, self.id, (self.rank, self.size), over) {
            Ok(communicator) => communicator,
            Err(error) => {
                _ = joined.send(Err(error));
                return;
            }
        };
        _ = joined.send(Ok(()));
        loop {
            match jobs.recv_timeout(Duration::from_millis(100)) {
                Ok(Job { operation, parts, done }) => {
                    // SAFETY: the training thread waits for the answer and lends the parts until then; all workers met before, with the
                    // same number of values.
                    let result = unsafe { communicator.run(&self.gpu, operation, &parts, over) };
                    let failed = result.is_err();
                    if failed {
                        // What hangs is over before the training thread has its memory back.
                        ends.store(true, Ordering::Release);
                        guarded(communicator);
                        _ = done.send(result);
                        return;
                    }
                    _ = done.send(result);
                }
                Err(RecvTimeoutError::Timeout) if !over() => {}
                Err(_) => return guarded(communicator),
            }
        }
    }
}

/// Aborts a communicator, and ends the process if even that hangs.
fn guarded(communicator: Communicator) {
    let (finished, waits) = mpsc::sync_channel::<()>(1);
    let watchdog = thread::Builder::new().name("slowmo-gpu-abort".to_owned()).spawn(move || {
        if waits.recv_timeout(ABORT_WAIT) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("a GPU does not answer, not even to an abort, for {ABORT_WAIT:?}: this process ends");
            std::process::abort();
        }
    });
    drop(communicator);
    drop(finished);
    if let Ok(watchdog) = watchdog {
        _ = watchdog.join();
    }
}
