//! Reads what a peer sends on the control connection that it dialed: one stream of frames, and
//! datagrams.

use crate::transport::accepted::Accepted;
use crate::transport::sessions::Session;
use bytes::BytesMut;
use quinn::{Connection, ReadExactError, RecvStream};
use slowmo_actors::ports::transport::{DownReason, Share, TransportEvent};
use slowmo_protocol::wire::CONTROL_FRAME_BYTES_MAX;
use std::sync::Arc;

/// Starts the reader tasks, which run until the connection ends. Frames are read once those of
/// `earlier` were, the connection whose place this one takes.
pub(super) fn start(
    connection: Connection,
    session: Arc<Session>,
    accepted: Arc<Accepted>,
    earlier: Option<Arc<Accepted>>,
) {
    let reading = session.reading();
    tokio::spawn(receive_datagrams(
        connection.clone(),
        session.clone(),
        accepted.clone(),
    ));
    tokio::spawn(async move {
        receive_control(&connection, &session, &accepted, earlier).await;
        accepted.end_reading();
        drop(reading);
    });
}

async fn receive_control(
    connection: &Connection,
    session: &Session,
    accepted: &Accepted,
    earlier: Option<Arc<Accepted>>,
) {
    let Ok(mut stream) = connection.accept_uni().await else {
        return;
    };
    accepted.mark_used();
    if let Some(earlier) = earlier {
        tokio::select! {
            () = earlier.reading_ended() => {}
            _ = session.closing() => return,
        }
    }
    loop {
        let event = match read_frame(&mut stream).await {
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
        return Err(format!(
            "a control frame of {length} bytes, the bound is {CONTROL_FRAME_BYTES_MAX}"
        ));
    }
    let mut frame = BytesMut::zeroed(length);
    match stream.read_exact(&mut frame).await {
        Ok(()) => Ok(Some(frame)),
        Err(ReadExactError::FinishedEarly(_)) => Err("a control frame was cut off".into()),
        Err(_) => Ok(None),
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
