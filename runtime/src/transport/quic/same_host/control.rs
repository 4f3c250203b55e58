//! Control frames between nodes of one machine: one socket for each direction, on which frames
//! follow each other, each after its length.

use super::{Door, HEADER_WAIT_MAX, Path, READ_BUFFER_BYTES, Secrets};
use crate::transport::quic::traffic::SameHostBytes;
use bytes::{BufMut, Bytes, BytesMut};
use quinn::Connection;
use slowmo_protocol::wire::CONTROL_FRAME_BYTES_MAX;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Frames are copied into writes of at most this many bytes; longer ones are written by themselves.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// The accepting end of a control connection.
pub(in super::super) struct ControlListener {
    door: Door,
    bytes: Arc<SameHostBytes>,
}

impl ControlListener {
    /// Listens for the frames of an accepted control connection whose dialer is on this machine.
    pub(in super::super) fn bind(
        connection: &Connection,
        bytes: Arc<SameHostBytes>,
    ) -> Option<Self> {
        let door = Door::bind(connection)?;
        Some(Self { door, bytes })
    }

    /// Waits for the peer's socket.
    pub(in super::super) async fn accept(&self) -> ControlReader {
        loop {
            let stream = self.door.next().await;
            let mut stream = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
            let proved = timeout(HEADER_WAIT_MAX, self.door.secrets.is_proved(&mut stream));
            // Whoever does not begin as the peer does is nobody.
            if let Ok(Some(())) = proved.await {
                return ControlReader {
                    stream,
                    bytes: Arc::clone(&self.bytes),
                };
            }
        }
    }
}

/// Reads the frames of a peer.
pub(in super::super) struct ControlReader {
    stream: BufReader<UnixStream>,
    bytes: Arc<SameHostBytes>,
}

impl ControlReader {
    /// Reads the next frame; `None` when the peer sends no more, also if it died within a frame.
    /// A frame that is too long is told by its length.
    pub(in super::super) async fn next(&mut self) -> Option<Result<BytesMut, usize>> {
        let length = self.stream.read_u32_le().await.ok()? as usize;
        if length > CONTROL_FRAME_BYTES_MAX {
            return Some(Err(length));
        }
        let mut frame = BytesMut::zeroed(length);
        self.stream.read_exact(&mut frame).await.ok()?;
        self.bytes.count_received(length);
        Some(Ok(frame))
    }
}

/// Writes frames to a peer.
pub(in super::super) struct ControlWriter {
    stream: UnixStream,
    bytes: Arc<SameHostBytes>,
}

impl ControlWriter {
    /// Opens the socket to the acceptor of a control connection; `None` if it does not listen.
    pub(in super::super) async fn open(connection: &Connection, path: &Path) -> Option<Self> {
        let secrets = Secrets::of(connection)?;
        let mut stream = secrets.connect().await.ok()?;
        stream.write_all(&secrets.proof()).await.ok()?;
        let bytes = path.bytes();
        Some(Self { stream, bytes })
    }

    /// Writes frames in this order.
    pub(in super::super) async fn write(&mut self, frames: &[Bytes]) -> io::Result<()> {
        let mut gathered = BytesMut::new();
        for frame in frames {
            if gathered.len() + frame.len() > WRITE_BYTES_MAX {
                self.stream.write_all_buf(&mut gathered).await?;
            }
            gathered.put_u32_le(frame.len() as u32);
            if frame.len() > WRITE_BYTES_MAX {
                self.stream.write_all_buf(&mut gathered).await?;
                self.stream.write_all(frame).await?;
            } else {
                gathered.put_slice(frame);
            }
            self.bytes.count_sent(frame.len());
        }
        self.stream.write_all_buf(&mut gathered).await
    }

    /// Ends the frames, and waits until the peer has read them all.
    pub(in super::super) async fn finish(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        // The peer writes nothing. It closes its end once it has read this one's end.
        let mut none = [0; 1];
        self.stream.read(&mut none).await.map(|_| ())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pair() -> (ControlWriter, ControlReader) {
        let (one, two) = UnixStream::pair().unwrap();
        let writer = ControlWriter {
            stream: one,
            bytes: Arc::default(),
        };
        let reader = ControlReader {
            stream: BufReader::new(two),
            bytes: Arc::default(),
        };
        (writer, reader)
    }

    #[tokio::test]
    async fn frames_of_all_lengths_arrive_in_order() {
        let (mut writer, mut reader) = pair();
        let lengths = [0, 1, 70_000, 3, WRITE_BYTES_MAX, WRITE_BYTES_MAX - 1, 5];
        let frame = |number: usize| Bytes::from(vec![number as u8; lengths[number]]);
        let frames: Vec<Bytes> = (0..lengths.len()).map(frame).collect();
        let read = async {
            for frame in &frames {
                assert_eq!(reader.next().await.unwrap().unwrap(), frame);
            }
            assert!(reader.next().await.is_none());
            let counted = reader.bytes.received();
            drop(reader);
            counted
        };
        let written = async {
            writer.write(&frames).await.unwrap();
            let counted = writer.bytes.sent();
            writer.finish().await.unwrap();
            counted
        };
        let (received, sent) = tokio::join!(read, written);
        let total: usize = lengths.iter().sum();
        assert_eq!((received, sent), (total as u64, total as u64));
    }

    #[tokio::test]
    async fn the_end_waits_until_the_peer_has_read_everything() {
        let (mut writer, mut reader) = pair();
        writer.write(&["frame".into()]).await.unwrap();
        let finished = tokio::spawn(writer.finish());
        tokio::task::yield_now().await;
        assert!(!finished.is_finished());
        assert_eq!(reader.next().await.unwrap().unwrap(), "frame");
        assert!(reader.next().await.is_none());
        drop(reader);
        finished.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_is_told_and_one_that_is_cut_off_is_none() {
        let (mut writer, mut reader) = pair();
        let length = CONTROL_FRAME_BYTES_MAX as u32 + 1;
        writer
            .stream
            .write_all(&length.to_le_bytes())
            .await
            .unwrap();
        assert_eq!(reader.next().await, Some(Err(length as usize)));
        let (mut writer, mut reader) = pair();
        writer.stream.write_all(&[9, 0, 0, 0, 1, 2]).await.unwrap();
        drop(writer);
        assert_eq!(reader.next().await, None);
    }
}
