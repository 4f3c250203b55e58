//! Failure detection: decides which watched nodes are alive. Pure: datagrams, signs of life and
//! time in; datagrams, port probes and verdicts out.
//!
//! All proof of life comes from the transport: any authenticated packet of a node, whatever it
//! carries, is a sign of life. A silent node is *asked* for one. If it stays silent it is
//! *suspected*: the others and the node itself are told, and it is *down* unless it is heard or
//! refutes in time. The spreading of suspicions, refutations and deaths, indirect probes of distant
//! nodes, and the return of a node that was declared dead follow SWIM as implemented by the crate
//! foca (`swim`).
//!
//! ```text
//!           heard ┌───────────────────────────────────────────────┐
//!                 ▼        ask_after         suspect_after        │     suspect
//!              alive ───► silent (asked) ───► suspected ──────────┴──────► down
//!                 │ PORT_PROBE_AFTER                                         ▲
//!                 └───► port probe ── refused, still silent ─────────────────┤
//!     the launcher saw it exit, it left, another incarnation came ─────────┤
//!     another node says so, and this one does not hear it either ────────────┘
//! ```
//!
//! * **A killed process** answers nothing, but its host does: a datagram to a port on which nobody
//!   listens is refused. So nodes that were not heard for a moment get a *port probe*, and a
//!   refusal is a death, without any time-out.
//! * **This node's own pauses** are not the others' silence: an event that comes much later than
//!   the deadline it should have met shows that this process was stopped or starved. It moves every
//!   deadline by that delay plus a grace.
//! * **Unconfirmed deaths**: a death that another node reports is believed at once only if this
//!   node has not heard the dead node either. Otherwise silence has to confirm it.
//! * **Return**: a node that was declared dead is up again once it is connected anew or begins
//!   another life.

mod codec;
mod events;
mod peer;
mod swim;
#[cfg(test)]
mod tests;
mod timers;

pub use events::{DownCause, Effect, In, Settings};

use crate::ident::{Incarnation, NodeId};
use crate::machine::{Machine, Outbox};
use crate::time::{Instant, Span};
use crate::view::MEMBERS_MAX;
use crate::wire::{Content, Datagram, LifeState, LifeUpdate, SwimPacket};
use peer::{Peer, Suspicion, UnconfirmedDeath};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use swim::{Change, Outputs, Swim};
use timers::Timers;

/// Time between polls while any node is watched: the machine looks at the clock, its shell at the
/// transport.
pub const POLL_EVERY: Span = Span::from_millis(20);
/// Most nodes that this node itself asks and port-probes: all watched ones if there are no more,
/// else the next living ones in the ring of ids.
pub const NEAR_MAX: usize = 16;
/// Number of nodes that one poll can afford to examine. If more are watched, the near ones are
/// examined in every poll, and all of them only in every second, third, ... poll.
pub const LOOKED_AT_PER_POLL: usize = 128;
/// Silence after which a node gets a port probe.
pub const PORT_PROBE_AFTER: Span = Span::from_millis(60);
/// Time between port probes of the same node.
pub const PORT_PROBE_EVERY: Span = Span::from_millis(50);
/// Time between two datagrams that ask the same node for a sign of life.
pub const ASK_EVERY: Span = Span::from_millis(50);
/// Number of measured round trips that an answer may take.
pub const ROUND_TRIPS: u64 = 4;
/// Upper limit on the answer time that follows from measured round trips.
pub const BOUND_MAX: Span = Span::from_millis(3_000);
/// Delay of an event after its deadline from which on this process counts as paused.
pub const AWAY_MIN: Span = Span::from_millis(100);
/// Grace added to the time for which this process was paused: what arrived meanwhile has to be
/// read.
pub const AWAY_GRACE: Span = Span::from_millis(100);

/// The failure detector of one node.
pub struct Liveness {
    settings: Settings,
    swim: Swim,
    peers: BTreeMap<NodeId, Peer>,
    timers: Timers,
    poll_at: Option<Instant>,
    polls: u64,
    /// When the grace was last given.
    graced_at: Option<Instant>,
    /// Number of times that the set of suspected nodes may have changed.
    suspicions: u64,
}

