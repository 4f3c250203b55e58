//! Crash injection: a watcher of what a node sends decides when it crashes. Touches nothing outside
//! the process.
//!
//! A crashed node neither sends nor receives anything, and does not close its connections: like a
//! node whose process was killed, it is silent until its peers detect that. What it passed to the
//! transport before is still delivered.

use crate::transport::watched::Watched;
use bytes::Bytes;
use parking_lot::Mutex;
use slowmo_actors::ports::transport::{BulkError, BulkReceiver, BulkSender};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::wire::{BulkHeader, Frame};
use std::any::Any;
use std::sync::Arc;

/// A frame, or a part of a bulk stream, that a node is about to send.
#[derive(Clone, Copy, Debug)]
pub enum Sending<'a> {
    /// A control frame.
    Control(&'a Frame),
    /// A bulk stream's header.
    Opens(&'a BulkHeader),
    /// A chunk of a bulk stream.
    Values(&'a BulkHeader),
    /// The end of a bulk stream.
    Ends(&'a BulkHeader),
}

/// Decision of a [`Watcher`] on a node that is about to send something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The node sends it.
    Sends,
    /// The node crashes before it sends.
    Crashes,
}

/// Callback that gets the receiver and what the node is about to send, and decides whether the node
/// crashes.
pub type Watcher = Arc<dyn Fn(NodeId, Sending<'_>) -> Fate + Send + Sync>;

/// Crash state of a node, and the watcher that may make it crash.
#[derive(Default)]
pub(super) struct Crash {
    crashed: Watched<bool>,
    watcher: Mutex<Option<Watcher>>,
    /// Stream ends of the crashed node, kept open so that only a timeout at the peers ends them.
    graveyard: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Crash {
    pub(super) fn watch(&self, watcher: Watcher) {
        self.watcher.lock().replace(watcher);
    }

    /// Marks the node as crashed; returns `true` the first time.
    pub(super) fn crash(&self) -> bool {
        !self.crashed.set(true)
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.crashed.get()
    }

    pub(super) async fn crashed(&self) {
        self.crashed.wait_for(|crashed| *crashed).await;
    }

    /// Keeps a crashed node's end of a stream open, so that the peer is not notified.
    pub(super) fn mark_down(&self, end: impl Any + Send) {
        self.graveyard.lock().push(Box::new(end));
    }

    /// Whether a control frame may still be sent.
    pub(super) fn passes(&self, to: NodeId, frame: &Bytes) -> bool {
        if self.has_crashed() {
            return false;
        }
        let Some(watcher) = self.watcher() else {
            return true;
        };
        // A frame that does not decode comes from a test of the transport alone, and passes.
        Frame::decode(frame).map_or(true, |frame| {
            self.judge(&watcher, to, Sending::Control(&frame))
        })
    }

    /// The decoded header of a stream, if there is a watcher.
    pub(super) fn watched(&self, header: &Bytes) -> Option<BulkHeader> {
        self.watcher()?;
        BulkHeader::decode(header).ok()
    }

    /// Asks the watcher about `sending`; never returns once the node has crashed.
    pub(super) async fn pass(&self, to: NodeId, sending: Option<Sending<'_>>) {
        let dies = || {
            sending
                .zip(self.watcher())
                .is_some_and(|(sending, watcher)| !self.judge(&watcher, to, sending))
        };
        if self.has_crashed() || dies() {
            std::future::pending().await
        }
    }

    fn watcher(&self) -> Option<Watcher> {
        self.watcher.lock().clone()
    }

    /// Asks the watcher; returns whether the node may still send. The watcher is called with no
    /// lock held: it may set faults and crash other nodes.
    fn judge(&self, watcher: &Watcher, to: NodeId, sending: Sending<'_>) -> bool {
        if watcher(to, sending) == Fate::Crashes {
            self.crash();
        }
        !self.has_crashed()
    }
}

/// The receiving end of a stream at a node that may crash.
pub(super) struct MortalReceiver {
    inner: Option<Box<dyn BulkReceiver>>,
    crash: Arc<Crash>,
}

impl MortalReceiver {
    pub(super) fn new(inner: Box<dyn BulkReceiver>, crash: Arc<Crash>) -> Self {
        Self {
            inner: Some(inner),
            crash,
        }
    }
}

#[async_trait::async_trait]
impl BulkReceiver for MortalReceiver {
    async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        match &mut self.inner {
            Some(inner) => inner.read_exact(into).await,
            None => Err(BulkError::Reset),
        }
    }

    async fn expect_end(&mut self) -> Result<(), BulkError> {
        match &mut self.inner {
            Some(inner) => inner.expect_end().await,
            None => Err(BulkError::Reset),
        }
    }
}

impl Drop for MortalReceiver {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take()
            && self.crash.has_crashed()
        {
            self.crash.mark_down(inner);
        }
    }
}

/// The sending end of a stream at a node that may crash.
pub(super) struct MortalSender {
    inner: Option<Box<dyn BulkSender>>,
    to: NodeId,
    header: Option<BulkHeader>,
    crash: Arc<Crash>,
}

impl MortalSender {
    pub(super) fn new(
        inner: Box<dyn BulkSender>,
        to: NodeId,
        header: Option<BulkHeader>,
        crash: Arc<Crash>,
    ) -> Self {
        Self {
            inner: Some(inner),
            to,
            header,
            crash,
        }
    }

    /// Asks the watcher before a chunk is sent; never returns once the node has crashed.
    pub(super) async fn pass(&mut self) {
        self.crash
            .pass(self.to, self.header.as_ref().map(Sending::Values))
            .await;
    }

    pub(super) async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError> {
        match &mut self.inner {
            Some(inner) => inner.send(chunk).await,
            None => Err(BulkError::Reset),
        }
    }

    pub(super) fn hurry(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.hurry();
        }
    }

    pub(super) async fn finish(mut self) -> Result<(), BulkError> {
        self.crash
            .pass(self.to, self.header.as_ref().map(Sending::Ends))
            .await;
        match self.inner.take() {
            Some(inner) => inner.finish().await,
            None => Err(BulkError::Reset),
        }
    }
}

impl Drop for MortalSender {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take()
            && self.crash.has_crashed()
        {
            self.crash.mark_down(inner);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::transport::faulty::wrap;
    use crate::transport::memory::MemoryHub;
    use slowmo_actors::ports::transport::TransportEvent;
    use slowmo_protocol::ident::{ClusterId, Epoch, Incarnation, Lineage, Round, Term};
    use slowmo_protocol::wire::{Header, Message};
    use std::net::SocketAddr;
    use std::time::Duration;

    const TWO: NodeId = NodeId(2);
    const SILENCE: Duration = Duration::from_millis(50);

    fn frame(round: u64) -> Bytes {
        let cluster = ClusterId(0);
        let lineage = Lineage(1);
        let epoch = Epoch(1);
        let term = Term::default();
        let header = Header {
            cluster,
            lineage,
            epoch,
            round: Round(round),
            term,
            attempt: 0,
            sender: NodeId(1),
            incarnation: Incarnation(1),
        };
        Frame::V1 {
            header,
            message: Box::new(Message::Prepare),
        }
        .encode()
        .unwrap()
        .into()
    }

    #[tokio::test]
    async fn a_node_crashes_between_two_frames_and_nobody_is_told() {
        let hub = MemoryHub::new(None);
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let (one, events) = hub.join(NodeId(1), Incarnation(1), address(1));
        let (two, mut heard) = hub.join(TWO, Incarnation(1), address(2));
        let (one, mut events, faults) = wrap(one, events, SILENCE);
        one.connect(two.local().address, SILENCE);
        assert!(matches!(
            events.recv().await,
            Some(TransportEvent::PeerUp { node: TWO, .. })
        ));
        faults.watch(Arc::new(|to, sending| match sending {
            Sending::Control(Frame::V1 { header, .. }) if to == TWO && header.round == Round(7) => {
                Fate::Crashes
            }
            _ => Fate::Sends,
        }));
        let stream = one.open_bulk(TWO, Bytes::new()).await.unwrap();
        for round in [6, 7, 8] {
            one.send_control(TWO, frame(round)).unwrap();
        }
        faults.crashed().await;
        drop(stream);
        let mut streams = Vec::new();
        while streams.len() < 2 {
            streams.push(heard.recv().await.unwrap());
        }
        assert!(streams.iter().any(|event| matches!(
            event,
            TransportEvent::Control { frame: sent, .. } if *sent == frame(6)
        )));
        let Some(TransportEvent::Bulk { mut stream, .. }) = streams
            .into_iter()
            .find(|event| matches!(event, TransportEvent::Bulk { .. }))
        else {
            panic!("a stream")
        };
        // Neither another frame, nor the end of the stream, nor the end of the connection arrives.
        assert!(tokio::time::timeout(SILENCE, heard.recv()).await.is_err());
        assert!(
            tokio::time::timeout(SILENCE, stream.read_exact(&mut [0]))
                .await
                .is_err()
        );
    }
}
