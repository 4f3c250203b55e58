//! A transport wrapper for fault injection: it cuts, delays or throttles what this node sends to a
//! peer, falsifies its values, or crashes the node when it is about to send something.
//!
//! Touches only the transport that it wraps. Faults act on one direction; set them at both ends to
//! affect both directions. As with a real network under QUIC, a cut loses datagrams and holds back
//! everything else, and after `silent_after` the peer goes down as silent.

mod crash;
mod lane;
mod line;
mod sender;

use async_trait::async_trait;
use bytes::Bytes;
use crash::{Crash, MortalReceiver, MortalSender};
pub use crash::{Fate, Sending, Watcher};
use lane::Lane;
use line::Line;
use parking_lot::Mutex;
use sender::{FaultySender, Signing};
use slowmo_actors::ports::signer::Signer;
use slowmo_actors::ports::transport::{
    BulkError, BulkSender, DownReason, LocalPeer, SendError, Share, TRANSPORT_EVENTS_MAX, Traffic,
    Transport, TransportEvent,
};
use slowmo_protocol::coordinator::Voter;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::published::ask;
use slowmo_protocol::wire::{Bulk, BulkHeader, CONTROL_FRAME_BYTES_MAX, Frame, Message};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;

/// Faults on the path to one peer. The default is no fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Whether the path is cut: nothing gets through.
    pub cut: bool,
    /// Delay added to everything that is sent.
    pub delay: Duration,
    /// Upper bound of a further pseudorandom delay, drawn for each datagram and frame; frames stay
    /// in order.
    pub jitter: Duration,
    /// Largest rate in payload bytes per second, over control frames, datagrams and bulk together.
    pub bytes_per_second: Option<u64>,
    /// Number of datagrams lost per thousand. Everything else is retransmitted by a real transport
    /// after a loss, so it would be late, not lost; it is not affected.
    pub lost_per_thousand: u16,
}

/// Falsifies a bulk stream that this node opens: may change its header, and returns the bytes that
/// replace the first ones of its values; none to leave them as they are.
pub type Falsifier = Arc<dyn Fn(NodeId, &mut BulkHeader) -> Vec<u8> + Send + Sync>;

/// Replaces a control frame that this node sends by others; by none to send nothing.
pub type Tamperer = Arc<dyn Fn(NodeId, &Frame) -> Vec<Frame> + Send + Sync>;

/// Replaces a control frame that arrives here by others, each with its sender; by none to drop it.
pub type Hearer = Arc<dyn Fn(NodeId, &Frame) -> Vec<(NodeId, Frame)> + Send + Sync>;

/// Sets and clears faults of one wrapped transport while it runs.
#[derive(Clone)]
pub struct Faults {
    shared: Arc<Shared>,
}

struct Shared {
    /// Weak, so that the transport ends when its node drops it, even if [`Faults`] handles remain.
    inner: Weak<dyn Transport>,
    runtime: tokio::runtime::Handle,
    silent_after: Duration,
    /// The line that all traffic sent by this node shares.
    uplink: Arc<Line>,
    lanes: Mutex<BTreeMap<NodeId, Lane>>,
    /// Peers that were disconnected here because a cut lasted too long.
    silenced: Mutex<BTreeSet<NodeId>>,
    crash: Arc<Crash>,
    falsifier: Mutex<Option<Falsifier>>,
    /// The node's key, with which it signs falsified values too.
    signer: Mutex<Option<Arc<dyn Signer>>>,
    tamperer: Mutex<Option<Tamperer>>,
    hearer: Mutex<Option<Hearer>>,
}

struct FaultyTransport {
    inner: Arc<dyn Transport>,
    shared: Arc<Shared>,
}

/// Wraps a transport and its events. A peer whose path is cut for `silent_after` goes down. Must be
/// called inside a tokio runtime.
#[must_use]
pub fn wrap(
    inner: Arc<dyn Transport>,
    events: mpsc::Receiver<TransportEvent>,
    silent_after: Duration,
) -> (Arc<dyn Transport>, mpsc::Receiver<TransportEvent>, Faults) {
    let (sender, receiver) = mpsc::channel(TRANSPORT_EVENTS_MAX);
    let runtime = tokio::runtime::Handle::current();
    let weak = Arc::downgrade(&inner);
    let uplink = Arc::new(Line::new(None));
    let lanes = Mutex::default();
    let silenced = Mutex::default();
    let crash = Arc::default();
    let shared = Arc::new(Shared {
        inner: weak,
        runtime,
        silent_after,
        uplink,
        lanes,
        silenced,
        crash,
        falsifier: Mutex::default(),
        signer: Mutex::default(),
        tamperer: Mutex::default(),
        hearer: Mutex::default(),
    });
    shared
        .runtime
        .spawn(forward(Arc::downgrade(&shared), events, sender));
    (
        Arc::new(FaultyTransport {
            inner,
            shared: shared.clone(),
        }),
        receiver,
        Faults { shared },
    )
}

