//! Tracks whether an accepted connection has carried anything yet. No I/O.
//!
//! A dialer that abandons an attempt half-way leaves a connection that was admitted and never used.
//! The end of that connection, or its replacement by a later one, must not end a session that
//! another attempt set up.

use super::watched::Watched;
use std::sync::atomic::{AtomicBool, Ordering};

/// One accepted connection, as its peer's session sees it.
#[derive(Debug)]
pub(crate) struct Accepted {
    used: AtomicBool,
    replaced: Watched<bool>,
    /// No more frames will be read from it.
    read_out: Watched<bool>,
}

impl Accepted {
    /// A connection on which nothing has been received yet.
    pub(crate) fn unused() -> Self {
        Self {
            used: AtomicBool::new(false),
            replaced: Watched::new(false),
            read_out: Watched::new(false),
        }
    }

    /// A connection that counts as used from the start.
    pub(crate) fn used() -> Self {
        let accepted = Self::unused();
        accepted.mark_used();
        accepted
    }

    /// Records that something was received: from now on the end of this connection ends the
    /// session.
    pub(crate) fn mark_used(&self) {
        self.used.store(true, Ordering::Release);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Records that another connection took this one's slot.
    pub(crate) fn replace(&self) {
        self.replaced.set(true);
    }

    /// Records that all frames of this connection were read.
    pub(crate) fn end_reading(&self) {
        self.read_out.set(true);
    }

    /// Waits until all frames of this connection were read.
    pub(crate) async fn reading_ended(&self) {
        self.read_out.wait_for(|over| *over).await;
    }

    /// Waits until another connection has taken this one's slot.
    pub(crate) async fn replaced(&self) {
        self.replaced.wait_for(|replaced| *replaced).await;
    }
}
