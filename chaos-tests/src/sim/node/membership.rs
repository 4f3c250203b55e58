//! The membership of a simulated node, with liveness: decodes, lets the machines decide, hands on what they want. As the actor does.

use crate::sim::mail::{Failure, Mail, Suspects, ToAggregator, ToGossip, ToMembership, ToRounds, Wish};
use slowmo_protocol::coordinator;
use slowmo_protocol::gossip_peer;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::liveness::{self, Liveness};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::membership::{Effect, In, Membership, Settings};
use slowmo_protocol::time::{Instant, Span};
use std::collections::BTreeMap;

/// Round trips are read at one in so many ticks.
const ROUND_TRIP_TICKS: u64 = 16;

/// What the transport has heard: how often, by peer.
pub type Heard = BTreeMap<NodeId, u64>;

/// The machines and what they were told last.
pub struct MembershipPart {
    machine: Membership,
    liveness: Liveness,
    heard: Heard,
    ticks: u64,
    suspects: Suspects,
    suspicions: u64,
    unheard: Suspects,
    round_trip: Span,
    me: NodeId,
    /// Why the node is no member.
    pub waiting: Option<String>,
}

impl MembershipPart {
    /// A node that has met nobody.
    pub fn new(settings: Settings, liveness: liveness::Settings, round_trip: Span) -> Self {
        let me = settings.identity.node;
        Self {
            machine: Membership::new(settings),
            liveness: Liveness::new(liveness),
            heard: Heard::new(),
            ticks: 0,
            suspects: Suspects::new(),
            suspicions: 0,
            unheard: Suspects::new(),
            round_trip,
            me,
            waiting: None,
        }
    }