impl Faults {
    /// Sets the faults on the path to a peer from now on; what is already in flight keeps its
    /// delay.
    pub fn set(&self, to: NodeId, fault: Fault) {
        let was = self.shared.lane(to).set(fault);
        if fault.cut && !was.cut {
            self.shared.runtime.spawn(silence(self.shared.clone(), to));
        }
    }

    /// Throttles the total that this node sends to all peers, in bytes per second, like the link of
    /// its host: bulk fills the queue in front of the link, and control frames and datagrams wait
    /// in that queue. `None` removes the throttle.
    pub fn throttle(&self, bytes_per_second: Option<u64>) {
        self.shared.uplink.set_rate(bytes_per_second);
    }

    /// Calls `watcher` before each control frame and each part of a bulk stream (not datagrams)
    /// that this node sends from now on. A watcher may set faults and make other nodes crash.
    pub fn watch(&self, watcher: Watcher) {
        self.shared.crash.watch(watcher);
    }

    /// Lets `falsifier` change each bulk stream that this node opens from now on, as a broken or
    /// hostile node might. It signs what it publishes as it sends it.
    pub fn falsify(&self, falsifier: Falsifier) {
        *self.shared.falsifier.lock() = Some(falsifier);
    }

    /// Gives the key with which the node signs what it publishes.
    pub(crate) fn sign_with(&self, signer: Arc<dyn Signer>) {
        *self.shared.signer.lock() = Some(signer);
    }

    /// Lets `hearer` replace each control frame that reaches this node from now on: a hostile node
    /// that believes what it wants to.
    pub fn mishear(&self, hearer: Hearer) {
        *self.shared.hearer.lock() = Some(hearer);
    }

    /// Lets `tamperer` replace each control frame that this node sends from now on, as a hostile
    /// node might. It signs what it asks votes for as it asks.
    pub fn tamper(&self, tamperer: Tamperer) {
        *self.shared.tamperer.lock() = Some(tamperer);
    }

    /// Sends a control frame that this node did not ask for; whether the transport took it.
    pub fn inject(&self, to: NodeId, frame: &Frame) -> bool {
        let inner = self.shared.inner.upgrade();
        let bytes = self.shared.asks(frame.clone()).encode().map(Bytes::from);
        let sendable = !self.shared.crash.has_crashed();
        sendable
            && inner
                .zip(bytes.ok())
                .is_some_and(|(inner, bytes)| inner.send_control(to, bytes).is_ok())
    }

    /// Breaks the connections to a peer now; both nodes may reconnect immediately.
    pub fn disconnect(&self, node: NodeId) {
        if let Some(inner) = self.shared.inner.upgrade() {
            inner.disconnect(node, "its connections broke");
        }
    }

    /// Crashes the node immediately, as if its process were killed; see [`Fate::Crashes`].
    pub fn crash(&self) {
        self.shared.crash.crash();
    }

    /// Whether the node has crashed.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.shared.crash.has_crashed()
    }

    /// Waits until the node has crashed.
    pub async fn crashed(&self) {
        self.shared.crash.crashed().await;
    }

    /// Clears all faults; a node that has crashed stays crashed.
    pub fn heal(&self) {
        self.throttle(None);
        for lane in self.shared.lanes.lock().values() {
            lane.set(Fault::default());
        }
    }
}

/// Disconnects a peer whose cut lasts longer than `silent_after`.
async fn silence(shared: Arc<Shared>, node: NodeId) {
    let lane = shared.lane(node);
    if tokio::time::timeout(shared.silent_after, lane.passable())
        .await
        .is_err()
    {
        shared.silenced.lock().insert(node);
        if let Some(inner) = shared.inner.upgrade() {
            inner.disconnect(node, "nothing was heard from it");
        }
    }
}

