//! Sending to one peer: the control queue and its stream, datagrams, and the connection on which
//! bulk streams are opened.

use super::Node;
use super::bulk::{self, Delivering};
use super::close::{CloseCode, close};
use super::pair::Both;
use super::same_host::{self, ControlWriter};
use crate::transport::sessions::Session;
use crate::transport::watched::Watched;
use bytes::Bytes;
use quinn::{Connection, SendStream, WriteError};
use slowmo_actors::ports::transport::{BulkError, BulkSender, CONTROL_QUEUE_FRAMES_MAX, SendError};
use slowmo_protocol::ident::NodeId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Largest number of frames that are passed to quinn in one call.
const FRAMES_PER_WRITE: usize = 64;
/// Longest wait for the reason for which a peer ended its control socket.
const REASON_WAIT_MAX: Duration = Duration::from_millis(300);
/// How long connections are kept after others took their place, for those who looked them up just
/// before and did not send yet.
const LAST_USE_WAIT: Duration = Duration::from_millis(100);

/// The two connections that this node dialed to a peer.
pub(super) struct Outgoing {
    node: NodeId,
    /// Bytes sent on connections whose place these have taken.
    sent_before: u64,
    /// Set once other connections have taken the place of these, and the peer has received all
    /// frames that were sent on these.
    moved: Watched<bool>,
    replaced: AtomicBool,
    pub(super) control_connection: Connection,
    pub(super) bulk_connection: Connection,
    /// The way past QUIC, if the peer is on this machine.
    same_host: Option<same_host::Path>,
    pub(super) delivering: Delivering,
    control: mpsc::Sender<ControlCommand>,
}

/// A command to the writer of the control stream.
pub(super) enum ControlCommand {
    /// Send a frame.
    Frame(Bytes),
    /// End the stream, and notify the sender when the peer has received everything.
    Finish(oneshot::Sender<()>),
    /// End the stream and go on with one on another connection; notify the sender when the peer has
    /// received everything that was sent before.
    Move(Way, oneshot::Sender<()>),
}

/// The way of control frames to a peer.
#[derive(Clone)]
pub(super) struct Way {
    connection: Connection,
    /// The way past the connection, if the peer is on this machine.
    same_host: Option<same_host::Path>,
}

impl Outgoing {
    pub(super) fn new(node: NodeId, both: &Both) -> (Arc<Self>, mpsc::Receiver<ControlCommand>) {
        let (sender, queue) = mpsc::channel(CONTROL_QUEUE_FRAMES_MAX);
        let outgoing = Self {
            node,
            sent_before: 0,
            moved: Watched::new(false),
            replaced: AtomicBool::new(false),
            control_connection: both.control.clone(),
            bulk_connection: both.bulk.clone(),
            same_host: both.same_host.clone(),
            delivering: Delivering::new(),
            control: sender,
        };
        (Arc::new(outgoing), queue)
    }

    /// Connections that take the place of these; frames that are queued travel on them once
    /// [`Outgoing::give_way`] is called.
    pub(super) fn renewed(&self, both: &Both) -> Arc<Self> {
        Arc::new(Self {
            node: self.node,
            sent_before: self.sent(),
            moved: Watched::new(false),
            replaced: AtomicBool::new(false),
            control_connection: both.control.clone(),
            bulk_connection: both.bulk.clone(),
            same_host: both.same_host.clone(),
            delivering: self.delivering.of_successor(),
            control: self.control.clone(),
        })
    }

    /// Ties both connections to the session.
    pub(super) fn watch(self: &Arc<Self>, node: &Arc<Node>, session: &Arc<Session>) {
        node.watch(self, &self.control_connection, session);
        node.watch(self, &self.bulk_connection, session);
    }

    /// Starts the control writer.
    pub(super) fn start(&self, node: &Arc<Node>, queue: mpsc::Receiver<ControlCommand>) {
        node.runtime.spawn(write_control(self.way(), queue));
    }

    fn way(&self) -> Way {
        Way {
            connection: self.control_connection.clone(),
            same_host: self.same_host.clone(),
        }
    }

    /// Lets another take the place of these connections, which end once the peer has received what
    /// was sent on them.
    pub(super) async fn give_way(&self, to: &Self) {
        self.replaced.store(true, Ordering::Release);
        let (done, received) = oneshot::channel();
        let command = ControlCommand::Move(to.way(), done);
        // If the writer is gone, so is the session.
        if self.control.send(command).await.is_ok() && received.await.is_ok() {
            tokio::time::sleep(LAST_USE_WAIT).await;
            self.all_received().await;
            self.delivering.unused().await;
            self.moved.set(true);
        }
    }

    /// Whether others have taken the place of these connections.
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Waits until these connections are of no use any more.
    pub(super) async fn moved(&self) {
        self.moved.wait_for(|moved| *moved).await;
    }

    /// Bytes sent to the peer, on these connections and those before.
    pub(super) fn sent(&self) -> u64 {
        let of = |connection: &Connection| connection.stats().udp_tx.bytes;
        let same_host = self.same_host.as_ref().map_or(0, same_host::Path::sent);
        self.sent_before + of(&self.control_connection) + of(&self.bulk_connection) + same_host
    }

