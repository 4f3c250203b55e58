//! The exact mean over the GPUs of a node, by NCCL. A communicator may not move between threads, so
//! one thread owns each GPU's communicator; training threads hand it addresses and wait.
//!
//! ```text
//!  training thread of worker r           owner of GPU r                    the others' owners
//!     │ all workers meet: same length        │                                   │
//!     ├─ Job { addresses } ─────────────────►│ group of in-place all-reduces ◄──►│
//!     │                                      │ asks for errors until it is done  │
//!     │◄──────────────────────────── done ───┤
//! ```
//! * **A worker that is gone** ends the collective: the owners stop polling, abort their
//!   communicators, and every later call fails. The node then leaves the cluster as after any
//!   other failure; the other nodes exclude it.
//! * **An abort that hangs** (a GPU that fell off the bus) gets [`ABORT_WAIT`]; then the process
//!   ends, because nothing else frees its threads. A launcher sees that and may start another.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::COLLECTIVES;
pub use crate::nccl::ABORT_WAIT;
use crate::nccl::{Communicator, Operation, api};
use cudarc::nccl::sys::ncclUniqueId;
use parking_lot::Mutex;
use slowmo_actors::barrier::Barrier;
use slowmo_actors::ports::device::{Collective, CollectiveError, OnGpu, TensorError, Tensors};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval at which an idle owner checks whether the collective ends.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Longest time for the GPUs of a node to join the communicator group.
pub const INIT_WAIT: Duration = Duration::from_secs(120);
/// One operation on one GPU's memory.
struct Job {
    operation: Operation,
    parts: Vec<(u64, usize)>,
    done: SyncSender<Result<(), GpuError>>,
}

/// The handle of the thread that owns one GPU's communicator.
#[derive(Debug)]
struct Owner {
    gpu: Gpu,
    /// The queue holds one job: the training thread waits for it.
    jobs: Mutex<Option<SyncSender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The collective over the workers of one node, one GPU each.
#[derive(Debug)]
pub struct NcclCollective {
    owners: Vec<Owner>,
    barrier: Barrier,
    shared: Arc<Shared>,
    /// The collective for tensors in main memory, used if all workers pass such tensors.
    host: Arc<dyn Collective>,
}

/// State shared by the owners.
#[derive(Debug, Default)]
struct Shared {
    /// Set once, when the collective ends.
    ends: AtomicBool,
    /// Operations that all owners together have started on their GPUs.
    begun: AtomicU64,
    /// Owners whose communicator is gone.
    gone: AtomicUsize,
}

impl Shared {
    fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }
}

impl NcclCollective {
    /// Creates the collective of the workers on these GPUs, by rank; `host` is for tensors in main
    /// memory. Returns when all GPUs have joined.
    ///
    /// # Errors
    /// NCCL is missing, the GPUs cannot reach each other, or do not join within [`INIT_WAIT`].
    pub fn new(gpus: Vec<Gpu>, host: Arc<dyn Collective>) -> Result<Self, GpuError> {
        let id = api()?.unique_id()?;
        let size = gpus.len();
        let owners = Vec::new();
        let shared = Arc::new(Shared::default());
        // Created first, so that its drop ends the threads if a later step fails.
        let mut collective = Self {
            owners,
            barrier: Barrier::new(size.max(1)),
            shared,
            host,
        };
        let (tell, told) = mpsc::sync_channel(size.max(1));
        for (rank, gpu) in gpus.into_iter().enumerate() {
            let (jobs, inbox) = mpsc::sync_channel(1);
            let part = Part {
                gpu: gpu.clone(),
                id,
                rank,
                size,
                shared: Arc::clone(&collective.shared),
            };
            let tell = tell.clone();
            let spawned = thread::Builder::new()
                .name(format!("slowmo-gpu-{rank}"))
                .spawn(move || part.own(&inbox, &tell));
            let thread = spawned.map_err(|error| GpuError::Nccl {
                doing: "starting a GPU's thread",
                message: error.to_string(),
            })?;
            collective.owners.push(Owner {
                gpu,
                jobs: Mutex::new(Some(jobs)),
                thread: Mutex::new(Some(thread)),
            });
        }
        let deadline = Instant::now() + INIT_WAIT;
        // The other owners' errors follow from the first one, so only that is returned.
        (0..size).try_for_each(|_| {
            told.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                .unwrap_or_else(|_| Err(collective.too_late()))
        })?;
        Ok(collective)
    }

