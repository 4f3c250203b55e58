//! A bulk stream over several QUIC streams, its *stripes*.
//!
//! quinn ends a connection when one QUIC stream has more than 1,024 gaps. After losses in a full
//! queue every second packet may be missing, so a QUIC stream may hold no more than about 2,048
//! packets that its reader waits for: 2.4 MB of the smallest packets. A path of 1 Gbit/s and 100 ms
//! holds 12.5 MB. So the blocks of a bulk stream go to [`STRIPES`] QUIC streams in turn:
//!
//! ```text
//! stripe 0   length │ header │ block 0 │ block 8  │ …
//! stripe 1   MARK │ index of stripe 0 │ 1 │ block 1 │ block 9 │ …
//! ```
//!
//! A stripe is opened with the first byte of its first block, so a short stream is one QUIC stream.
//! A stream that ends where a new stripe would begin opens that one, empty: its reader, which may
//! expect more, finds the end there.

use super::close::error_text;
use super::framing::{BlockError, LENGTH_BYTES, read_block};
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use quinn::{Connection, ConnectionError, ReadError, ReadExactError, RecvStream, StreamId};
use slowmo_actors::ports::transport::BulkError;
use slowmo_protocol::wire::BULK_HEADER_BYTES_MAX;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Number of QUIC streams of one long bulk stream.
pub(super) const STRIPES: usize = 8;
/// Unread bytes of one QUIC stream at which its sender waits: few enough that it never has more
/// gaps than quinn allows, if its packets are full.
pub(super) const STRIPE_WINDOW_BYTES: u32 = 2 << 20;
/// Bytes that go to one stripe before the next one's turn. All stripes make equal progress, so a
/// reader waits for at most `STRIPES` blocks more than it would on one stream.
pub(super) const BLOCK_BYTES: u64 = 32 << 10;
/// What stands in place of a header's length at the beginning of all stripes but the first.
/// No other length above a header's bound is accepted.
const MARK: usize = 1 << 31;
/// Bytes of the index of stripe 0, and of a stripe's own number.
const STRIPE_BYTES: usize = 9;
/// Bytes of stripe 0 that may be read while another one is awaited. No correct sender writes more:
/// the other stripe's window is full before.
const AHEAD_BYTES_MAX: usize = STRIPE_WINDOW_BYTES as usize;
/// Time after the loss of a connection for streams that had arrived to be taken up.
const LAST_ARRIVAL_WAIT: Duration = Duration::from_millis(100);

/// Place of a byte of a bulk stream: its stripe, and the number of bytes from it on that follow it
/// there.
pub(super) fn place(position: u64) -> (usize, usize) {
    let stripe = (position / BLOCK_BYTES) % STRIPES as u64;
    let rest = BLOCK_BYTES - position % BLOCK_BYTES;
    (stripe as usize, rest as usize)
}

/// The first bytes of stripe 0.
pub(super) fn header_bytes(header: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(LENGTH_BYTES + header.len());
    bytes.put_u32_le(header.len() as u32);
    bytes.put_slice(header);
    bytes.freeze()
}

/// The first bytes of another stripe of the bulk stream that began with `first`.
pub(super) fn stripe_bytes(first: StreamId, number: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(LENGTH_BYTES + STRIPE_BYTES);
    bytes.put_u32_le(MARK as u32);
    bytes.put_u64_le(first.index());
    bytes.put_u8(number as u8);
    bytes.freeze()
}

/// What a QUIC stream begins with.
pub(super) enum Beginning {
    /// It is a bulk stream's first stripe: the header.
    Header(Bytes),
    /// It is another stripe: the index of the first one, and its own number.
    Stripe(u64, usize),
}

/// Reads the beginning of a QUIC stream; `None` if it was reset, or its connection is lost.
///
/// # Errors
/// The length of a header above its bound.
pub(super) async fn read_beginning(stream: &mut RecvStream) -> Result<Option<Beginning>, usize> {
    match read_block(stream, BULK_HEADER_BYTES_MAX).await {
        Ok(Some(header)) => Ok(Some(Beginning::Header(header.freeze()))),
        Ok(None) | Err(BlockError::CutOff) => Ok(None),
        Err(BlockError::TooLong(MARK)) => Ok(read_stripe(stream).await.ok()),
        Err(BlockError::TooLong(length)) => Err(length),
    }
}

async fn read_stripe(stream: &mut RecvStream) -> std::io::Result<Beginning> {
    let first = stream.read_u64_le().await?;
    let number = stream.read_u8().await?;
    Ok(Beginning::Stripe(first, usize::from(number)))
}

/// The QUIC streams of a connection that are read or wait for it. A stripe may arrive before the
/// first one of its bulk stream is known as such.
#[derive(Clone, Default)]
pub(super) struct Arrivals(Arc<Mutex<BTreeMap<u64, Arc<Others>>>>);

/// The other stripes of a QUIC stream that have arrived and are not read yet, with their numbers.
#[derive(Default)]
struct Others {
    arrived: Mutex<Vec<(usize, RecvStream)>>,
    more: Notify,
}

impl Others {
    fn put(&self, number: usize, stream: RecvStream) {
        let mut arrived = self.arrived.lock();
        // More than these no correct peer sends.
        if arrived.len() < STRIPES {
            arrived.push((number, stream));
            self.more.notify_one();
        }
    }

    async fn next(&self) -> (usize, RecvStream) {
        loop {
            if let Some(arrived) = self.arrived.lock().pop() {
                return arrived;
            }
            self.more.notified().await;
        }
    }
}