/// Forwards events; when a peer goes down, the frames held back for it are discarded.
async fn forward(
    shared: Weak<Shared>,
    mut events: mpsc::Receiver<TransportEvent>,
    sender: mpsc::Sender<TransportEvent>,
) {
    while let Some(mut event) = events.recv().await {
        if let (TransportEvent::PeerDown { node, reason, .. }, Some(shared)) =
            (&mut event, shared.upgrade())
        {
            shared.lane(*node).discard();
            if shared.silenced.lock().remove(node) {
                *reason = DownReason::Silent(shared.silent_after);
            }
        }
        let passed = match shared.upgrade() {
            Some(shared) => shared.receive(event),
            None => vec![event],
        };
        for event in passed {
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }
}

impl Shared {
    fn lane(self: &Arc<Self>, to: NodeId) -> Lane {
        let mut lanes = self.lanes.lock();
        lanes
            .entry(to)
            .or_insert_with(|| {
                Lane::new(to, self.inner.clone(), self.uplink.clone(), &self.runtime)
            })
            .clone()
    }

    /// The header of a stream as it is sent, and the bytes that replace its first ones.
    fn falsified(&self, to: NodeId, header: Bytes) -> (Bytes, Vec<u8>) {
        let falsifier = self.falsifier.lock().clone();
        let decoded =
            falsifier.and_then(|falsify| Some((falsify, BulkHeader::decode(&header).ok()?)));
        let Some((falsify, mut changed)) = decoded else {
            return (header, Vec::new());
        };
        let first = falsify(to, &mut changed);
        (changed.encode().map_or(header, Bytes::from), first)
    }

    /// Returns the signer of a falsified stream's values, if the stream ends with a signature.
    fn signs_anew(&self, header: &Bytes, first: &[u8]) -> Option<Signing> {
        let BulkHeader::V1 { header, content } = BulkHeader::decode(header).ok()?;
        let signed = content == Bulk::Parameters && !first.is_empty();
        if !signed {
            return None;
        }
        let signer = self.signer.lock().clone()?;
        Some(Signing::new(signer, header))
    }

    /// The control frames that are sent in place of one.
    fn tampered(&self, to: NodeId, frame: Bytes) -> Vec<Bytes> {
        let tamperer = self.tamperer.lock().clone();
        let decoded = tamperer.and_then(|tamper| Some((tamper, Frame::decode(&frame).ok()?)));
        let Some((tamper, genuine)) = decoded else {
            return vec![frame];
        };
        let encoded = |frame: Frame| frame.encode().ok().map(Bytes::from);
        let frames = tamper(to, &genuine).into_iter();
        let frames = frames.map(|frame| {
            if frame == genuine {
                frame
            } else {
                self.asks(frame)
            }
        });
        frames.filter_map(encoded).collect()
    }

    /// The frame with the node's signature, if it asks for a vote in the node's own name.
    fn asks(&self, frame: Frame) -> Frame {
        let Frame::V1 {
            header,
            mut message,
        } = frame;
        if let Message::Accept { entry, signature } = &mut *message
            && let Some(signer) = self.signer.lock().clone()
        {
            let place = (header.lineage, header.round, header.term);
            let leader = Voter {
                node: header.sender,
                incarnation: header.incarnation,
            };
            *signature = signer.sign(&ask(header.cluster, place, leader, entry.digest()));
        }
        Frame::V1 { header, message }
    }

    /// Passes an event on. A node that has crashed gets nothing.
    fn receive(&self, event: TransportEvent) -> Vec<TransportEvent> {
        if self.crash.has_crashed() {
            return Vec::new();
        }
        match event {
            TransportEvent::Bulk {
                from,
                header,
                stream,
                share,
            } => {
                let stream = Box::new(MortalReceiver::new(stream, self.crash.clone()));
                vec![TransportEvent::Bulk {
                    from,
                    header,
                    stream,
                    share,
                }]
            }
            TransportEvent::Control { from, frame, share } => {
                let hearer = self.hearer.lock().clone();
                let heard = hearer.and_then(|hear| Some(hear(from, &Frame::decode(&frame).ok()?)));
                let Some(heard) = heard else {
                    return vec![TransportEvent::Control { from, frame, share }];
                };
                let passed = |(from, frame): (NodeId, Frame)| {
                    let frame = frame.encode().ok()?.into();
                    let share = Share::default();
                    Some(TransportEvent::Control { from, frame, share })
                };
                heard.into_iter().filter_map(passed).collect()
            }
            event => vec![event],
        }
    }
}

#[async_trait]
impl Transport for FaultyTransport {
    fn local(&self) -> LocalPeer {
        self.inner.local()
    }

    fn connect(&self, address: SocketAddr, give_up_after: Duration) {
        if !self.shared.crash.has_crashed() {
            self.inner.connect(address, give_up_after);
        }
    }

    fn send_control(&self, to: NodeId, frame: Bytes) -> Result<(), SendError> {
        if frame.len() > CONTROL_FRAME_BYTES_MAX {
            return Err(SendError::TooLarge {
                length: frame.len(),
                bound: CONTROL_FRAME_BYTES_MAX,
            });
        }
        if !self.shared.crash.passes(to, &frame) {
            return Ok(());
        }
        let lane = self.shared.lane(to);
        for frame in self.shared.tampered(to, frame) {
            if lane.is_clear() {
                self.inner.send_control(to, frame)?;
            } else {
                lane.queue(frame)?;
            }
        }
        Ok(())
    }

    fn send_datagram(&self, to: NodeId, datagram: Bytes) -> Result<(), SendError> {
        let lane = self.shared.lane(to);
        if self.shared.crash.has_crashed() {
            return Ok(());
        }
        if lane.is_untouched() {
            return self.inner.send_datagram(to, datagram);
        }
        // A datagram that finds the queue full is lost, like one that the fault selects.
        if let Some(due) = lane.datagram_due(datagram.len()) {
            let inner = Arc::downgrade(&self.inner);
            self.shared.runtime.spawn(async move {
                tokio::time::sleep_until(due).await;
                let _ = inner
                    .upgrade()
                    .map(|inner| inner.send_datagram(to, datagram));
            });
        }
        Ok(())
    }

    async fn open_bulk(&self, to: NodeId, header: Bytes) -> Result<Box<dyn BulkSender>, BulkError> {
        let lane = self.shared.lane(to);
        let crash = &self.shared.crash;
        let watched = crash.watched(&header);
        crash.pass(to, watched.as_ref().map(Sending::Opens)).await;
        lane.wait(header.len()).await;
        let (header, first) = self.shared.falsified(to, header);
        let signing = self.shared.signs_anew(&header, &first);
        let inner = self.inner.open_bulk(to, header).await?;
        Ok(Box::new(FaultySender::new(
            MortalSender::new(inner, to, watched, crash.clone()),
            lane,
            first,
            signing,
        )))
    }

    fn disconnect(&self, node: NodeId, reason: &str) {
        if !self.shared.crash.has_crashed() {
            self.inner.disconnect(node, reason);
        }
    }

    fn heard(&self, node: NodeId) -> u64 {
        self.inner.heard(node)
    }

    fn round_trip(&self, node: NodeId) -> Option<Duration> {
        let lane = self.shared.lane(node);
        self.inner
            .round_trip(node)
            .map(|measured| measured + lane.fault().delay + lane.queued())
    }

    fn port_probe(&self, node: NodeId) {
        if !self.shared.lane(node).fault().cut {
            self.inner.port_probe(node);
        }
    }

    fn sent_to(&self, node: NodeId) -> u64 {
        self.inner.sent_to(node)
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    async fn close(&self) {
        let held = |lanes: &BTreeMap<NodeId, Lane>| lanes.values().cloned().collect::<Vec<_>>();
        // The transport of a crashed node is closed only when it no longer matters that its peers
        // learn of its end; its held frames are not drained.
        let lanes = if self.shared.crash.has_crashed() {
            Vec::new()
        } else {
            held(&self.shared.lanes.lock())
        };
        for lane in lanes {
            lane.drained().await;
        }
        self.inner.close().await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::transport::memory::MemoryHub;
    use slowmo_protocol::ident::Incarnation;
    use std::time::Instant;

    const SILENT_AFTER: Duration = Duration::from_millis(100);
    const TWO: NodeId = NodeId(2);

    type Wrapped = (Arc<dyn Transport>, mpsc::Receiver<TransportEvent>, Faults);

    /// A wrapped node 1 that can send to an unwrapped node 2.
    async fn pair() -> (
        Wrapped,
        (Arc<dyn Transport>, mpsc::Receiver<TransportEvent>),
    ) {
        let hub = MemoryHub::new(None);
        let (one, events) = hub.join(
            NodeId(1),
            Incarnation(1),
            SocketAddr::from(([127, 0, 0, 1], 1)),
        );
        let (two, two_events) =
            hub.join(TWO, Incarnation(1), SocketAddr::from(([127, 0, 0, 1], 2)));
        let mut one = wrap(one, events, SILENT_AFTER);
        one.0.connect(two.local().address, SILENT_AFTER);
        assert!(matches!(
            one.1.recv().await,
            Some(TransportEvent::PeerUp { node: TWO, .. })
        ));
        (one, (two, two_events))
    }

    async fn next_frame(events: &mut mpsc::Receiver<TransportEvent>) -> Bytes {
        match events.recv().await {
            Some(TransportEvent::Control { frame, .. }) => frame,
            _ => panic!("a control frame"),
        }
    }

    #[tokio::test]
    async fn a_short_cut_holds_frames_back_and_loses_datagrams() {
        let ((one, _events, faults), (_two, mut two_events)) = pair().await;
        faults.set(
            TWO,
            Fault {
                cut: true,
                ..Fault::default()
            },
        );
        one.send_datagram(TWO, Bytes::new()).unwrap();
        for index in 0..3u8 {
            one.send_control(TWO, vec![index].into()).unwrap();
        }
        assert!(
            tokio::time::timeout(Duration::from_millis(20), two_events.recv())
                .await
                .is_err()
        );
        faults.heal();
        one.send_control(TWO, vec![3].into()).unwrap();
        for index in 0..4u8 {
            assert_eq!(next_frame(&mut two_events).await[..], [index]);
        }
    }

    #[tokio::test]
    async fn a_long_cut_silences_the_peer() {
        let ((one, mut events, faults), _two) = pair().await;
        faults.set(
            TWO,
            Fault {
                cut: true,
                ..Fault::default()
            },
        );
        one.send_control(TWO, Bytes::new()).unwrap();
        let Some(TransportEvent::PeerDown { node, reason, .. }) = events.recv().await else {
            panic!("down")
        };
        assert_eq!((node, reason), (TWO, DownReason::Silent(SILENT_AFTER)));
    }

    #[tokio::test]
    async fn delay_and_throttle_take_their_time() {
        let ((one, _events, faults), (_two, mut two_events)) = pair().await;
        let begun = Instant::now();
        faults.set(
            TWO,
            Fault {
                delay: Duration::from_millis(30),
                ..Fault::default()
            },
        );
        (0..5).for_each(|_| one.send_control(TWO, Bytes::new()).unwrap());
        for _ in 0..5 {
            next_frame(&mut two_events).await;
        }
        let took = begun.elapsed();
        assert!(
            took >= Duration::from_millis(30) && took < Duration::from_millis(120),
            "{took:?}: delays must overlap"
        );

        let begun = Instant::now();
        faults.set(
            TWO,
            Fault {
                bytes_per_second: Some(10 << 20),
                ..Fault::default()
            },
        );
        let mut sender = one.open_bulk(TWO, Bytes::new()).await.unwrap();
        sender.send(vec![0; 1 << 20].into()).await.unwrap();
        assert!(
            begun.elapsed() >= Duration::from_millis(90),
            "{:?}",
            begun.elapsed()
        );
    }

    #[tokio::test]
    async fn a_saturated_uplink_makes_control_and_datagrams_wait_but_not_starve() {
        let ((one, _events, faults), (_two, mut two_events)) = pair().await;
        // 10 Mbit/s: the bulk stream alone would take 3.3 seconds.
        faults.throttle(Some(1_250_000));
        let bulk = one.clone();
        let sending = tokio::spawn(async move {
            let mut sender = bulk.open_bulk(TWO, Bytes::new()).await.unwrap();
            let _ = sender.send(vec![0; 4 << 20].into()).await;
        });
        let Some(TransportEvent::Bulk { mut stream, .. }) = two_events.recv().await else {
            panic!("a stream")
        };
        let reading = tokio::spawn(async move { stream.read_exact(&mut vec![0; 4 << 20]).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let begun = Instant::now();
        for index in 0..20u8 {
            one.send_control(TWO, vec![index].into()).unwrap();
            one.send_datagram(TWO, vec![index].into()).unwrap();
        }
        for _ in 0..40 {
            let event = two_events.recv().await.unwrap();
            assert!(matches!(
                event,
                TransportEvent::Control { .. } | TransportEvent::Datagram { .. }
            ));
        }
        let took = begun.elapsed();
        assert!(
            took >= Duration::from_millis(100) && took < Duration::from_millis(600),
            "{took:?}: behind one full queue"
        );
        assert!(one.round_trip(TWO).unwrap() >= Duration::from_millis(100));
        assert!(!sending.is_finished());
        sending.abort();
        reading.abort();
    }
}