    fn too_late(&self) -> GpuError {
        let message = format!(
            "{} GPUs did not meet within {INIT_WAIT:?}: see NCCL_DEBUG=INFO",
            self.owners.len()
        );
        GpuError::Nccl {
            doing: "joining the GPUs of this node",
            message,
        }
    }

    /// Replaces every worker's values by those of worker `root`.
    ///
    /// # Errors
    /// As for [`Collective::mean`].
    pub fn broadcast(
        &self,
        rank: usize,
        root: usize,
        values: &mut dyn Tensors,
    ) -> Result<(), CollectiveError> {
        self.together(rank, values, Operation::Broadcast(root))
    }

    fn together(
        &self,
        rank: usize,
        values: &mut dyn Tensors,
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let size = self.size();
        let Some(owner) = self.owners.get(rank) else {
            return Err(CollectiveError::NoSuchWorker { rank, size });
        };
        if let Operation::Broadcast(root) = operation
            && root >= size
        {
            return Err(CollectiveError::NoSuchWorker { rank: root, size });
        }
        if size == 1 {
            return self.barrier.gone().map_or(Ok(()), Err);
        }
        self.barrier.meet(rank, values.elements())?;
        let parts = values.on_gpu().map(|lent| parts(lent, owner)).transpose();
        // NCCL waits for ever if a rank runs a different operation.
        let shape = parts
            .as_ref()
            .map(|parts| shape(operation, parts.as_deref()))
            .map_err(Clone::clone);
        self.barrier
            .meet(rank, shape)
            .map_err(|error| match error {
                CollectiveError::Length { rank, .. } => differs(rank),
                other => other,
            })?;
        match (parts?, values.on_gpu()) {
            (Some(parts), Some(lent)) => {
                let done = crate::device::between(&owner.gpu, lent, || {
                    self.hand_over(owner, operation, parts)
                });
                done.map_err(|error| {
                    // The other owners wait for this one.
                    self.abort(rank);
                    CollectiveError::Device(error.to_string())
                })
            }
            _ => self.host.mean(rank, values),
        }
    }

    fn hand_over(
        &self,
        owner: &Owner,
        operation: Operation,
        parts: Vec<(u64, usize)>,
    ) -> Result<(), GpuError> {
        let over = || GpuError::Nccl {
            doing: "averaging over the GPUs of this node",
            message: "the GPU's thread has ended".to_owned(),
        };
        let (done, answer) = mpsc::sync_channel(1);
        let jobs = owner.jobs.lock().clone().ok_or_else(over)?;
        jobs.send(Job {
            operation,
            parts,
            done,
        })
        .map_err(|_| over())?;
        // The wait ends with the job, or with the owner's thread, which checks whether the
        // collective ends.
        answer.recv().map_err(|_| over())?
    }
}

/// A number that is equal for the same operation on the same lengths in the same order; `None`
/// stands for tensors in main memory.
fn shape(operation: Operation, parts: Option<&[(u64, usize)]>) -> usize {
    let lengths: Vec<usize> = parts
        .into_iter()
        .flatten()
        .map(|(_, elements)| *elements)
        .collect();
    let text = format!("{operation:?} {} {lengths:?}", parts.is_some());
    xxhash_rust::xxh3::xxh3_64(text.as_bytes()) as usize
}

/// The error for workers that do not run the same operation.
fn differs(rank: usize) -> CollectiveError {
    CollectiveError::Device(format!(
        "worker {rank} lends tensors of other lengths than worker 0, or in main memory where that \
         one's are on a GPU, or asks for another operation: all workers of a node do the same"
    ))
}

