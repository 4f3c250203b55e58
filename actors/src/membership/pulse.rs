//! The liveness machine's shell: reads signs of life off the transport, sends its datagrams and knocks, collects its verdicts.

use crate::context::NodeContext;
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::liveness::{DownCause, Effect, In, Liveness, Settings};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Round trips are read at one in so many ticks.
const ROUND_TRIP_TICKS: u64 = 16;

/// What liveness found out.
pub enum Verdict {
    /// This start of a node is dead.
    Down(NodeId, Incarnation, DownCause),
    /// A node that was dead is alive.
    Up(NodeId),
}

/// The machine and what it was told last.
pub struct Pulse {
    machine: Liveness,
    out: Outbox<Effect>,
    context: Arc<NodeContext>,
    heard: BTreeMap<NodeId, u64>,
    ticks: u64,
    verdicts: Vec<Verdict>,
    suspects: BTreeSet<NodeId>,
    suspicions: u64,
    unheard: BTreeSet<NodeId>,
}

impl Pulse {
    /// A machine that watches nobody yet.
    pub fn new(context: Arc<NodeContext>) -> Self {
        let node = &context.settings;
        let mut settings = Settings::new(node.identity);
        settings.probe_interval = NodeContext::span(node.probe_interval);
        settings.suspect = NodeContext::span(node.suspect);
        let (machine, out, heard) = (Liveness::new(settings), Outbox::default(), BTreeMap::new());
        let (suspects, unheard) = (BTreeSet::new(), BTreeSet::new());
        Self { machine, out, context, heard, ticks: 0, verdicts: Vec::new(), suspects, suspicions: 0, unheard }
    }

    /// When it must be looked at again.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// Tells the machine something.
    pub fn feed(&mut self, event: In) {
        let now = self.context.clock.now();
        self.machine.handle(event, now, &mut self.out);
        for effect in self.out.take() {
            match effect {
                Effect::Datagram { to, bytes } => {
                    if let Err(error) = self.context.transport.send_datagram(to, bytes.into()) {
                        tracing::trace!(%to, %error, "datagram not sent");
                    }
                }
                Effect::Knock(node) => self.context.transport.knock(node),
                Effect::Down(node, incarnation, cause) => self.verdicts.push(Verdict::Down(node, incarnation, cause)),
                Effect::Up(node, _) => self.verdicts.push(Verdict::Up(node)),
            }
        }
    }

    /// Reads what the transport heard, then lets time pass.
    pub fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        let watched: Vec<NodeId> = self.machine.watched().collect();
        self.heard.retain(|node, _| self.machine.watches(*node));
        for node in watched {
            self.hear(node);
            if self.ticks.is_multiple_of(ROUND_TRIP_TICKS)
                && let Some(round_trip) = self.context.transport.round_trip(node)
            {
                self.feed(In::RoundTrip(node, NodeContext::span(round_trip)));
            }
        }
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= self.context.clock.now()) {
            self.feed(In::Tick);
        }
    }

    /// Nobody listens at a peer's address, unless it was heard just now.
    pub fn knock_refused(&mut self, node: NodeId) {
        self.hear(node);
        self.feed(In::KnockRefused(node));
    }

    fn hear(&mut self, node: NodeId) {
        let heard = self.context.transport.heard(node);
        // A smaller number is another session's.
        if self.heard.insert(node, heard).is_some_and(|before| before != heard) {
            self.feed(In::Heard(node));
        }
    }

    /// Who is suspected now, if that is not who was at the last call.
    pub fn suspects(&mut self) -> Option<BTreeSet<NodeId>> {
        if std::mem::replace(&mut self.suspicions, self.machine.suspicions()) == self.suspicions {
            return None;
        }
        let suspects: BTreeSet<NodeId> = self.machine.suspected().collect();
        let before = std::mem::replace(&mut self.suspects, suspects);
        (before != self.suspects).then(|| self.suspects.clone())
    }

    /// Who is heard by others only, if that is not who was at the last call.
    pub fn unheard(&mut self) -> Option<BTreeSet<NodeId>> {
        let unheard: BTreeSet<NodeId> = self.machine.heard_by_others(self.context.clock.now()).collect();
        let before = std::mem::replace(&mut self.unheard, unheard);
        (before != self.unheard).then(|| self.unheard.clone())
    }

    /// What was found out since the last call.
    pub fn verdicts(&mut self) -> Vec<Verdict> {
        std::mem::take(&mut self.verdicts)
    }
}
