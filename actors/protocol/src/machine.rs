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
    /// Appends an effect.
    pub fn push(&mut self, effect: E) {
        self.0.push(effect);
    }

    /// Appends several effects.
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
    /// Type of the events that it handles.
    type In;
    /// Type of the effects that it asks for.
    type Effect;

    /// Handles one event at `now` and appends the effects to `out`.
    fn handle(&mut self, event: Self::In, now: Instant, out: &mut Outbox<Self::Effect>);

    /// Time at which its shell must hand it a tick, if no event comes before.
    fn next_deadline(&self) -> Option<Instant>;
}

/// Identity of this node, which its machines put into the headers of their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// Position in history: lineage, epoch, round, term and attempt.
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
    /// The current attempt of that term.
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

    /// A frame that carries `message`, sent from `place`.
    #[must_use]
    pub fn frame(&self, place: Place, message: Message) -> Frame {
        Frame::V1 {
            header: self.header(place),
            message: Box::new(message),
        }
    }
}