    /// Opens a bulk stream and sends its header.
    pub(super) async fn open_bulk(&self, header: &[u8]) -> Result<Box<dyn BulkSender>, BulkError> {
        if let Some(path) = &self.same_host
            && let Ok(sender) = path.open(&self.delivering, header).await
        {
            return Ok(sender);
        }
        bulk::open(&self.bulk_connection, &self.delivering, header).await
    }

    pub(super) fn queue_control(&self, frame: Bytes) -> Result<(), SendError> {
        self.control
            .try_send(ControlCommand::Frame(frame))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SendError::QueueFull(self.node),
                mpsc::error::TrySendError::Closed(_) => SendError::NotConnected(self.node),
            })
    }

    pub(super) fn send_datagram(&self, datagram: Bytes) -> Result<(), SendError> {
        let length = datagram.len();
        self.control_connection
            .send_datagram(datagram)
            .map_err(|error| match error {
                quinn::SendDatagramError::TooLarge => SendError::TooLarge {
                    length,
                    bound: self.control_connection.max_datagram_size().unwrap_or(0),
                },
                _ => SendError::NotConnected(self.node),
            })
    }

    /// Waits until the peer has received every queued frame; nothing can be queued afterwards.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self
            .control
            .send(ControlCommand::Finish(done))
            .await
            .is_ok()
        {
            let _ = flushed.await;
        }
    }

    /// Waits until the peer has received every bulk stream that was finished.
    pub(super) async fn deliver_streams(&self) {
        self.all_received().await;
        self.delivering.done().await;
    }

    async fn all_received(&self) {
        if let Some(path) = &self.same_host {
            path.all_received().await;
        }
    }
}

/// The stream on which frames travel.
enum Frames {
    Quic(SendStream),
    SameHost(ControlWriter),
}

impl Frames {
    /// Opens it; `None` if the connection has ended.
    async fn open(way: &Way) -> Option<Self> {
        if let Some(path) = &way.same_host
            && let Some(writer) = ControlWriter::open(&way.connection, path).await
        {
            return Some(Self::SameHost(writer));
        }
        way.connection.open_uni().await.ok().map(Self::Quic)
    }

    /// Writes frames in this order; `None` if that failed.
    async fn write(&mut self, frames: Vec<Bytes>, connection: &Connection) -> Option<()> {
        let writer = match self {
            Self::Quic(stream) => return write_frames(stream, frames).await.ok(),
            Self::SameHost(writer) => writer,
        };
        let written = tokio::select! {
            biased;
            _ = connection.closed() => return None,
            written = writer.write(&frames) => written,
        };
        if written.is_err() {
            // The peer is gone or going: its reason may be on its way. Frames may be lost, so
            // nothing may follow them.
            if timeout(REASON_WAIT_MAX, connection.closed()).await.is_err() {
                close(connection, CloseCode::Dropped, "its control socket broke");
            }
        }
        written.ok()
    }

    /// Ends the stream, and waits until the peer has received everything; `None` if that is not
    /// known.
    async fn finish(self, connection: &Connection) -> Option<()> {
        match self {
            Self::Quic(mut stream) => {
                let _ = stream.finish();
                matches!(stream.stopped().await, Ok(None)).then_some(())
            }
            Self::SameHost(writer) => tokio::select! {
                biased;
                ended = writer.finish() => ended.ok(),
                _ = connection.closed() => None,
            },
        }
    }
}

async fn write_control(mut way: Way, mut queue: mpsc::Receiver<ControlCommand>) {
    let Some(mut stream) = Frames::open(&way).await else {
        return;
    };
    let mut commands = Vec::with_capacity(FRAMES_PER_WRITE);
    loop {
        let received = tokio::select! {
            biased;
            received = queue.recv_many(&mut commands, FRAMES_PER_WRITE) => received,
            _ = way.connection.closed() => return,
        };
        if received == 0 {
            return;
        }
        let mut finish = None;
        let mut next = None;
        let frames = commands.drain(..).filter_map(|command| match command {
            ControlCommand::Frame(frame) => Some(frame),
            ControlCommand::Finish(done) => {
                finish = Some(done);
                None
            }
            ControlCommand::Move(way, done) => {
                next = Some((way, done));
                None
            }
        });
        let frames: Vec<Bytes> = frames.collect();
        if stream.write(frames, &way.connection).await.is_none() {
            return;
        }
        if let Some(done) = finish {
            let _ = stream.finish(&way.connection).await;
            let _ = done.send(());
            return;
        }
        if let Some((other, done)) = next {
            let Some(opened) = Frames::open(&other).await else {
                return;
            };
            // The peer reads the next stream after the end of this one.
            let last = std::mem::replace(&mut stream, opened);
            let connection = std::mem::replace(&mut way, other).connection;
            tokio::spawn(async move {
                if last.finish(&connection).await.is_some() {
                    let _ = done.send(());
                }
            });
        }
    }
}

async fn write_frames(stream: &mut SendStream, frames: Vec<Bytes>) -> Result<(), WriteError> {
    let mut chunks = Vec::with_capacity(frames.len() * 2);
    for frame in frames {
        chunks.push(Bytes::copy_from_slice(&(frame.len() as u32).to_le_bytes()));
        chunks.push(frame);
    }
    stream.write_all_chunks(&mut chunks).await
}
