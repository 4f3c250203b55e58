//! Sending to one peer: the control queue and its stream, datagrams, and the connection on which
//! bulk streams are opened.

use super::Node;
use super::bulk::Delivering;
use crate::transport::sessions::Session;
use bytes::Bytes;
use quinn::{Connection, SendStream, WriteError};
use slowmo_actors::ports::transport::{CONTROL_QUEUE_FRAMES_MAX, SendError};
use slowmo_protocol::ident::NodeId;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Largest number of frames that are passed to quinn in one call.
const FRAMES_PER_WRITE: usize = 64;

/// The two connections that this node dialed to a peer.
pub(super) struct Outgoing {
    node: NodeId,
    pub(super) control_connection: Connection,
    pub(super) bulk_connection: Connection,
    pub(super) delivering: Delivering,
    control: mpsc::Sender<ControlCommand>,
}

/// A command to the writer of the control stream.
pub(super) enum ControlCommand {
    /// Send a frame.
    Frame(Bytes),
    /// End the stream, and notify the sender when the peer has received everything.
    Finish(oneshot::Sender<()>),
}

impl Outgoing {
    pub(super) fn new(
        node: NodeId,
        control: Connection,
        bulk: Connection,
    ) -> (Arc<Self>, mpsc::Receiver<ControlCommand>) {
        let (sender, queue) = mpsc::channel(CONTROL_QUEUE_FRAMES_MAX);
        let outgoing = Self {
            node,
            control_connection: control,
            bulk_connection: bulk,
            delivering: Delivering::new(),
            control: sender,
        };
        (Arc::new(outgoing), queue)
    }

    /// Starts the control writer and ties both connections to the session.
    pub(super) fn start(
        &self,
        node: &Arc<Node>,
        session: &Arc<Session>,
        queue: mpsc::Receiver<ControlCommand>,
    ) {
        node.watch(&self.control_connection, session);
        node.watch(&self.bulk_connection, session);
        node.runtime
            .spawn(write_control(self.control_connection.clone(), queue));
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
        self.delivering.done().await;
    }
}

async fn write_control(connection: Connection, mut queue: mpsc::Receiver<ControlCommand>) {
    let Ok(mut stream) = connection.open_uni().await else {
        return;
    };
    let mut commands = Vec::with_capacity(FRAMES_PER_WRITE);
    loop {
        let received = tokio::select! {
            biased;
            received = queue.recv_many(&mut commands, FRAMES_PER_WRITE) => received,
            _ = connection.closed() => return,
        };
        if received == 0 {
            return;
        }
        let mut finish = None;
        let frames = commands.drain(..).filter_map(|command| match command {
            ControlCommand::Frame(frame) => Some(frame),
            ControlCommand::Finish(done) => {
                finish = Some(done);
                None
            }
        });
        let frames: Vec<Bytes> = frames.collect();
        if write_frames(&mut stream, frames).await.is_err() {
            return;
        }
        if let Some(done) = finish {
            let _ = stream.finish();
            let _ = stream.stopped().await;
            let _ = done.send(());
            return;
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
