//! One machine, and what is told to it by hand: members with the ids 1, 2, …; this one is node 1,
//! in round 1.

use super::identity;
use crate::algorithm::{Gossip, LatePeers};
use crate::gossip_peer::{Effect, GossipPeer, In, Key, Mix, Plan, Waits};
use crate::ident::{Epoch, GroupId, Incarnation, Lineage, NodeId, Round, Step, Term};
use crate::machine::{Machine, Outbox, Place};
use crate::published::PublicKey;
use crate::time::{Instant, Span};
use crate::view::{Member, View};
use crate::wire::{Frame, Header, Message};

pub const GRACE: u64 = 100;
pub const SETTLE: u64 = 50;
pub const LEAVE: u64 = 300;
pub const ROUND: Round = Round(1);

pub struct Bench {
    pub machine: GossipPeer,
    pub now: u64,
}

/// A view of these nodes; each may be another incarnation of it.
pub fn view_of(epoch: Epoch, ids: impl IntoIterator<Item = (NodeId, u64)>) -> View {
    let member = |(id, incarnation)| Member {
        id,
        incarnation: Incarnation(incarnation),
        address: ([127, 0, 0, 1], 1).into(),
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    View::new(epoch, ids.into_iter().map(member).collect()).unwrap()
}

/// The founding view of so many members, or a later one.
pub fn members(size: u64, epoch: u64) -> View {
    view_of(Epoch(epoch), (1..=size).map(|id| (NodeId(id), 0)))
}

pub fn key(from: u64, step: u64) -> Key {
    (ROUND, Step(step), NodeId(from))
}

/// A header of node `from` in `round` of the founding view.
pub fn header(from: u64, round: u64) -> Header {
    let place = Place {
        lineage: Lineage(1),
        epoch: Epoch::BOOTSTRAP,
        round: Round(round),
        term: Term::default(),
        attempt: 0,
    };
    identity(NodeId(from)).header(place)
}

pub fn overlapped(staleness: u32) -> Gossip {
    Gossip {
        staleness,
        ..Gossip::default()
    }
}

pub fn skipping(staleness: u32) -> Gossip {
    Gossip {
        late_peers: LatePeers::Skip,
        ..overlapped(staleness)
    }
}

impl Bench {
    pub fn new(size: u64, gossip: Gossip) -> Self {
        let waits = Waits {
            message: Span(GRACE),
            settle: Span(SETTLE),
            leave: Span(LEAVE),
        };
        Self {
            machine: GossipPeer::new(
                identity(NodeId(1)),
                gossip,
                waits,
                (&members(size, 1), Lineage(1), ROUND),
            ),
            now: 0,
        }
    }

    pub fn feed(&mut self, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        self.machine.handle(event, Instant(self.now), &mut out);
        out.take()
    }

    pub fn gossip(&mut self, step: u64) -> Vec<Effect> {
        self.gossip_in(step, ROUND)
    }

    pub fn gossip_in(&mut self, step: u64, round: Round) -> Vec<Effect> {
        self.feed(In::Gossip {
            step: Step(step),
            turn: step,
            round,
        })
    }

    pub fn settle(&mut self, step: u64) -> Vec<Effect> {
        self.feed(In::Settle {
            step: Step(step),
            round: ROUND,
        })
    }

    pub fn offer(&mut self, from: u64, step: u64) -> Vec<Effect> {
        self.feed(In::Offered {
            header: header(from, 1),
            step: Step(step),
            weight: 0.5,
        })
    }

    /// A message begins and is read to its end.
    pub fn arrive(&mut self, from: u64, step: u64) -> Vec<Effect> {
        let mut effects = self.offer(from, step);
        if effects.contains(&Effect::Receive(key(from, step))) {
            effects = self.feed(In::Arrived(key(from, step)));
        }
        effects
    }

    pub fn frame(&mut self, from: u64, message: Message) -> Vec<Effect> {
        self.feed(In::Frame {
            header: header(from, 1),
            message: Box::new(message),
        })
    }

    /// Node `from` has the message of `step`.
    pub fn acknowledge(&mut self, from: u64, step: u64) -> Vec<Effect> {
        self.frame(from, Message::GossipMixed { step: Step(step) })
    }

    pub fn suspect(&mut self, nodes: &[u64]) -> Vec<Effect> {
        self.feed(In::Suspects(nodes.iter().copied().map(NodeId).collect()))
    }

    pub fn lose(&mut self, node: u64) -> Vec<Effect> {
        self.feed(In::MemberLost(NodeId(node)))
    }

    pub fn regain(&mut self, node: u64) -> Vec<Effect> {
        self.feed(In::MemberBack(NodeId(node)))
    }

    pub fn tick_at(&mut self, now: u64) -> Vec<Effect> {
        self.now = now;
        self.feed(In::Tick)
    }

    pub fn waits_for(&self) -> Vec<(u64, u64)> {
        let needed = self.machine.needed();
        let awaited = self
            .machine
            .inbox
            .awaited()
            .filter(|(step, _)| needed.is_some_and(|needed| *step <= needed));
        awaited.map(|(step, node)| (step.0, node.0)).collect()
    }

    pub fn late(&self) -> Vec<NodeId> {
        self.machine
            .stragglers()
            .into_iter()
            .filter(|straggler| straggler.skipped)
            .map(|straggler| straggler.node)
            .collect()
    }
}

pub fn mix(effects: &[Effect]) -> Option<&Mix> {
    effects.iter().find_map(|effect| {
        if let Effect::Mix(mix) = effect {
            Some(mix)
        } else {
            None
        }
    })
}

pub fn arrivals(effects: &[Effect]) -> Vec<Key> {
    mix(effects).expect("a mix").arrivals.clone()
}

pub fn plan(effects: &[Effect]) -> Option<&Plan> {
    effects.iter().find_map(|effect| {
        if let Effect::Ship(plan) = effect {
            Some(plan)
        } else {
            None
        }
    })
}

/// Lists the nodes that the gossip went to.
pub fn out(effects: &[Effect]) -> Vec<u64> {
    plan(effects)
        .map(|plan| plan.out.iter().map(|to| to.0).collect())
        .unwrap_or_default()
}

/// The frames that were sent.
pub fn sends(effects: &[Effect]) -> Vec<(u64, Message)> {
    let frame = |effect: &Effect| match effect {
        Effect::Send {
            to,
            frame: Frame::V1 { message, .. },
        } => Some((to.0, (**message).clone())),
        _ => None,
    };
    effects.iter().filter_map(frame).collect()
}

pub fn mixed(step: u64) -> Message {
    Message::GossipMixed { step: Step(step) }
}

pub fn refused(step: u64, reached: u64) -> Message {
    Message::GossipRefused {
        step: Step(step),
        reached: Step(reached),
    }
}

pub fn skipped(first: u64, last: u64) -> Message {
    Message::GossipSkipped {
        first: Step(first),
        last: Step(last),
    }
}

pub fn ask(step: u64) -> Message {
    Message::GossipAsk { step: Step(step) }
}

pub fn reclaimed(step: u64) -> Message {
    Message::GossipReclaimed { step: Step(step) }
}
