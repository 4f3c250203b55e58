//! Signs of life of one peer: how many came over all its connections, and when the last. Touches
//! nothing.

use super::sessions::lock;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// A node whose last sign of life is not older than this is alive.
pub(crate) const LIVE_WINDOW: Duration = Duration::from_secs(1);

/// Counts what a peer sent over one connection.
pub(crate) trait Vital: Send + Sync {
    /// Authenticated packets or messages so far.
    fn heard(&self) -> u64;

    /// Whether nothing more can come.
    fn is_over(&self) -> bool;
}

/// All signs of life of one session.
pub(crate) struct Pulse(Mutex<State>);

struct State {
    connections: Vec<Box<dyn Vital>>,
    /// Signs counted here, and those of connections that are over.
    counted: u64,
    /// The last count that was looked at, and when it was first found: no sign came later.
    seen: (u64, Instant),
}

impl Pulse {
    /// Nothing heard yet; connecting was a sign of life.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            connections: Vec::new(),
            counted: 1,
            seen: (0, Instant::now()),
        }))
    }

    /// Counts a connection's signs from now on.
    pub(crate) fn attach(&self, connection: Box<dyn Vital>) {
        let mut state = lock(&self.0);
        // A connection that is over is only a number; the list stays as short as the session has
        // connections.
        let over: u64 = state
            .connections
            .extract_if(.., |known| known.is_over())
            .map(|known| known.heard())
            .sum();
        state.counted += over;
        state.connections.push(connection);
    }

    /// Counts one sign.
    pub(crate) fn count(&self) {
        lock(&self.0).counted += 1;
    }

    /// Signs so far.
    pub(crate) fn heard(&self) -> u64 {
        lock(&self.0).look()
    }

    /// Whether a sign came within the window, as far as is known.
    pub(crate) fn is_live(&self) -> bool {
        let mut state = lock(&self.0);
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
