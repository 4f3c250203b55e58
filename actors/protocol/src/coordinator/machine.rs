//! The machine.
use super::events::{Effect, In, Settings};
use crate::ident::{Ballot, Epoch, Lineage, Round};
use crate::machine::{Machine, Outbox, Place};
use crate::time::Instant;
use crate::wire::Header;

/// The SlowMo coordinator of one node.
#[derive(Clone, Debug)]
pub struct Coordinator {
    settings: Settings,
}

impl Machine for Coordinator {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, _event: In, _now: Instant, _out: &mut Outbox<Effect>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl Coordinator {
    /// A coordinator of a node that belongs to no view yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Where in history this node stands: the place of every stream it opens for the current attempt.
    #[must_use]
    pub fn place(&self) -> Place {
        _ = self.settings.replicas;
        Place { lineage: Lineage::NONE, epoch: Epoch(0), round: Round(0), ballot: Ballot::default() }
    }

    /// Whether a stream of this header may belong to an attempt that this node takes part in.
    #[must_use]
    pub fn admits(&self, _header: &Header) -> bool {
        true
    }
}
