//! The way to one peer: its fault, and the control frames that the fault holds back.

use super::{Fault, lock};
use bytes::Bytes;
use slowmo_actors::ports::transport::{CONTROL_QUEUE_FRAMES_MAX, SendError, Transport};
use slowmo_protocol::ident::NodeId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Pause before a frame is offered again to a transport whose queue is full.
const RETRY: Duration = Duration::from_millis(1);
/// How long a closing transport waits for held frames.
const DRAIN_MAX: Duration = Duration::from_millis(300);

/// Cheap to clone; all clones are the same lane.
#[derive(Clone)]
pub(super) struct Lane {
    state: Arc<State>,
    queue: mpsc::Sender<Held>,
}

struct State {
    to: NodeId,
    fault: watch::Sender<Fault>,
    /// When the throttled line is free again.
    free_at: Mutex<Instant>,
    held: AtomicUsize,
    /// Grows when held frames are to be thrown away.
    generation: watch::Sender<u64>,
}

struct Held {
    frame: Bytes,
    due: Instant,
    generation: u64,
}

impl Lane {
    pub(super) fn new(to: NodeId, inner: Weak<dyn Transport>, runtime: &tokio::runtime::Handle) -> Self {
        let (queue, held) = mpsc::channel(CONTROL_QUEUE_FRAMES_MAX);
        let state = Arc::new(State {
            to,
            fault: watch::Sender::new(Fault::default()),
            free_at: Mutex::new(Instant::now()),
            held: AtomicUsize::new(0),
            generation: watch::Sender::new(0),
        });
        runtime.spawn(release(state.clone(), held, inner));
        Self { state, queue }
    }

    /// Sets the fault and returns the one before.
    pub(super) fn set(&self, fault: Fault) -> Fault {
        self.state.fault.send_replace(fault)
    }

    pub(super) fn fault(&self) -> Fault {
        *self.state.fault.borrow()
    }

    /// Whether frames may bypass the lane without overtaking others.
    pub(super) fn is_clear(&self) -> bool {
        self.fault() == Fault::default() && self.state.held.load(Ordering::Acquire) == 0
    }

    /// Holds a frame back as long as the fault demands.
    pub(super) fn queue(&self, frame: Bytes) -> Result<(), SendError> {
        let held = Held { frame, due: Instant::now() + self.fault().delay, generation: *self.state.generation.borrow() };
        self.state.held.fetch_add(1, Ordering::AcqRel);
        self.queue.try_send(held).map_err(|_| {
            self.state.held.fetch_sub(1, Ordering::AcqRel);
            SendError::QueueFull(self.state.to)
        })
    }

    /// Throws held frames away: their peer is down.
    pub(super) fn discard(&self) {
        self.state.generation.send_modify(|generation| *generation += 1);
    }

    /// Waits until nothing is held, within a bound.
    pub(super) async fn drained(&self) {
        let give_up = Instant::now() + DRAIN_MAX;
        while self.state.held.load(Ordering::Acquire) > 0 && Instant::now() < give_up {
            sleep(RETRY).await;
        }
    }

    /// Waits until the way is not cut.
    pub(super) async fn passable(&self) {
        let _ = self.state.fault.subscribe().wait_for(|fault| !fault.cut).await;
    }

    /// Waits until bytes may follow others of the same stream.
    pub(super) async fn pass(&self, bytes: usize) {
        self.state.pass(bytes).await;
    }

    /// Waits until the first bytes of a stream may go: like [`Lane::pass`], and the delay.
    pub(super) async fn wait(&self, bytes: usize) {
        sleep(self.fault().delay).await;
        self.state.pass(bytes).await;
    }
}

impl State {
    async fn pass(&self, bytes: usize) {
        let _ = self.fault.subscribe().wait_for(|fault| !fault.cut).await;
        let Some(rate) = self.fault.borrow().bytes_per_second else { return };
        let free_at = {
            let mut free_at = lock(&self.free_at);
            let begin = (*free_at).max(Instant::now());
            *free_at = begin + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            *free_at
        };
        sleep_until(free_at).await;
    }
}

/// Sends held frames when they are due, in order.
async fn release(state: Arc<State>, mut queue: mpsc::Receiver<Held>, inner: Weak<dyn Transport>) {
    while let Some(held) = queue.recv().await {
        let mut generation = state.generation.subscribe();
        let send = async {
            sleep_until(held.due).await;
            state.pass(held.frame.len()).await;
            while offer(&inner, state.to, &held.frame) == Err(SendError::QueueFull(state.to)) {
                sleep(RETRY).await;
            }
        };
        tokio::select! {
            biased;
            _ = generation.wait_for(|generation| *generation != held.generation) => {}
            () = send => {}
        }
        state.held.fetch_sub(1, Ordering::AcqRel);
    }
}

fn offer(inner: &Weak<dyn Transport>, to: NodeId, frame: &Bytes) -> Result<(), SendError> {
    let inner = inner.upgrade().ok_or(SendError::NotConnected(to))?;
    inner.send_control(to, frame.clone())
}
