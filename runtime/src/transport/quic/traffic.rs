//! Counts traffic: the bytes of all connections, including those that have ended, and each
//! connection's signs of life.

use crate::transport::pulse::Vital;
use parking_lot::Mutex;
use quinn::Connection;
use slowmo_actors::ports::transport::Traffic;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of bulk streams to and from nodes of this machine, which do not go over QUIC.
#[derive(Debug, Default)]
pub(super) struct SameHostBytes {
    sent: AtomicU64,
    received: AtomicU64,
}

impl SameHostBytes {
    pub(super) fn count_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Byte counts of one transport.
#[derive(Default)]
pub(super) struct TrafficCounter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: BTreeMap<u64, Connection>,
    added: u64,
    ended: Traffic,
    /// Bytes that went to each peer of this machine and came from it.
    same_host: Vec<Arc<SameHostBytes>>,
}

impl TrafficCounter {
    /// Counts a connection from now on; returns its id for [`TrafficCounter::fold`].
    pub(super) fn add(&self, connection: &Connection) -> u64 {
        let mut state = self.state.lock();
        state.added += 1;
        let id = state.added;
        state.live.insert(id, connection.clone());
        id
    }

    /// Counts the same-host bytes of one connection from now on.
    pub(super) fn same_host(&self) -> Arc<SameHostBytes> {
        let bytes = Arc::new(SameHostBytes::default());
        let mut state = self.state.lock();
        state.fold_same_host();
        state.same_host.push(Arc::clone(&bytes));
        bytes
    }

    /// Adds the bytes of a connection that has ended to the total, and drops the connection.
    pub(super) fn fold(&self, id: u64) {
        let mut state = self.state.lock();
        if let Some(connection) = state.live.remove(&id) {
            state.ended = sum(state.ended, &connection);
            state.ended.mtu_bytes = 0;
        }
    }

    pub(super) fn total(&self) -> Traffic {
        let state = self.state.lock();
        let over_quic = state.live.values().fold(state.ended, sum);
        state.same_host.iter().fold(over_quic, sum_same_host)
    }
}

impl State {
    /// Adds the bytes of connections that nobody uses any more to the total.
    fn fold_same_host(&mut self) {
        let mut ended = self.ended;
        self.same_host.retain(|bytes| {
            let is_used = Arc::strong_count(bytes) > 1;
            if !is_used {
                ended = sum_same_host(ended, bytes);
            }
            is_used
        });
        self.ended = ended;
    }
}

fn sum_same_host(total: Traffic, bytes: &Arc<SameHostBytes>) -> Traffic {
    Traffic {
        sent_bytes: total.sent_bytes + bytes.sent(),
        received_bytes: total.received_bytes + bytes.received(),
        ..total
    }
}

impl Vital for Connection {
    /// Frames received in authenticated packets. Raw UDP datagrams are not counted: anybody can
    /// send one.
    fn heard(&self) -> u64 {
        let frames = self.stats().frame_rx;
        let alive = [
            frames.acks,
            frames.ping,
            frames.stream,
            frames.datagram,
            frames.crypto,
            frames.max_data,
            frames.max_stream_data,
        ];
        alive.iter().sum()
    }

    fn is_over(&self) -> bool {
        self.close_reason().is_some()
    }
}

fn sum(total: Traffic, connection: &Connection) -> Traffic {
    let stats = connection.stats();
    Traffic {
        sent_bytes: total.sent_bytes + stats.udp_tx.bytes,
        received_bytes: total.received_bytes + stats.udp_rx.bytes,
        lost_packets: total.lost_packets + stats.path.lost_packets,
        mtu_bytes: total.mtu_bytes.max(stats.path.current_mtu),
    }
}
