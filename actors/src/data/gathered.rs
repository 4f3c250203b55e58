//! Short pieces of a bulk stream, sent together.

use crate::ports::transport::{BulkError, BulkSender};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

/// Length from which a piece is sent by itself, without a copy.
const LONG_BYTES: usize = 16 << 10;
/// Bytes of short pieces that are kept before they are sent.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The sending end of a stream that keeps short pieces, and sends them together: a model of a few
/// thousand values has many short shards, and sending a piece costs more than copying it. Nobody
/// waits for a part of a stream, so what is kept delays nothing.
pub struct Gathered {
    stream: Box<dyn BulkSender>,
    kept: BytesMut,
}

impl Gathered {
    /// Gathers the short pieces of a stream.
    #[must_use]
    pub fn new(stream: Box<dyn BulkSender>) -> Self {
        Self {
            stream,
            kept: BytesMut::new(),
        }
    }

    async fn send_kept(&mut self) -> Result<(), BulkError> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let kept = self.kept.split().freeze();
        self.stream.send(kept).await
    }
}

#[async_trait]
impl BulkSender for Gathered {
    async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError> {
        if chunk.len() >= LONG_BYTES {
            self.send_kept().await?;
            return self.stream.send(chunk).await;
        }
        self.kept.extend_from_slice(&chunk);
        if self.kept.len() >= KEPT_BYTES_MAX {
            self.send_kept().await?;
        }
        Ok(())
    }

    fn hurry(&mut self) {
        self.stream.hurry();
    }

    async fn finish(mut self: Box<Self>) -> Result<(), BulkError> {
        if self.kept.is_empty() {
            return self.stream.finish().await;
        }
        let kept = self.kept.split().freeze();
        self.stream.finish_with(kept).await
    }

    fn reset(self: Box<Self>) {
        self.stream.reset();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Keeps the lengths of the pieces that it was given; 0 is the end.
    struct Noted(Arc<Mutex<Vec<usize>>>);

    #[async_trait]
    impl BulkSender for Noted {
        async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError> {
            self.0.lock().push(chunk.len());
            Ok(())
        }

        async fn finish(self: Box<Self>) -> Result<(), BulkError> {
            self.0.lock().push(0);
            Ok(())
        }

        fn reset(self: Box<Self>) {}
    }

    #[tokio::test]
    async fn short_pieces_are_sent_together_and_in_order() {
        let sent = Arc::default();
        let mut stream = Box::new(Gathered::new(Box::new(Noted(Arc::clone(&sent)))));
        for length in [10, 20, LONG_BYTES, 5, 0, 7] {
            stream.send(Bytes::from(vec![1; length])).await.unwrap();
        }
        stream.finish().await.unwrap();
        assert_eq!(*sent.lock(), [30, LONG_BYTES, 12, 0]);
    }

    #[tokio::test]
    async fn not_more_than_a_bound_is_kept() {
        let sent = Arc::default();
        let mut stream = Box::new(Gathered::new(Box::new(Noted(Arc::clone(&sent)))));
        let short = Bytes::from(vec![1; LONG_BYTES - 1]);
        for _ in 0..6 {
            stream.send(short.clone()).await.unwrap();
        }
        assert_eq!(*sent.lock(), [5 * (LONG_BYTES - 1)]);
    }
}