    /// When it must be given a tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.machine.next_deadline(), self.liveness.next_deadline()].into_iter().flatten().min()
    }

    /// Takes a message.
    pub fn take(&mut self, message: ToMembership, heard: &Heard, now: Instant, wishes: &mut Vec<Wish>) {
        let mut out = Outbox::default();
        match message {
            ToMembership::In(event) => {
                if matches!(event, In::Tick) {
                    self.tick(heard, now, wishes, &mut out);
                }
                self.machine.handle(event, now, &mut out);
            }
            ToMembership::Datagram(from, bytes) => self.watch(liveness::In::Datagram { from, bytes }, now, wishes, &mut out),
            ToMembership::KnockRefused(node) => {
                self.hear(node, heard, now, wishes, &mut out);
                self.watch(liveness::In::KnockRefused(node), now, wishes, &mut out);
            }
            ToMembership::PeerUp(node, incarnation) => {
                self.watch(liveness::In::PeerUp(node, incarnation), now, wishes, &mut out);
                self.machine.handle(In::PeerUp(node, incarnation), now, &mut out);
                wishes.push(Wish::Tell(Mail::Rounds(ToRounds::In(coordinator::In::PeerUp(node)))));
            }
            ToMembership::PeerDown(node, departed) => {
                if departed {
                    self.watch(liveness::In::Gone(node), now, wishes, &mut out);
                }
                self.machine.handle(In::PeerDown { node, departed }, now, &mut out);
                wishes.push(Wish::Tell(Mail::Rounds(ToRounds::In(coordinator::In::PeerDown(node)))));
            }
        }
        self.tell_suspects(wishes);
        self.execute(out, now, wishes);
    }

    fn tick(&mut self, heard: &Heard, now: Instant, wishes: &mut Vec<Wish>, out: &mut Outbox<Effect>) {
        self.ticks += 1;
        let watched: Vec<NodeId> = self.liveness.watched().collect();
        self.heard.retain(|node, _| self.liveness.watches(*node));
        for node in watched {
            self.hear(node, heard, now, wishes, out);
            if self.ticks.is_multiple_of(ROUND_TRIP_TICKS) {
                self.watch(liveness::In::RoundTrip(node, self.round_trip), now, wishes, out);
            }
        }
        if !self.liveness.heard_by_others(now).eq(self.unheard.iter().copied()) {
            self.unheard = self.liveness.heard_by_others(now).collect();
            wishes.push(Wish::Tell(Mail::Rounds(ToRounds::In(coordinator::In::Unheard(self.unheard.clone())))));
        }
        if self.liveness.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.watch(liveness::In::Tick, now, wishes, out);
        }
    }

    fn hear(&mut self, node: NodeId, heard: &Heard, now: Instant, wishes: &mut Vec<Wish>, out: &mut Outbox<Effect>) {
        let count = heard.get(&node).copied().unwrap_or(0);
        if self.heard.insert(node, count).is_some_and(|before| before != count) {
            self.watch(liveness::In::Heard(node), now, wishes, out);
        }
    }

    /// Tells liveness; its verdicts go to the membership.
    fn watch(&mut self, event: liveness::In, now: Instant, wishes: &mut Vec<Wish>, out: &mut Outbox<Effect>) {
        let mut pulses = Outbox::default();
        self.liveness.handle(event, now, &mut pulses);
        for effect in pulses.take() {
            match effect {
                liveness::Effect::Datagram { to, bytes } => wishes.push(Wish::Datagram(to, bytes)),
                liveness::Effect::Knock(node) => wishes.push(Wish::Knock(node)),
                liveness::Effect::Down(node, incarnation, cause) => {
                    self.machine.handle(In::Down { node, incarnation, ended: cause.has_ended() }, now, out);
                }
                liveness::Effect::Up(node, _) => self.machine.handle(In::Up(node), now, out),
            }
        }
    }

    fn tell_suspects(&mut self, wishes: &mut Vec<Wish>) {
        let looks = std::mem::replace(&mut self.suspicions, self.liveness.suspicions()) != self.suspicions;
        if looks && !self.liveness.suspected().eq(self.suspects.iter().copied()) {
            let suspects: Suspects = self.liveness.suspected().collect();
            self.suspects.clone_from(&suspects);
            wishes.push(Wish::Tell(Mail::Gossip(ToGossip::In(gossip_peer::In::Suspects(suspects)))));
        }
    }

    fn execute(&mut self, mut out: Outbox<Effect>, now: Instant, wishes: &mut Vec<Wish>) {
        for effect in out.take() {
            self.act(effect, now, wishes);
        }
    }

    fn act(&mut self, effect: Effect, now: Instant, wishes: &mut Vec<Wish>) {
        let mut rounds = |event: coordinator::In| wishes.push(Wish::Tell(Mail::Rounds(ToRounds::In(event))));
        match effect {
            Effect::Send { to, frame } => wishes.push(Wish::Frame(to, frame)),
            Effect::Formed { view, lineage } => rounds(coordinator::In::Formed { view, lineage }),
            Effect::Fail(error) => {
                wishes.push(Wish::Tell(Mail::Rounds(ToRounds::FoundingFailed)));
                wishes.push(Wish::Tell(Mail::Aggregator(ToAggregator::Failed(Failure::Founding(error)))));
            }
            Effect::Lost { node, incarnation, ended } => {
                rounds(coordinator::In::Lost { node, incarnation, ended });
                wishes.push(Wish::Tell(Mail::Gossip(ToGossip::In(gossip_peer::In::MemberLost(node)))));
            }
            Effect::Back(node) => {
                rounds(coordinator::In::Back(node));
                wishes.push(Wish::Tell(Mail::Gossip(ToGossip::In(gossip_peer::In::MemberBack(node)))));
            }
            Effect::Joiners { epoch, members } => rounds(coordinator::In::Joiners { epoch, members }),
            Effect::Leaving { node, incarnation, contributes } => rounds(coordinator::In::Leaving { node, incarnation, contributes }),
            Effect::Resign(gives_up) => rounds(coordinator::In::Resign(gives_up)),
            Effect::Return => rounds(coordinator::In::Return),
            Effect::Drained => {
                rounds(coordinator::In::Resign(coordinator::GivesUp::Membership));
                wishes.push(Wish::Tell(Mail::Aggregator(ToAggregator::Drained)));
            }
            Effect::Waiting(why) => self.waiting = why,
            Effect::OtherCluster { .. } => {}
            Effect::Connect(address) => wishes.push(Wish::Connect(address)),
            Effect::Disconnect(node) => wishes.push(Wish::Disconnect(node)),
            Effect::Watch(nodes) => {
                let (mut others, event) = (Outbox::default(), liveness::In::Members(nodes));
                self.watch(event, now, wishes, &mut others);
                self.execute(others, now, wishes);
            }
            Effect::Search(on) => wishes.push(Wish::Search(on)),
            Effect::Left => wishes.push(Wish::Tell(Mail::Aggregator(ToAggregator::Left))),
        }
    }

    /// This node.
    pub fn id(&self) -> NodeId {
        self.me
    }
}