impl Arrivals {
    /// Registers a QUIC stream, in the order in which its peer opened them.
    pub(super) fn register(&self, stream: StreamId) -> Registered {
        let others = Arc::<Others>::default();
        self.0.lock().insert(stream.index(), others.clone());
        Registered {
            of: self.clone(),
            index: stream.index(),
            others,
        }
    }

    /// Gives a stripe to the reader of its bulk stream, if there still is one.
    pub(super) fn pass_on(&self, first: u64, number: usize, stream: RecvStream) {
        let reader = self.0.lock().get(&first).cloned();
        if let Some(others) = reader {
            others.put(number, stream);
        }
    }
}

/// A registered QUIC stream, until this is dropped.
pub(super) struct Registered {
    of: Arrivals,
    index: u64,
    others: Arc<Others>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.of.0.lock().remove(&self.index);
    }
}

/// The stripes of a bulk stream at its receiver.
pub(super) struct Stripes {
    connection: Connection,
    registered: Registered,
    first: RecvStream,
    /// What was read of stripe 0 before its turn, at most [`AHEAD_BYTES_MAX`] and a block.
    ahead: BytesMut,
    /// Whether nothing follows on stripe 0: it was read to its end, or its connection is lost.
    first_is_over: bool,
    /// The other stripes, as far as they have arrived.
    others: [Option<RecvStream>; STRIPES - 1],
}

impl Stripes {
    pub(super) fn new(connection: Connection, registered: Registered, first: RecvStream) -> Self {
        Self {
            connection,
            registered,
            first,
            ahead: BytesMut::new(),
            first_is_over: false,
            others: Default::default(),
        }
    }

    /// Reads the next bytes of a stripe.
    ///
    /// # Errors
    /// The bulk stream ends before, was reset, or its connection is lost.
    pub(super) async fn read_exact(
        &mut self,
        stripe: usize,
        into: &mut [u8],
    ) -> Result<(), BulkError> {
        if let Some(other) = stripe.checked_sub(1) {
            let stream = self.arrival(other).await?;
            return stream.read_exact(into).await.map_err(exact_error);
        }
        let length = self.ahead.len().min(into.len());
        let (now, after) = into.split_at_mut(length);
        now.copy_from_slice(&self.ahead.split_to(length));
        self.first.read_exact(after).await.map_err(exact_error)
    }

    /// Another stripe, once it has arrived. Meanwhile stripe 0 is read ahead: it tells if the sender
    /// gave up, and then this stripe may never arrive.
    async fn arrival(&mut self, other: usize) -> Result<&mut RecvStream, BulkError> {
        while self.others[other].is_none() {
            if self.ahead.len() > AHEAD_BYTES_MAX {
                return Err(BulkError::Broken("a part of it is missing".to_owned()));
            }
            tokio::select! {
                biased;
                (number, stream) = self.registered.others.next() => {
                    if let Some(other) = self.others.get_mut(number.wrapping_sub(1)) {
                        other.get_or_insert(stream);
                    }
                }
                next = self.first.read_chunk(BLOCK_BYTES as usize, true), if !self.first_is_over => {
                    match next {
                        Ok(Some(chunk)) => self.ahead.extend_from_slice(&chunk.bytes),
                        // The sender has finished this stripe: it is on its way.
                        Ok(None) | Err(ReadError::ConnectionLost(_)) => self.first_is_over = true,
                        Err(error) => return Err(read_error(error)),
                    }
                }
                error = nothing_follows(&self.connection), if self.first_is_over => {
                    return Err(lost(&error));
                }
            }
        }
        self.others[other].as_mut().ok_or(BulkError::Reset)
    }

    /// Expects the end of the bulk stream after this many bytes.
    ///
    /// # Errors
    /// There are more bytes, the bulk stream was reset, or its connection is lost.
    pub(super) async fn expect_end(&mut self, position: u64) -> Result<(), BulkError> {
        let (next, _) = place(position);
        if let Some(other) = next.checked_sub(1) {
            // Its sender has opened it, be it empty.
            self.arrival(other).await?;
        }
        if !self.ahead.is_empty() {
            return Err(BulkError::TooLong);
        }
        let others = self.others.iter_mut().flatten();
        for stripe in std::iter::once(&mut self.first).chain(others) {
            match stripe.read(&mut [0; 1]).await {
                Ok(None) => {}
                Ok(Some(_)) => return Err(BulkError::TooLong),
                Err(error) => return Err(read_error(error)),
            }
        }
        Ok(())
    }
}

/// Waits until a connection is lost and what had arrived before was taken up.
async fn nothing_follows(connection: &Connection) -> ConnectionError {
    let error = connection.closed().await;
    sleep(LAST_ARRIVAL_WAIT).await;
    error
}

fn exact_error(error: ReadExactError) -> BulkError {
    match error {
        ReadExactError::FinishedEarly(_) => BulkError::EndedEarly,
        ReadExactError::ReadError(error) => read_error(error),
    }
}

fn read_error(error: ReadError) -> BulkError {
    match error {
        ReadError::ConnectionLost(error) => lost(&error),
        ReadError::ClosedStream => BulkError::EndedEarly,
        _ => BulkError::Reset,
    }
}

/// The error of a stream whose connection is lost.
pub(super) fn lost(error: &ConnectionError) -> BulkError {
    BulkError::Broken(error_text(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_to_the_stripes_in_turn() {
        assert_eq!(place(0), (0, BLOCK_BYTES as usize));
        assert_eq!(place(BLOCK_BYTES - 1), (0, 1));
        assert_eq!(place(BLOCK_BYTES), (1, BLOCK_BYTES as usize));
        let turn = BLOCK_BYTES * STRIPES as u64;
        assert_eq!(place(turn - 1), (STRIPES - 1, 1));
        assert_eq!(place(turn), (0, BLOCK_BYTES as usize));
    }
}
