//! Control frames between nodes of one machine: one socket for each direction, on which frames
//! follow each other, each after its length.

use super::{BEGINNING_WAIT_MAX, Door, Path, READ_BUFFER_BYTES, Secrets, read_out};
use crate::transport::quic::framing::{BlockError, read_block};
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
            let mut stream = self.door.next().await;
            let greeted = timeout(BEGINNING_WAIT_MAX, self.door.secrets.greet(&mut stream));
            // Whoever does not begin as the peer does is nobody.
            if let Ok(Ok(())) = greeted.await {
                return ControlReader {
                    stream: BufReader::with_capacity(READ_BUFFER_BYTES, stream),
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
    /// Reads the next frame; `None` when the peer sends no more. What it wrote is read also after
    /// its connection ended.
    ///
    /// # Errors
    /// The frame is too long.
    pub(in super::super) async fn next(
        &mut self,
        connection: &Connection,
    ) -> Result<Option<BytesMut>, BlockError> {
        let read = read_out(connection, self.read()).await;
        read.unwrap_or(Ok(None))
    }

    async fn read(&mut self) -> Result<Option<BytesMut>, BlockError> {
        match read_block(&mut self.stream, CONTROL_FRAME_BYTES_MAX).await {
            Ok(Some(frame)) => {
                self.bytes.count_received(frame.len());
                Ok(Some(frame))
            }
            // The peer died while it wrote.
            Err(BlockError::CutOff) => Ok(None),
            other => other,
        }
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
        let stream = Secrets::of(connection)?.connect().await.ok()?;
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
                assert_eq!(reader.read().await.unwrap().unwrap(), frame);
            }
            assert_eq!(reader.read().await, Ok(None));
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
        assert_eq!(reader.read().await.unwrap().unwrap(), "frame");
        assert_eq!(reader.read().await, Ok(None));
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
        let too_long = BlockError::TooLong(length as usize);
        assert_eq!(reader.read().await, Err(too_long));
        let (mut writer, mut reader) = pair();
        writer.stream.write_all(&[9, 0, 0, 0, 1, 2]).await.unwrap();
        drop(writer);
        assert_eq!(reader.read().await, Ok(None));
    }
}
