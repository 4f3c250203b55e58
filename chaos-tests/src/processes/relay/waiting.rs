//! Datagrams in flight over slow links, ordered by the time at which they arrive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of datagrams in flight.
const DATAGRAMS_MAX: usize = 1 << 18;
/// Maximum number of bytes in flight.
const BYTES_MAX: usize = 256 << 20;

/// There is no room for another datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A datagram in flight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Datagram {
    at_us: u64,
    /// Sequence number: of two datagrams that arrive at the same time the one sent first goes
    /// first.
    number: u64,
    /// Indices of sender and receiver.
    pub way: (usize, usize),
    pub bytes: Box<[u8]>,
}

/// All datagrams in flight.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    heap: BinaryHeap<Reverse<Datagram>>,
    bytes: usize,
    pushed: u64,
}

impl Waiting {
    /// Keeps a copy until `at_us`; returns whether it is now the next one.
    pub(super) fn push(
        &mut self,
        at_us: u64,
        way: (usize, usize),
        bytes: &[u8],
    ) -> Result<bool, Full> {
        if self.heap.len() >= DATAGRAMS_MAX || self.bytes + bytes.len() > BYTES_MAX {
            return Err(Full);
        }
        let sooner = self.next_us().is_none_or(|next| at_us < next);
        self.pushed += 1;
        self.bytes += bytes.len();
        self.heap.push(Reverse(Datagram {
            at_us,
            number: self.pushed,
            way,
            bytes: bytes.into(),
        }));
        Ok(sooner)
    }

    /// The next datagram, if it is due.
    pub(super) fn due(&mut self, now_us: u64) -> Option<Datagram> {
        if self.next_us()? > now_us {
            return None;
        }
        let Reverse(datagram) = self.heap.pop()?;
        self.bytes -= datagram.bytes.len();
        Some(datagram)
    }

    /// Time at which the next datagram is due.
    pub(super) fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(datagram)| datagram.at_us)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_out_in_order_of_time_and_not_before() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.push(30, (0, 1), b"c"), Ok(true));
        assert_eq!(waiting.push(10, (0, 1), b"a"), Ok(true));
        assert_eq!(waiting.push(10, (0, 1), b"b"), Ok(false));
        assert_eq!(waiting.due(9), None);
        let out: Vec<_> = std::iter::from_fn(|| waiting.due(20))
            .map(|datagram| datagram.bytes[0])
            .collect();
        assert_eq!(
            (out.as_slice(), waiting.next_us()),
            (b"ab".as_slice(), Some(30))
        );
    }

    #[test]
    fn room_is_bounded_and_given_back() {
        let mut waiting = Waiting::default();
        let half = vec![0; BYTES_MAX / 2];
        assert_eq!(
            (
                waiting.push(1, (0, 1), &half),
                waiting.push(1, (0, 1), &half)
            ),
            (Ok(true), Ok(false))
        );
        assert_eq!(waiting.push(1, (0, 1), b"x"), Err(Full));
        assert!(waiting.due(1).is_some());
        assert_eq!(waiting.push(1, (0, 1), b"x"), Ok(false));
    }
}
