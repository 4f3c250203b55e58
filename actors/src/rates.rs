//! Measured rates of this node's messages to their peers, for the order of the bandwidth-aware
//! gossip graph.

use parking_lot::Mutex;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::topology::{RATES_MAX, Rate};
use slowmo_protocol::view::MEMBERS_MAX;
use std::collections::BTreeMap;
use std::time::Duration;

/// Weight of a new measurement in the moving average.
const NEW_SHARE: f64 = 0.25;

/// Moving averages of measured rates, by peer.
#[derive(Debug, Default)]
pub struct RateBook(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    /// Rate in bytes per second, and the number of the last measurement.
    peers: BTreeMap<NodeId, (f64, u64)>,
    measurements: u64,
}

impl RateBook {
    /// Records that a message of `bytes` took `elapsed` to reach a peer. Measurements of no time or
    /// no bytes are ignored.
    pub fn measured(&self, peer: NodeId, bytes: u64, elapsed: Duration) {
        let rate = bytes as f64 / elapsed.as_secs_f64();
        if bytes == 0 || !rate.is_finite() {
            return;
        }
        let mut book = self.0.lock();
        book.measurements += 1;
        let now = book.measurements;
        let known = book.peers.get(&peer).map_or(rate, |(known, _)| *known);
        book.peers
            .insert(peer, (known + NEW_SHARE * (rate - known), now));
        if book.peers.len() > MEMBERS_MAX {
            let oldest = book
                .peers
                .iter()
                .min_by_key(|(_, (_, at))| *at)
                .map(|(peer, _)| *peer);
            oldest.and_then(|peer| book.peers.remove(&peer));
        }
    }

    /// The rates of the most recently measured peers, at most [`RATES_MAX`], ascending by peer.
    #[must_use]
    pub fn read(&self) -> Vec<Rate> {
        let book = self.0.lock();
        let mut newest: Vec<_> = book.peers.iter().collect();
        newest.sort_unstable_by_key(|(_, (_, at))| std::cmp::Reverse(*at));
        newest.truncate(RATES_MAX);
        // The cast to `u32` saturates.
        let mut rates: Vec<Rate> = newest
            .into_iter()
            .map(|(to, (rate, _))| Rate {
                to: *to,
                kilobytes: (rate / 1e3).max(1.0) as u32,
            })
            .collect();
        rates.sort_unstable_by_key(|rate| rate.to);
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn read(book: &RateBook) -> Vec<(u64, u32)> {
        book.read()
            .into_iter()
            .map(|rate| (rate.to.0, rate.kilobytes))
            .collect()
    }

    #[test]
    fn new_measurements_move_the_average() {
        let book = RateBook::default();
        assert_eq!(read(&book), []);
        book.measured(NodeId(7), 8_000_000, SECOND);
        book.measured(NodeId(3), 1_000, SECOND * 10);
        assert_eq!(read(&book), [(3, 1), (7, 8_000)]);
        book.measured(NodeId(7), 4_000_000, SECOND);
        assert_eq!(read(&book), [(3, 1), (7, 7_000)]);
        for _ in 0..60 {
            book.measured(NodeId(7), 2_000_000, SECOND / 2);
        }
        assert_eq!(read(&book), [(3, 1), (7, 4_000)]);
    }

    #[test]
    fn what_says_nothing_is_not_counted_and_extremes_fit() {
        let book = RateBook::default();
        book.measured(NodeId(1), 5, Duration::ZERO);
        book.measured(NodeId(1), 0, SECOND);
        assert_eq!(read(&book), []);
        book.measured(NodeId(1), u64::MAX, Duration::from_nanos(1));
        book.measured(NodeId(2), 1, Duration::MAX);
        assert_eq!(read(&book), [(1, u32::MAX), (2, 1)]);
    }

    #[test]
    fn the_newest_are_told_and_the_book_is_bounded() {
        let book = RateBook::default();
        for id in 0..MEMBERS_MAX as u64 + 10 {
            book.measured(NodeId(id), 1_000_000, SECOND);
        }
        book.measured(NodeId(20), 1_000_000, SECOND);
        let told: Vec<u64> = read(&book).into_iter().map(|(id, _)| id).collect();
        let last = MEMBERS_MAX as u64 + 10;
        let newest: Vec<u64> = [20]
            .into_iter()
            .chain(last - RATES_MAX as u64 + 1..last)
            .collect();
        assert_eq!(told, newest);
        let kept = book.0.lock().peers.len();
        assert_eq!(kept, MEMBERS_MAX);
    }
}
