//! Counts traffic: the bytes of all connections, including those that have ended, and each
//! connection's signs of life.

use crate::transport::pulse::Vital;
use parking_lot::Mutex;
use quinn::Connection;
use slowmo_actors::ports::transport::Traffic;
use std::collections::BTreeMap;

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
        state.live.values().fold(state.ended, sum)
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
