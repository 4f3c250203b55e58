//! One direction between two nodes of a hub: a control queue, a datagram queue, and bulk streams.

use super::{Node, SEEDED_DELAY_MAX};
use crate::transport::sessions::Session;
use bytes::Bytes;
use parking_lot::Mutex;
use slowmo_actors::ports::transport::{
    BulkError, CONTROL_QUEUE_FRAMES_MAX, DownReason, SendError, Share, TransportEvent,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Number of datagrams that may be queued before further ones are lost.
const DATAGRAMS_QUEUED_MAX: usize = 256;
/// Largest number of bulk streams of one link that exist at once.
const BULK_STREAMS_MAX: usize = 1024;

/// The link from node `from` to node `to`.
pub(super) struct Link {
    pub(super) from: Arc<Node>,
    pub(super) to: Arc<Node>,
    /// The session that the receiver `to` has for the sender `from`.
    pub(super) there: Arc<Session>,
    control: mpsc::Sender<Bytes>,
    datagrams: mpsc::Sender<Bytes>,
    queues: Mutex<Option<(mpsc::Receiver<Bytes>, mpsc::Receiver<Bytes>)>>,
    /// Number of control frames that are queued or in flight.
    undelivered: AtomicUsize,
    streams: Arc<Semaphore>,
    streams_opened: AtomicU64,
}

impl Link {
    pub(super) fn new(from: &Arc<Node>, to: &Arc<Node>, there: Arc<Session>) -> Self {
        let (control, control_queue) = mpsc::channel(CONTROL_QUEUE_FRAMES_MAX);
        let (datagrams, datagram_queue) = mpsc::channel(DATAGRAMS_QUEUED_MAX);
        Self {
            from: from.clone(),
            to: to.clone(),
            there,
            control,
            datagrams,
            queues: Mutex::new(Some((control_queue, datagram_queue))),
            undelivered: AtomicUsize::new(0),
            streams: Arc::new(Semaphore::new(BULK_STREAMS_MAX)),
            streams_opened: AtomicU64::new(0),
        }
    }

    /// Starts delivery; `here` is the session that the sender has for the receiver.
    pub(super) fn run(self: &Arc<Self>, here: Arc<Session>) {
        if let Some((control, datagrams)) = self.queues.lock().take() {
            self.from
                .runtime
                .spawn(self.clone().deliver_control(control));
            self.from
                .runtime
                .spawn(self.clone().deliver_datagrams(datagrams));
        }
        self.from
            .runtime
            .spawn(die_together(here, self.there.clone()));
    }

    pub(super) fn queue_control(&self, frame: Bytes) -> Result<(), SendError> {
        let length = frame.len();
        self.undelivered.fetch_add(1, Ordering::AcqRel);
        let queued = self.control.try_send(frame).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::QueueFull(self.to.local.node),
            mpsc::error::TrySendError::Closed(_) => SendError::NotConnected(self.to.local.node),
        });
        match queued {
            Ok(()) => self.count_sent(length),
            Err(_) => drop(self.undelivered.fetch_sub(1, Ordering::AcqRel)),
        }
        queued
    }

    pub(super) fn queue_datagram(&self, datagram: Bytes) {
        self.count_sent(datagram.len());
        let _ = self.datagrams.try_send(datagram);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.undelivered.load(Ordering::Acquire) > 0
    }

    /// Waits until another bulk stream may be open; fails if the session ends before.
    pub(super) async fn stream_permit(&self) -> Result<OwnedSemaphorePermit, BulkError> {
        let broken = || BulkError::Broken("the peer is gone".into());
        tokio::select! {
            biased;
            _ = self.there.closing() => Err(broken()),
            permit = self.streams.clone().acquire_owned() => permit.map_err(|_| broken()),
        }
    }

    /// The delays of the next bulk stream.
    pub(super) fn stream_delays(&self) -> Delays {
        let stream = self.streams_opened.fetch_add(1, Ordering::Relaxed);
        self.delays(2 + stream)
    }

    async fn deliver_control(self: Arc<Self>, mut queue: mpsc::Receiver<Bytes>) {
        let delays = self.delays(0);
        while let Some(frame) = next(&mut queue, &self.there).await {
            delays.wait().await;
            self.count_received(frame.len());
            let delivered = self
                .there
                .deliver(TransportEvent::Control {
                    from: self.from.local.node,
                    frame,
                    share: Share::default(),
                })
                .await;
            self.undelivered.fetch_sub(1, Ordering::AcqRel);
            if delivered.is_err() {
                break;
            }
        }
        self.undelivered.store(0, Ordering::Release);
    }

    async fn deliver_datagrams(self: Arc<Self>, mut queue: mpsc::Receiver<Bytes>) {
        let delays = self.delays(1);
        while let Some(datagram) = next(&mut queue, &self.there).await {
            delays.wait().await;
            self.count_received(datagram.len());
            if self
                .there
                .deliver(TransportEvent::Datagram {
                    from: self.from.local.node,
                    datagram,
                    share: Share::default(),
                })
                .await
                .is_err()
            {
                break;
            }
        }
    }

    pub(super) fn count_sent(&self, bytes: usize) {
        self.from
            .sent_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_received(&self, bytes: usize) {
        self.to
            .received_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        self.there.pulse.count();
    }

    fn delays(&self, lane: u64) -> Delays {
        let seed = self.from.hub.seed.map(|seed| {
            let words = [self.from.local.node.0, self.to.local.node.0, lane];
            xxhash_rust::xxh3::xxh3_64_with_seed(bytemuck::bytes_of(&words), seed)
        });
        Delays {
            seed,
            drawn: Arc::new(AtomicU64::new(0)),
        }
    }
}

/// The next queued message, or `None` once the session is closing.
async fn next(queue: &mut mpsc::Receiver<Bytes>, session: &Session) -> Option<Bytes> {
    tokio::select! {
        biased;
        _ = session.closing() => None,
        message = queue.recv() => message,
    }
}

/// Ends each of two sessions when the other ends.
async fn die_together(here: Arc<Session>, there: Arc<Session>) {
    tokio::select! {
        biased;
        reason = here.closing() => there.close(seen_from_afar(reason)),
        reason = there.closing() => here.close(seen_from_afar(reason)),
    }
}

/// The reason that the other side reports when one side closes for `reason`.
fn seen_from_afar(reason: DownReason) -> DownReason {
    match reason {
        DownReason::ClosedHere(reason) => DownReason::Dropped(reason),
        DownReason::Leaving(reason) => DownReason::ClosedByPeer(reason),
        DownReason::ProtocolViolation(reason) => DownReason::Dropped(reason),
        other => DownReason::Broken(other.to_string()),
    }
}

/// Sequence of pseudorandom delays of one queue or stream; all zero without a seed.
#[derive(Clone)]
pub(super) struct Delays {
    seed: Option<u64>,
    drawn: Arc<AtomicU64>,
}

impl Delays {
    /// Waits for the next delay of the sequence: zero with probability 3/4, else below
    /// [`SEEDED_DELAY_MAX`].
    pub(super) async fn wait(&self) {
        let Some(seed) = self.seed else { return };
        let draw = self.drawn.fetch_add(1, Ordering::Relaxed);
        let random = xxhash_rust::xxh3::xxh3_64_with_seed(&draw.to_le_bytes(), seed);
        if random & 3 == 0 {
            let microseconds = (random >> 8) % SEEDED_DELAY_MAX.as_micros() as u64;
            tokio::time::sleep(Duration::from_micros(microseconds)).await;
        }
    }
}
