//! Signs of life of one peer: their number over all its connections, and the time of the last one.
//! No I/O.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Longest time since a node's last sign of life for which it counts as alive.
pub(crate) const LIVE_WINDOW: Duration = Duration::from_secs(1);

/// A connection that counts its peer's signs of life.
pub(crate) trait Vital: Send + Sync {
    /// Authenticated packets or messages received so far.
    fn heard(&self) -> u64;

    /// Whether the connection has ended, so that nothing more can be received.
    fn is_over(&self) -> bool;
}

/// The signs of life of one session, over all its connections.
pub(crate) struct Pulse(Mutex<State>);

struct State {
    connections: Vec<Box<dyn Vital>>,
    /// Signs counted by [`Pulse::count`], plus those of connections that have ended.
    counted: u64,
    /// The last total observed, and when it was first observed: no later sign is known.
    seen: (u64, Instant),
}

impl Pulse {
    /// A session that has just connected; connecting counts as one sign of life.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            connections: Vec::new(),
            counted: 1,
            seen: (0, Instant::now()),
        }))
    }

    /// Counts a connection's signs from now on.
    pub(crate) fn attach(&self, connection: Box<dyn Vital>) {
        let mut state = self.0.lock();
        // Of a connection that has ended, only its count is kept, so that the list is no longer
        // than the number of live connections.
        let over: u64 = state
            .connections
            .extract_if(.., |known| known.is_over())
            .map(|known| known.heard())
            .sum();
        state.counted += over;
        state.connections.push(connection);
    }

    /// Counts one sign of life.
    pub(crate) fn count(&self) {
        self.0.lock().counted += 1;
    }

    /// Number of signs of life so far.
    pub(crate) fn heard(&self) -> u64 {
        self.0.lock().look()
    }

    /// Whether a sign of life was observed within [`LIVE_WINDOW`].
    pub(crate) fn is_live(&self) -> bool {
        let mut state = self.0.lock();
        state.look();
        state.seen.1.elapsed() < LIVE_WINDOW
    }
}

impl State {
    fn look(&mut self) -> u64 {
        let heard = self.counted
            + self
                .connections
                .iter()
                .map(|connection| connection.heard())
                .sum::<u64>();
        if heard != self.seen.0 {
            self.seen = (heard, Instant::now());
        }
        heard
    }
}
