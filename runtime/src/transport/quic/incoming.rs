//! Reads what a peer sends on the control connection that it dialed: one stream of frames, which may
//! go past the connection on this machine, and datagrams.

use super::same_host::{ControlListener, ControlReader};
use crate::transport::accepted::Accepted;
use crate::transport::sessions::Session;
use bytes::BytesMut;
use quinn::{Connection, ReadExactError, RecvStream};
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
    ) -> Result<Option<BytesMut>, String> {
        let reader = match self {
            Self::Quic(stream) => return read_frame(stream).await,
            Self::SameHost(reader) => reader,
        };
        // What the peer wrote is read also after its connection ended.
        let next = tokio::select! {
            biased;
            next = reader.next() => next,
            _ = connection.closed() => None,
        };
        session.pulse.count();
        next.transpose().map_err(too_long)
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
            Err(violation) => return session.close(DownReason::ProtocolViolation(violation)),
        };
        if session.deliver(event).await.is_err() {
            return;
        }
    }
}

/// Reads the next frame; `None` at the end of the stream or of the connection.
async fn read_frame(stream: &mut RecvStream) -> Result<Option<BytesMut>, String> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(read)) if read > 0 => {
            return Err("a control frame was cut off".into());
        }
        Err(_) => return Ok(None),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > CONTROL_FRAME_BYTES_MAX {
        return Err(too_long(length));
    }
    let mut frame = BytesMut::zeroed(length);
    match stream.read_exact(&mut frame).await {
        Ok(()) => Ok(Some(frame)),
        Err(ReadExactError::FinishedEarly(_)) => Err("a control frame was cut off".into()),
        Err(_) => Ok(None),
    }
}

fn too_long(length: usize) -> String {
    format!("a control frame of {length} bytes, the bound is {CONTROL_FRAME_BYTES_MAX}")
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
