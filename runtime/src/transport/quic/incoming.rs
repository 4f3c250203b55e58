//! Reads what a peer sends on the control connection that it dialed: one stream of frames, which may
//! go past the connection on this machine, and datagrams.

use super::framing::{BlockError, read_block};
use super::same_host::{ControlListener, ControlReader};
use crate::transport::accepted::Accepted;
use crate::transport::sessions::Session;
use bytes::BytesMut;
use quinn::{Connection, RecvStream};
use slowmo_actors::ports::transport::{DownReason, Share, TransportEvent};
use slowmo_protocol::wire::CONTROL_FRAME_BYTES_MAX;
use std::sync::Arc;

/// Starts the reader tasks, which run until the connection ends. Frames are read once those of
/// `earlier` were, the connection whose place this one takes. They come to `same_host`, or on a
/// stream of the connection.
pub(super) fn start(
    connection: Connection,
    session: Arc<Session>,
    accepted: Arc<Accepted>,
    earlier: Option<Arc<Accepted>>,
    same_host: Option<ControlListener>,
) {
    let reading = session.reading();
    tokio::spawn(receive_datagrams(
        connection.clone(),
        session.clone(),
        accepted.clone(),
    ));
    tokio::spawn(async move {
        let frames = Frames::begin(&connection, same_host).await;
        if let Some(frames) = frames {
            receive_control(frames, &connection, &session, &accepted, earlier).await;
        }
        accepted.end_reading();
        drop(reading);
    });
}

/// Where a peer's frames come from.
enum Frames {
    Quic(RecvStream),
    SameHost(ControlReader),
}

impl Frames {
    /// Waits until the peer begins to send frames, on one way or the other.
    async fn begin(connection: &Connection, same_host: Option<ControlListener>) -> Option<Self> {
        let socket = async {
            match &same_host {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            reader = socket => Some(Self::SameHost(reader)),
            stream = connection.accept_uni() => stream.ok().map(Self::Quic),
        }
    }

    /// Reads the next frame; `None` if there are no more.
    async fn next(
        &mut self,
        connection: &Connection,
        session: &Session,
    ) -> Result<Option<BytesMut>, BlockError> {
        match self {
            Self::Quic(stream) => read_block(stream, CONTROL_FRAME_BYTES_MAX).await,
            Self::SameHost(reader) => {
                let next = reader.next(connection).await;
                // The end of a socket is no sign of life.
                if let Ok(Some(_)) = next {
                    session.pulse.count();
                }
                next
            }
        }
    }
}

async fn receive_control(
    mut frames: Frames,
    connection: &Connection,
    session: &Session,
    accepted: &Accepted,
    earlier: Option<Arc<Accepted>>,
) {
    accepted.mark_used();
    if let Some(earlier) = earlier {
        tokio::select! {
            () = earlier.reading_ended() => {}
            _ = session.closing() => return,
        }
    }
    loop {
        let event = match frames.next(connection, session).await {
            Ok(Some(frame)) => TransportEvent::Control {
                from: session.peer.node,
                frame: frame.freeze(),
                share: Share::default(),
            },
            Ok(None) => return,
            Err(error) => return session.close(DownReason::ProtocolViolation(violation(error))),
        };
        if session.deliver(event).await.is_err() {
            return;
        }
    }
}

fn violation(error: BlockError) -> String {
    match error {
        BlockError::TooLong(length) => {
            format!("a control frame of {length} bytes, the bound is {CONTROL_FRAME_BYTES_MAX}")
        }
        BlockError::CutOff => "a control frame was cut off".to_owned(),
    }
}

async fn receive_datagrams(connection: Connection, session: Arc<Session>, accepted: Arc<Accepted>) {
    while let Ok(datagram) = connection.read_datagram().await {
        accepted.mark_used();
        let event = TransportEvent::Datagram {
            from: session.peer.node,
            datagram,
            share: Share::default(),
        };
        if session.deliver(event).await.is_err() {
            return;
        }
    }
}
