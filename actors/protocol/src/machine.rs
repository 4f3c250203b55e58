//! The contract of every machine: events and time in, effects out, nothing else.

use crate::ident::{ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Term};
use crate::time::Instant;
use crate::wire::{Frame, Header, Message};

/// Effects that a machine asks its shell to execute, in order.
#[derive(Debug)]
pub struct Outbox<E>(Vec<E>);

impl<E> Default for Outbox<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E> Outbox<E> {
    /// Adds an effect behind the others.
    pub fn push(&mut self, effect: E) {
        self.0.push(effect);
    }

    /// Adds several effects behind the others.
    pub fn push_all(&mut self, effects: impl IntoIterator<Item = E>) {
        self.0.extend(effects);
    }

    /// Takes all effects, oldest first.
    pub fn take(&mut self) -> Vec<E> {
        std::mem::take(&mut self.0)
    }
}

/// A state machine: pure, so that a run is a function of its events.
pub trait Machine {
    /// What happens to it.
    type In;
    /// What it asks for.
    type Effect;

    /// Takes one event at `now` and appends the effects.
    fn handle(&mut self, event: Self::In, now: Instant, out: &mut Outbox<Self::Effect>);

    /// When its shell must hand it a tick, if nothing happens before.
    fn next_deadline(&self) -> Option<Instant>;
}

/// This node as its machines sign their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Which start of it.
    pub incarnation: Incarnation,
}

/// Where in history a machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The model history.
    pub lineage: Lineage,
    /// The view.
    pub epoch: Epoch,
    /// The round being worked towards.
    pub round: Round,
    /// The term in force.
    pub term: Term,
    /// The attempt under way in it.
    pub attempt: u32,
}

impl Identity {
    /// The header of a frame or stream sent from `place`.
    #[must_use]
    pub fn header(&self, place: Place) -> Header {
        let Place {
            lineage,
            epoch,
            round,
            term,
            attempt,
        } = place;
        Header {
            cluster: self.cluster,
            lineage,
            epoch,
            round,
            term,
            attempt,
            sender: self.node,
            incarnation: self.incarnation,
        }
    }

    /// A frame sent from `place`.
    #[must_use]
    pub fn frame(&self, place: Place, message: Message) -> Frame {
        Frame::V1 {
            header: self.header(place),
            message: Box::new(message),
        }
    }
}
