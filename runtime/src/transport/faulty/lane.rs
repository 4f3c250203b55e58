//! The path to one peer: its fault, and the control frames that the fault holds back.

use super::Fault;
use super::line::Line;
use crate::transport::watched::Watched;
use bytes::Bytes;
use slowmo_actors::ports::transport::{CONTROL_QUEUE_FRAMES_MAX, SendError, Transport};
use slowmo_protocol::ident::NodeId;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause before a frame is offered again to a transport whose queue is full.
const RETRY: Duration = Duration::from_millis(1);
/// Longest time that a closing transport waits for held frames.
const DRAIN_MAX: Duration = Duration::from_millis(300);

/// The path to one peer. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub(super) struct Lane {
    state: Arc<State>,
    queue: mpsc::Sender<Held>,
}

struct State {
    to: NodeId,
    fault: Watched<Fault>,
    /// The line that all traffic to this peer shares; `uplink` is shared by all traffic of this
    /// node.
    line: Line,
    uplink: Arc<Line>,
    /// Number of datagrams for which loss was drawn; seeds the next draw.
    datagrams: AtomicU64,
    /// Number of delays drawn; seeds the next draw.
    delays: AtomicU64,
    held: AtomicUsize,
    /// Incremented when held frames are to be discarded.
    generation: Watched<u64>,
}

struct Held {
    frame: Bytes,
    due: Instant,
    generation: u64,
}

impl Lane {
    pub(super) fn new(
        to: NodeId,
        inner: Weak<dyn Transport>,
        uplink: Arc<Line>,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let (queue, held) = mpsc::channel(CONTROL_QUEUE_FRAMES_MAX);
        let state = Arc::new(State {
            to,
            fault: Watched::new(Fault::default()),
            line: Line::new(None),
            uplink,
            datagrams: AtomicU64::new(0),
            delays: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            generation: Watched::new(0),
        });
        runtime.spawn(release(state.clone(), held, inner));
        Self { state, queue }
    }

    /// Sets the fault and returns the previous one.
    pub(super) fn set(&self, fault: Fault) -> Fault {
        self.state.line.set_rate(fault.bytes_per_second);
        self.state.fault.set(fault)
    }

    pub(super) fn fault(&self) -> Fault {
        self.state.fault.get()
    }

    /// Whether the path has no fault and the uplink no throttle.
    pub(super) fn is_untouched(&self) -> bool {
        self.fault() == Fault::default() && self.state.uplink.is_free()
    }

    /// Whether frames may bypass the lane without overtaking others.
    pub(super) fn is_clear(&self) -> bool {
        self.is_untouched() && self.state.held.load(Ordering::Acquire) == 0
    }

    /// Queues a frame and holds it back for as long as the fault requires.
    pub(super) fn queue(&self, frame: Bytes) -> Result<(), SendError> {
        let due = self.state.enter(frame.len()) + self.state.later();
        let held = Held {
            frame,
            due,
            generation: self.state.generation.get(),
        };
        self.state.held.fetch_add(1, Ordering::AcqRel);
        self.queue.try_send(held).map_err(|_| {
            self.state.held.fetch_sub(1, Ordering::AcqRel);
            SendError::QueueFull(self.state.to)
        })
    }

    /// The time when a datagram is to be sent on; `None` if it is lost.
    pub(super) fn datagram_due(&self, bytes: usize) -> Option<Instant> {
        let Fault {
            cut,
            lost_per_thousand,
            ..
        } = self.fault();
        let drawn = self.state.datagrams.fetch_add(1, Ordering::Relaxed);
        let random = xxhash_rust::xxh3::xxh3_64_with_seed(&drawn.to_le_bytes(), self.state.to.0);
        if cut || random % 1000 < u64::from(lost_per_thousand) {
            return None;
        }
        let overflows = self.state.line.overflows() || self.state.uplink.overflows();
        (!overflows).then(|| self.state.enter(bytes) + self.state.later())
    }

    /// Time that the next byte would wait in the queues.
    pub(super) fn queued(&self) -> Duration {
        self.state.line.queued().max(self.state.uplink.queued())
    }

    /// Discards the held frames, because their peer is down.
    pub(super) fn discard(&self) {
        self.state.generation.modify(|generation| *generation += 1);
    }

    /// Waits until no frame is held, at most [`DRAIN_MAX`].
    pub(super) async fn drained(&self) {
        let give_up = Instant::now() + DRAIN_MAX;
        while self.state.held.load(Ordering::Acquire) > 0 && Instant::now() < give_up {
            sleep(RETRY).await;
        }
    }

    /// Waits until the path is not cut.
    pub(super) async fn passable(&self) {
        self.state.passable().await;
    }

    /// Queues bytes of a stream if the queues have room, and returns the time when they will have
    /// passed.
    pub(super) fn try_enter(&self, bytes: usize) -> Option<Instant> {
        (self.room_at() <= Instant::now()).then(|| self.state.enter(bytes))
    }

    /// The time when the queues have room for more bytes of a stream.
    pub(super) fn room_at(&self) -> Instant {
        self.state.line.room_at().max(self.state.uplink.room_at())
    }

    /// Waits until `passed`, the time when queued bytes have passed, and until the path is not cut.
    pub(super) async fn arrive(&self, passed: Instant) {
        if passed > Instant::now() {
            sleep_until(passed).await;
        }
        self.passable().await;
    }

    /// Waits until the first bytes of a stream may be sent: for the delay, then for the queues,
    /// then until the path is not cut.
    pub(super) async fn wait(&self, bytes: usize) {
        sleep(self.state.later()).await;
        self.arrive(self.state.enter(bytes)).await;
    }
}

impl State {
    async fn passable(&self) {
        self.fault.wait_for(|fault| !fault.cut).await;
    }

    /// The delay of the next frame, datagram or stream: the fault's delay plus drawn jitter.
    fn later(&self) -> Duration {
        let Fault { delay, jitter, .. } = self.fault.get();
        let most = u64::try_from(jitter.as_micros()).unwrap_or(u64::MAX);
        if most == 0 {
            return delay;
        }
        let drawn = self.delays.fetch_add(1, Ordering::Relaxed);
        delay
            + Duration::from_micros(
                xxhash_rust::xxh3::xxh3_64_with_seed(&drawn.to_le_bytes(), !self.to.0) % most,
            )
    }

    fn enter(&self, bytes: usize) -> Instant {
        self.line.enter(bytes).max(self.uplink.enter(bytes))
    }
}

/// Sends held frames in order, each when it is due and the path is not cut.
async fn release(state: Arc<State>, mut queue: mpsc::Receiver<Held>, inner: Weak<dyn Transport>) {
    while let Some(held) = queue.recv().await {
        let send = async {
            sleep_until(held.due).await;
            state.passable().await;
            while offer(&inner, state.to, &held.frame) == Err(SendError::QueueFull(state.to)) {
                sleep(RETRY).await;
            }
        };
        tokio::select! {
            biased;
            _ = state.generation.wait_for(|generation| *generation != held.generation) => {}
            () = send => {}
        }
        state.held.fetch_sub(1, Ordering::AcqRel);
    }
}

fn offer(inner: &Weak<dyn Transport>, to: NodeId, frame: &Bytes) -> Result<(), SendError> {
    let inner = inner.upgrade().ok_or(SendError::NotConnected(to))?;
    inner.send_control(to, frame.clone())
}
