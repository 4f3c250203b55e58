//! Whether an accepted connection has carried anything yet. Touches nothing.
//!
//! A dialer that gives an attempt up half-way leaves a connection that was admitted and never used.
//! Its end, or a later connection in its place, must not take down what another attempt set up.

use super::watched::Watched;
use std::sync::atomic::{AtomicBool, Ordering};

/// One accepted connection, as its peer's session knows it.
#[derive(Debug)]
pub(crate) struct Accepted {
    used: AtomicBool,
    replaced: Watched<bool>,
}

impl Accepted {
    /// A connection on which nothing has come yet.
    pub(crate) fn unused() -> Self {
        Self {
            used: AtomicBool::new(false),
            replaced: Watched::new(false),
        }
    }

    /// A connection that counts from its first moment.
    pub(crate) fn used() -> Self {
        let accepted = Self::unused();
        accepted.mark_used();
        accepted
    }

    /// Something came: from now on the connection's end is the session's end.
    pub(crate) fn mark_used(&self) {
        self.used.store(true, Ordering::Release);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Another connection took its place.
    pub(crate) fn replace(&self) {
        self.replaced.set(true);
    }

    /// Waits until another connection took its place.
    pub(crate) async fn replaced(&self) {
        self.replaced.wait_for(|replaced| *replaced).await;
    }
}