impl Machine for Liveness {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        self.forgive_own_absence(now);
        match event {
            In::Members(members) => self.watch(members, now, out),
            In::Datagram { from, bytes } => self.datagram(from, &bytes, now, out),
            In::Heard(node) => self.heard(node, now, out),
            In::RoundTrip(node, span) => self
                .peers
                .get_mut(&node)
                .into_iter()
                .for_each(|peer| peer.measured(span)),
            In::PortRefused(node) => {
                if self
                    .peers
                    .get(&node)
                    .is_some_and(Peer::is_silent_since_port_probe)
                {
                    self.mark_down(node, DownCause::Refused, now, out);
                }
            }
            In::Exited(node, incarnation) => {
                if self
                    .peers
                    .get(&node)
                    .is_some_and(|peer| incarnation.is_none_or(|exited| exited == peer.incarnation))
                {
                    self.mark_down(node, DownCause::Exited, now, out);
                }
            }
            In::Gone(node) => self.mark_down(node, DownCause::Left, now, out),
            In::PeerUp(node, incarnation) => self.peer_up(node, incarnation, now, out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.poll_at.into_iter().chain(self.timers.earliest()).min()
    }
}

impl Liveness {
    /// A machine that watches no node yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings {
            identity,
            probe_interval,
            seed,
            ..
        } = settings;
        let swim = Swim::new(identity.node, identity.incarnation, probe_interval, seed);
        let peers = BTreeMap::new();
        let timers = Timers::default();
        Self {
            settings,
            swim,
            peers,
            timers,
            poll_at: None,
            polls: 0,
            graced_at: None,
            suspicions: 0,
        }
    }

    /// The nodes for which the shell must report, before the next tick, whether they were heard:
    /// all watched nodes, including dead ones, or the near ones, depending on
    /// [`Self::looks_at_all`].
    #[must_use]
    pub fn listens_to(&self) -> Vec<NodeId> {
        if self.looks_at_all() {
            self.peers.keys().copied().collect()
        } else {
            self.near()
        }
    }

    /// Nodes heard indirectly: alive according to others, but not heard by this node itself for as
    /// long as it takes to declare a node dead.
    pub fn heard_by_others(&self, now: Instant) -> impl Iterator<Item = NodeId> + '_ {
        let bound = |peer: &Peer| {
            Span(peer.suspect_after(&self.settings).0 + peer.suspect_for(&self.settings).0)
        };
        self.peers
            .iter()
            .filter(move |(_, peer)| !peer.down && peer.silence(now) >= bound(peer))
            .map(|(node, _)| *node)
    }

    /// Whether this machine watches a node.
    #[must_use]
    pub fn watches(&self, node: NodeId) -> bool {
        self.peers.contains_key(&node)
    }

    /// Whether a watched node is declared dead.
    #[must_use]
    pub fn is_down(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.down)
    }

    /// The suspected nodes: silent for longer than expected, and soon dead unless heard.
    pub fn suspected(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.suspicion.is_some() && !peer.down)
            .map(|(node, _)| *node)
    }

    /// Counter that stays the same as long as [`Self::suspected`] does.
    #[must_use]
    pub fn suspicions(&self) -> u64 {
        self.suspicions
    }

    fn watch(
        &mut self,
        mut members: Vec<(NodeId, Incarnation)>,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let me = self.settings.identity.node;
        members.retain(|(node, _)| *node != me);
        members.truncate(MEMBERS_MAX);
        let members: BTreeMap<_, _> = members.into_iter().collect();
        let gone = self
            .peers
            .iter()
            .filter(|(node, peer)| members.get(node) != Some(&peer.incarnation));
        for node in gone.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.suspicions += 1;
            self.peers.remove(&node);
            self.swim.forget(node);
        }
        for (node, incarnation) in members {
            if let Entry::Vacant(place) = self.peers.entry(node) {
                place.insert(Peer::new(incarnation, now));
                let wishes = self.swim.watch(node, incarnation);
                self.grant(wishes, None, now, out);
            }
        }
        self.poll_at =
            (!self.peers.is_empty()).then(|| self.poll_at.unwrap_or(now.after(POLL_EVERY)));
    }

    fn datagram(&mut self, from: NodeId, bytes: &[u8], now: Instant, out: &mut Outbox<Effect>) {
        self.heard(from, now, out);
        match Datagram::decode(bytes) {
            Ok(Datagram::V1(Content::Ask)) => send(from, Content::Answer, out),
            Ok(Datagram::V1(Content::Swim(packet))) => self.packet(from, packet, now, out),
            // The other datagrams do not concern liveness: the first reader of datagrams takes them
            // out.
            Ok(Datagram::V1(
                Content::Answer
                | Content::AskStatusDigest { .. }
                | Content::StatusDigest(_)
                | Content::Drain { .. },
            ))
            | Err(_) => {}
        }
    }

    fn packet(
        &mut self,
        from: NodeId,
        mut packet: SwimPacket,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let is_its_own =
            packet.source.node == from && self.knows(packet.source.node, packet.source.incarnation);
        if !is_its_own {
            return;
        }
        packet
            .updates
            .retain(|update| self.is_news(update, from, now, out));
        let wishes = self.swim.receive(&packet);
        self.grant(wishes, Some(from), now, out);
    }

    /// Whether news is passed on to foca. The reported death of a node that was heard a moment ago
    /// waits for confirmation.
    fn is_news(
        &mut self,
        update: &LifeUpdate,
        teller: NodeId,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) -> bool {
        // A far node may have been heard since it was last looked at.
        let unseen = self.look_interval().0 - POLL_EVERY.0;
        let ours = self.swim.life();
        if update.life.node == ours.node {
            return update.life.incarnation == ours.incarnation
                && update.life.renewals <= ours.renewals;
        }
        if !self.knows(update.life.node, update.life.incarnation) {
            return false;
        }
        let Some(peer) = self.peers.get_mut(&update.life.node) else {
            return false;
        };
        let bound = peer
            .answer_bound(&self.settings)
            .max(self.settings.probe_interval);
        let bound = Span(bound.0 + unseen);
        let doubtful = update.state == LifeState::Down && !peer.down && peer.silence(now) < bound;
        if doubtful {
            peer.unconfirmed.get_or_insert(UnconfirmedDeath {
                believed_by: now.after(bound),
                teller,
            });
            if peer.ask(&self.settings, now) {
                send(update.life.node, Content::Ask, out);
            }
        }
        !doubtful
    }

    fn knows(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.peers
            .get(&node)
            .is_some_and(|peer| peer.incarnation == incarnation)
    }

    fn heard(&mut self, node: NodeId, now: Instant, out: &mut Outbox<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        self.suspicions += u64::from(peer.suspicion.is_some());
        peer.heard(now);
        if peer.down {
            // It may be alive after all; it has to learn that it needs another life.
            if peer.tell_again(now) {
                self.swim
                    .tell_dead(node)
                    .into_iter()
                    .for_each(|packet| send(node, Content::Swim(packet), out));
            }
        } else {
            self.swim.heard(node);
        }
    }

    fn peer_up(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if incarnation != peer.incarnation {
            return self.mark_down(node, DownCause::Superseded, now, out);
        }
        if incarnation == peer.incarnation {
            self.suspicions += u64::from(peer.suspicion.is_some());
            peer.heard(now);
            if peer.down {
                let wishes = self.swim.revive(node);
                self.grant(wishes, None, now, out);
            }
        }
    }

    fn mark_down(
        &mut self,
        node: NodeId,
        cause: DownCause,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let ends = cause.has_ended() && !peer.ended;
        if peer.down && !ends {
            return;
        }
        peer.ended |= ends;
        out.push(Effect::Down(node, peer.incarnation, cause));
        if peer.down {
            return;
        }
        peer.down = true;
        self.suspicions += 1;
        peer.suspicion = None;
        peer.unconfirmed = None;
        if !ends {
            // Finds out whether the node may come back.
            peer.probe_port_at_once(now);
            out.push(Effect::PortProbe(node));
        }
        let wishes = self.swim.mark_down(node);
        self.grant(wishes, None, now, out);
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        while let Some(timer) = self.timers.due(now) {
            let wishes = self.swim.fire(timer);
            self.grant(wishes, None, now, out);
        }
        if self.poll_at.is_some_and(|at| at <= now) {
            self.poll_at = Some(now.after(POLL_EVERY));
            self.look_at_near(now, out);
            if self.looks_at_all() {
                self.look_at_all(now, out);
            }
            self.polls = self.polls.wrapping_add(1);
        }
    }

    /// Whether the next poll looks at all nodes, and not only at the near ones.
    #[must_use]
    pub fn looks_at_all(&self) -> bool {
        self.polls.is_multiple_of(self.polls_per_look())
    }

    fn polls_per_look(&self) -> u64 {
        self.peers.len().div_ceil(LOOKED_AT_PER_POLL).max(1) as u64
    }

    /// Interval at which the machine looks at all nodes.
    fn look_interval(&self) -> Span {
        Span(POLL_EVERY.0 * self.polls_per_look())
    }

    fn look_at_near(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        for node in self.near() {
            self.look_at(node, now, out);
        }
    }

    fn look_at_all(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let swim = &self.swim;
        for (node, peer) in &mut self.peers {
            let refuted = |suspicion: &mut Suspicion| {
                swim.refutations(*node)
                    .is_some_and(|refuted| refuted > suspicion.refutations)
            };
            self.suspicions += u64::from(peer.suspicion.take_if(refuted).is_some());
        }
        let overdue = self
            .peers
            .iter()
            .filter_map(|(node, peer)| verdict(peer, now).map(|cause| (*node, cause)));
        for (node, cause) in overdue.collect::<Vec<_>>() {
            self.mark_down(node, cause, now, out);
        }
        let asked = self.peers.iter_mut().filter(|(_, peer)| {
            !peer.down && (peer.suspicion.is_some() || peer.unconfirmed.is_some())
        });
        let asked = asked.filter_map(|(node, peer)| peer.ask(&self.settings, now).then_some(*node));
        asked.for_each(|node| send(node, Content::Ask, out));
    }

    /// The nodes that this node itself asks and port-probes: the next living ones in the ring of
    /// ids.
    fn near(&self) -> Vec<NodeId> {
        let me = self.settings.identity.node;
        let ring = self.peers.range(me..).chain(self.peers.range(..me));
        ring.filter(|(_, peer)| !peer.down)
            .map(|(node, _)| *node)
            .take(NEAR_MAX)
            .collect()
    }

    /// Port-probes, asks and suspects a near node, each if it is due.
    fn look_at(&mut self, node: NodeId, now: Instant, out: &mut Outbox<Effect>) {
        let settings = self.settings;
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| !peer.down) else {
            return;
        };
        if peer.port_probe(now) {
            out.push(Effect::PortProbe(node));
        }
        if peer.ask(&settings, now) {
            send(node, Content::Ask, out);
        }
        if peer.suspicion.is_none() && peer.silence(now) >= peer.suspect_after(&settings) {
            let wishes = self.swim.suspect(node);
            self.grant(wishes, None, now, out);
        }
    }

    /// Executes foca's outputs. `teller` is the node whose packet caused them.
    fn grant(
        &mut self,
        wishes: Outputs,
        teller: Option<NodeId>,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        for packet in wishes.packets {
            let to = packet.destination.node;
            if self.peers.contains_key(&to) {
                send(to, Content::Swim(packet), out);
            }
        }
        for (timer, after) in wishes.timers {
            let probed = self.swim.probed().and_then(|node| self.peers.get(&node));
            let bound = probed.map_or(Span::default(), |peer| peer.answer_bound(&self.settings));
            self.timers.arm(timer, after, bound, now);
        }
        for change in wishes.changes {
            self.change(change, teller, now, out);
        }
    }

    fn change(
        &mut self,
        change: Change,
        teller: Option<NodeId>,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let (Change::Up(life) | Change::Down(life) | Change::Suspected(life, _)) = change else {
            return;
        };
        let Some(peer) = self
            .peers
            .get_mut(&life.node)
            .filter(|peer| peer.incarnation == life.incarnation)
        else {
            return;
        };
        self.suspicions += 1;
        match change {
            Change::Up(_) if peer.down => {
                *peer = Peer::new(peer.incarnation, now);
                out.push(Effect::Up(life.node, life.incarnation));
            }
            Change::Down(_) if !peer.down => {
                peer.down = true;
                let cause = teller.map_or(DownCause::Silent(peer.silence(now)), DownCause::Told);
                out.push(Effect::Down(life.node, life.incarnation, cause));
                peer.probe_port_at_once(now);
                out.push(Effect::PortProbe(life.node));
            }
            Change::Suspected(_, refutations) if !peer.down => {
                let down_by = now.after(peer.suspect_for(&self.settings));
                peer.suspicion.get_or_insert(Suspicion {
                    down_by,
                    refutations,
                });
                if peer.ask(&self.settings, now) {
                    send(life.node, Content::Ask, out);
                }
            }
            _ => {}
        }
    }

    /// Moves every deadline if this event is much later than the deadline that it should have met.
    fn forgive_own_absence(&mut self, now: Instant) {
        let Some(late) = self
            .next_deadline()
            .map(|deadline| now.since(deadline))
            .filter(|late| *late >= AWAY_MIN)
        else {
            return;
        };
        // One grace at a time: a process that is always late must still find the dead.
        let graced = self
            .graced_at
            .is_some_and(|at| now.since(at) < self.settings.suspect.max(late));
        let grace = if graced { Span::default() } else { AWAY_GRACE };
        self.graced_at = if graced { self.graced_at } else { Some(now) };
        let away = Span(late.0.saturating_add(grace.0));
        self.peers
            .values_mut()
            .for_each(|peer| peer.forgive(away, now));
        self.timers.shift(away);
        self.poll_at = self.poll_at.map(|at| at.after(away).min(now));
        self.swim
            .probed()
            .into_iter()
            .for_each(|node| self.swim.heard(node));
    }
}

/// The cause of death if a node has to be declared dead now.
fn verdict(peer: &Peer, now: Instant) -> Option<DownCause> {
    if peer.down {
        return None;
    }
    let told = peer
        .unconfirmed
        .filter(|unconfirmed| now >= unconfirmed.believed_by)
        .map(|unconfirmed| DownCause::Told(unconfirmed.teller));
    let silent = peer
        .suspicion
        .filter(|suspicion| now >= suspicion.down_by)
        .map(|_| DownCause::Silent(peer.silence(now)));
    told.or(silent)
}

fn send(to: NodeId, content: Content, out: &mut Outbox<Effect>) {
    // Everything that foca writes fits; see `codec::PACKET_BYTES_MAX`.
    if let Ok(bytes) = Datagram::V1(content).encode() {
        out.push(Effect::Datagram { to, bytes });
    }
}