/// The addresses and lengths of a worker's tensors.
fn parts(lent: &dyn OnGpu, owner: &Owner) -> Result<Vec<(u64, usize)>, TensorError> {
    let mut parts = Vec::new();
    let ours = owner.gpu.info().ordinal;
    let theirs = lent.ordinal();
    if ours != theirs {
        let message = format!(
            "the worker's device is GPU {ours}, its tensors are on GPU {theirs}: lend those of its \
             own GPU"
        );
        return Err(TensorError::Device {
            name: String::new(),
            message,
        });
    }
    let mut names = Vec::new();
    lent.each(&mut |name, address, elements| {
        parts.push((address, elements));
        names.push(name.to_owned());
    })?;
    let named = names
        .iter()
        .zip(&parts)
        .map(|(name, (address, elements))| (name.as_str(), *address, *elements));
    crate::device::check_all(&owner.gpu, named)?;
    Ok(parts)
}

impl Collective for NcclCollective {
    fn size(&self) -> usize {
        self.owners.len()
    }

    fn mean(&self, rank: usize, values: &mut dyn Tensors) -> Result<(), CollectiveError> {
        self.together(rank, values, Operation::Mean)
    }

    fn abort(&self, rank: usize) {
        self.shared.end();
        self.barrier.abort(rank);
        self.host.abort(rank);
    }
}

impl Drop for NcclCollective {
    fn drop(&mut self) {
        self.shared.end();
        let threads: Vec<JoinHandle<()>> = self
            .owners
            .iter()
            .filter_map(|owner| {
                owner.jobs.lock().take();
                owner.thread.lock().take()
            })
            .collect();
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

/// The state with which an owner's thread starts.
struct Part {
    gpu: Gpu,
    id: ncclUniqueId,
    rank: usize,
    size: usize,
    shared: Arc<Shared>,
}

impl Part {
    /// Joins the group, then runs jobs until there are no more or the collective ends.
    fn own(self, jobs: &Receiver<Job>, joined: &SyncSender<Result<(), GpuError>>) {
        let communicator =
            match Communicator::join(&self.gpu, self.id, (self.rank, self.size), || {
                self.shared.ends()
            }) {
                Ok(communicator) => communicator,
                Err(error) => {
                    _ = joined.send(Err(error));
                    self.shared.end();
                    self.shared.gone.fetch_add(1, Ordering::AcqRel);
                    return;
                }
            };
        _ = joined.send(Ok(()));
        let mut operations = 0;
        let failed = loop {
            match jobs.recv_timeout(LOOK_EVERY) {
                Ok(job) => {
                    operations += 1;
                    match self.run(&communicator, &job, operations) {
                        Ok(()) => _ = job.done.send(Ok(())),
                        Err(error) => break Some((job.done, error)),
                    }
                }
                Err(RecvTimeoutError::Timeout) if !self.shared.ends() => {}
                Err(_) => break None,
            }
        };
        self.shared.end();
        communicator.abort_guarded();
        self.shared.gone.fetch_add(1, Ordering::AcqRel);
        if let Some((done, error)) = failed {
            // Other GPUs may write this GPU's memory until their communicators are gone too; only
            // then does the training thread get the memory back.
            let deadline = Instant::now() + ABORT_WAIT;
            while self.shared.gone.load(Ordering::Acquire) < self.size && Instant::now() < deadline
            {
                thread::sleep(LOOK_EVERY / 10);
            }
            _ = done.send(Err(error));
        }
    }

    /// Runs the owner's `number`-th operation. An operation that all owners have started completes
    /// even if a worker leaves meanwhile: it needs no worker.
    fn run(&self, communicator: &Communicator, job: &Job, number: u64) -> Result<(), GpuError> {
        let _moving = COLLECTIVES.read();
        // SAFETY: the training thread waits for the answer and keeps the parts borrowed until then;
        // they were checked, and all workers met before, with the same lengths.
        let done = unsafe {
            communicator.begin(&self.gpu, job.operation, &job.parts, || self.shared.ends())
        }?;
        self.shared.begun.fetch_add(1, Ordering::AcqRel);
        let begun = Instant::now();
        communicator.finish(&done, || {
            let by_all = self.shared.begun.load(Ordering::Acquire) >= number * self.size as u64;
            self.shared.ends() && (!by_all || begun.elapsed() >= ABORT_WAIT)
        })
    }
}
