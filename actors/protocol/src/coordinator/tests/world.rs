//! A discrete-event world of many nodes: seeded delays, deaths, restarts, pauses, joins, drains and cuts. It plays the part of
//! the membership and of the network, checks every applied outcome against the oracle, and never looks inside a machine.

use super::node::{Node, Schedule, Stream};
use super::oracle::Oracle;
use crate::coordinator::{Effect, In, Outcome};
use crate::ident::{Epoch, Lineage, NodeId, Round};
use crate::machine::{Machine, Outbox};
use crate::policy::Quorum;
use crate::time::Instant;
use crate::view::{Member, View};
use crate::wire::{Frame, Header, Message};
use std::collections::{BTreeMap, BTreeSet};

pub const DELAY_MAX: u64 = 1_000;
/// How long after a death the others hear of it at most.
pub const DETECTION_MAX: u64 = 6_000;

/// A small generator: one seed drives a run.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

#[derive(Clone, Debug)]
pub enum Fault {
    Kill(NodeId),
    /// Starts a node: a new one, or one that died, under a new incarnation.
    Start(NodeId),
    Pause(NodeId, u64),
    Drain(NodeId),
    /// Every frame and stream between the two groups is lost.
    Cut(BTreeSet<NodeId>),
    Heal,
}

enum Event {
    Train(NodeId, u64),
    Frame(NodeId, Header, Box<Message>),
    Stream(NodeId, Stream),
    Tell(NodeId, u64, In),
    Tick(NodeId, u64),
    Fault(Fault),
    /// The membership looks around: who is a candidate, who must join again.
    Look,
}

pub struct World {
    pub nodes: BTreeMap<NodeId, Node>,
    pub oracle: Oracle,
    pub seed: u64,
    looks_at: Option<u64>,
    pub now: u64,
    pub random: Random,
    pub schedule: Schedule,
    pub quorum: Quorum,
    pub replicas: usize,
    /// Lost shards that a run may have.
    pub losses_allowed: bool,
    pub slow_nodes: BTreeSet<NodeId>,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    in_order: BTreeMap<(NodeId, NodeId), u64>,
    cut: Option<BTreeSet<NodeId>>,
    incarnations: u64,
    lineage: Lineage,
    pub steps_max: u64,
    pub applied: BTreeMap<NodeId, u64>,
    pub decided_at: BTreeMap<Round, u64>,
}

impl World {
    pub fn new(seed: u64, ids: &[u64], replicas: usize, quorum: Quorum, schedule: Schedule) -> Self {
        let mut world = Self {
            nodes: BTreeMap::new(),
            oracle: Oracle::default(),
            seed,
            looks_at: None,
            now: 0,
            random: Random(seed),
            schedule,
            quorum,
            replicas,
            losses_allowed: false,
            slow_nodes: BTreeSet::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            in_order: BTreeMap::new(),
            cut: None,
            incarnations: 1,
            lineage: Lineage(77),
            steps_max: 40,
            applied: BTreeMap::new(),
            decided_at: BTreeMap::new(),
        };
        for id in ids {
            world.nodes.insert(NodeId(*id), Node::new(NodeId(*id), 1, schedule, replicas, quorum));
        }
        let members: Vec<Member> = world.nodes.values().map(|node| node.member.clone()).collect();
        let view = View::new(Epoch::FOUNDING, members).unwrap();
        for id in view.ids() {
            world.nodes.get_mut(&id).unwrap().outside = false;
            let formed = In::Formed { view: view.clone(), lineage: world.lineage };
            world.tell_later(id, formed, 2 * DELAY_MAX);
            world.train_later(id);
        }
        world
    }

    pub fn fault_at(&mut self, at: u64, fault: Fault) {
        self.at(at, Event::Fault(fault));
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn later(&mut self, event: Event, delay_max: u64) {
        let at = self.now + 1 + self.random.below(delay_max);
        self.at(at, event);
    }

    fn look_later(&mut self, delay_max: u64) {
        self.look_by(self.now + 1 + delay_max);
    }

    /// One look at a time is on its way.
    fn look_by(&mut self, at: u64) {
        if self.looks_at.is_none_or(|planned| planned <= self.now || at < planned) {
            self.looks_at = Some(at);
            self.at(at, Event::Look);
        }
    }

    fn tell_later(&mut self, id: NodeId, event: In, delay_max: u64) {
        let incarnation = self.nodes[&id].member.incarnation.0;
        self.later(Event::Tell(id, incarnation, event), delay_max);
    }

    fn train_later(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        if node.next.step.0 >= self.steps_max || node.draining && node.drained {
            return;
        }
        let (incarnation, slow) = (node.member.incarnation.0, self.slow_nodes.contains(&id));
        self.later(Event::Train(id, incarnation), if slow { 400 * DELAY_MAX } else { 4 * DELAY_MAX });
    }

    /// Runs until `until` or until nothing is left to happen.
    pub fn run(&mut self, until: u64) {
        let mut events = 0u64;
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= until) {
            let ((at, _), event) = entry.remove_entry();
            events += 1;
            assert!(events < 3_000_000, "the simulation does not end");
            self.now = self.now.max(at);
            self.step(event);
        }
    }

    fn is_up(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.alive)
    }

    fn connected(&self, one: NodeId, other: NodeId) -> bool {
        self.cut.as_ref().is_none_or(|group| group.contains(&one) == group.contains(&other))
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Train(id, incarnation) => self.train(id, incarnation),
            Event::Frame(to, header, message) if self.paused(to) => self.at_wake(to, Event::Frame(to, header, message)),
            Event::Frame(to, header, message) if self.connected(to, header.sender) => self.feed(to, In::Frame { header, message }),
            Event::Frame(..) => {}
            Event::Stream(to, stream) if self.paused(to) => self.at_wake(to, Event::Stream(to, stream)),
            Event::Stream(to, stream) => self.deliver(to, stream),
            Event::Tell(id, incarnation, event) if self.paused(id) => self.at_wake(id, Event::Tell(id, incarnation, event)),
            // A membership does not say that a node is back after it said that the node died.
            Event::Tell(id, _, In::Back(other)) if !self.is_up(other) || !self.connected(id, other) => {}
            Event::Tell(id, incarnation, event) => {
                if self.nodes.get(&id).is_some_and(|node| node.member.incarnation.0 == incarnation) {
                    self.feed(id, event);
                }
            }
            Event::Tick(id, incarnation) if self.paused(id) => self.at_wake(id, Event::Tick(id, incarnation)),
            Event::Tick(id, incarnation) => {
                let due = self.nodes.get(&id).filter(|node| node.member.incarnation.0 == incarnation);
                if due.and_then(|node| node.machine.next_deadline()).is_some_and(|deadline| deadline.0 <= self.now) {
                    self.feed(id, In::Tick);
                }
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Look => self.look(),
        }
    }

    fn paused(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.stopped_until > self.now)
    }

    fn at_wake(&mut self, id: NodeId, event: Event) {
        let at = self.nodes[&id].stopped_until;
        self.at(at, event);
    }

    fn train(&mut self, id: NodeId, incarnation: u64) {
        if self.paused(id) {
            return self.at_wake(id, Event::Train(id, incarnation));
        }
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive && node.member.incarnation.0 == incarnation) else { return };
        if node.waiting || node.failed.is_some() || node.drained || node.next.step.0 >= self.steps_max {
            return;
        }
        node.train();
        let (round, terms, frozen) = (node.round, node.next, node.frozen.clone());
        if !node.outside {
            // The same round's contribution of a node that rejoined replaces one that was never decided.
            self.oracle.contributions.insert((round, id), frozen);
        }
        self.feed(id, In::Contribute { round, terms, samples: None });
    }

    pub fn feed(&mut self, id: NodeId, event: In) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive) else { return };
        let mut out = Outbox::default();
        node.machine.handle(event, Instant(self.now), &mut out);
        let incarnation = node.member.incarnation.0;
        if let Some(deadline) = node.machine.next_deadline() {
            self.at(deadline.0.max(self.now + 1), Event::Tick(id, incarnation));
        }
        for effect in out.take() {
            if std::env::var("TRACE").is_ok() {
                match &effect {
                    Effect::Send { to, frame: Frame::V1 { header, message } } => eprintln!(
                        "{} {id} -> {to} r{} b{}.{} {}",
                        self.now,
                        header.round.0,
                        header.ballot.counter,
                        header.ballot.node.0,
                        format!("{message:?}").chars().take(300).collect::<String>()
                    ),
                    Effect::Open(plan) => {
                        eprintln!("{} {id} OPEN {:?} C{:?} A{:?}", self.now, plan.attempt, plan.contributors, plan.participants)
                    }
                    Effect::Publish(p) => eprintln!("{} {id} PUBLISH {:?} -> {:?} moves {:?}", self.now, p.attempt, p.receivers, p.moves),
                    Effect::Apply { attempt, outcome, drained, .. } => eprintln!(
                        "{} {id} APPLY {attempt:?} {drained} {:?} next {:?}",
                        self.now,
                        outcome.contributors,
                        outcome.view.ids().collect::<Vec<_>>()
                    ),
                    other => eprintln!("{} {id} {other:?}", self.now),
                }
            }
            self.execute(id, effect);
        }
        self.progress(id);
    }

    fn execute(&mut self, id: NodeId, effect: Effect) {
        let node = self.nodes.get_mut(&id).unwrap();
        match effect {
            Effect::Send { to, frame } => self.send(id, to, &frame),
            Effect::Open(plan) => {
                let streams = node.open(plan);
                self.send_streams(id, streams);
            }
            Effect::Publish(publication) => {
                let streams = node.publish(publication);
                self.send_streams(id, streams);
            }
            Effect::Discard(_) => node.movement = None,
            Effect::Apply { attempt, outcome, drained, .. } => {
                node.drained = drained;
                let lost = node.apply(attempt, &outcome, self.schedule);
                self.check(id, &outcome, &lost);
                if self.nodes.values().any(|node| node.alive && !outcome.view.contains(node.member.id)) {
                    self.look_later(DETECTION_MAX);
                }
                self.train_later(id);
            }
            Effect::Fail(error) => node.failed = Some(error),
            Effect::Stranded => {
                node.outside = true;
                self.gone(id);
            }
            Effect::Waiting(why) => node.waits_for = why,
        }
    }

    /// The membership of the others learns that a node is no member any more.
    fn gone(&mut self, id: NodeId) {
        let incarnation = self.nodes[&id].member.incarnation;
        for other in self.others(id) {
            self.tell_later(other, In::Lost(id, incarnation), DETECTION_MAX);
        }
        self.look_later(2 * DETECTION_MAX);
    }

    fn others(&self, id: NodeId) -> Vec<NodeId> {
        self.nodes.keys().copied().filter(|other| *other != id && self.is_up(*other)).collect()
    }

    fn check(&mut self, id: NodeId, outcome: &Outcome, lost: &[crate::ident::ShardId]) {
        self.decided_at.entry(outcome.round).or_insert(self.now);
        self.oracle.decide(outcome, lost);
        assert!(self.losses_allowed || outcome.momentum_lost == 0, "momentum was lost in {:?}", outcome.round);
        let node = &self.nodes[&id];
        assert_eq!(node.parameters, self.oracle.values[&outcome.round], "{id} holds other parameters after {}", outcome.round);
        let layout = crate::shards::Layout::new(self.schedule.elements);
        for (shard, state) in &node.states {
            let range = layout.range(*shard);
            assert_eq!(state.anchor, self.oracle.anchors[&outcome.round][range.clone()], "{id}: anchor of {shard}, {}", outcome.round);
            assert_eq!(state.momentum, self.oracle.momenta[&outcome.round][range], "{id}: momentum of {shard}, {}", outcome.round);
        }
        *self.applied.entry(id).or_default() += 1;
    }

    /// Frames travel encoded and arrive in order per pair of nodes.
    fn send(&mut self, from: NodeId, to: NodeId, frame: &Frame) {
        let Frame::V1 { header, message } = Frame::decode(&frame.encode().unwrap()).unwrap();
        let delayed = self.now + 1 + self.random.below(DELAY_MAX);
        let last = self.in_order.entry((from, to)).or_default();
        *last = delayed.max(*last);
        let at = *last;
        self.at(at, Event::Frame(to, header, message));
    }

    fn send_streams(&mut self, from: NodeId, streams: Vec<(NodeId, Stream)>) {
        _ = from;
        for (to, stream) in streams {
            self.later(Event::Stream(to, stream), 3 * DELAY_MAX);
        }
    }

    fn deliver(&mut self, to: NodeId, stream: Stream) {
        let from = stream.header.sender;
        // A stream of a node that died meanwhile may be cut off.
        let sender_lives = self.nodes.get(&from).is_some_and(|node| node.alive && node.member.incarnation == stream.header.incarnation);
        if !self.connected(from, to) || !self.is_up(to) || (!sender_lives && self.random.below(2) == 0) {
            return;
        }
        let node = self.nodes.get_mut(&to).unwrap();
        if node.machine.admits(&stream.header) {
            node.parked.insert(stream.key(), stream);
            self.progress(to);
        }
    }

    fn progress(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive) else { return };
        node.reduce();
        let published = node.publish_reduced();
        let mut told = node.take_arrived();
        if let Some((attempt, streams)) = published {
            self.send_streams(id, streams);
            told.push(In::Reduced(attempt));
        }
        for event in told {
            self.feed(id, event);
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(id) if self.is_up(id) => {
                self.nodes.get_mut(&id).unwrap().alive = false;
                self.gone(id);
            }
            Fault::Start(id) if !self.is_up(id) => {
                self.incarnations += 1;
                let node = Node::new(id, self.incarnations, self.schedule, self.replicas, self.quorum);
                self.nodes.insert(id, node);
                self.train_later(id);
                self.look_later(DETECTION_MAX);
            }
            Fault::Pause(id, span) if self.is_up(id) => {
                let node = self.nodes.get_mut(&id).unwrap();
                node.stopped_until = self.now + span;
                if span > DETECTION_MAX {
                    self.gone(id);
                }
                self.look_by(self.now + span + 1);
            }
            Fault::Drain(id) if self.is_up(id) => {
                self.nodes.get_mut(&id).unwrap().draining = true;
                for node in self.nodes.keys().copied().collect::<Vec<_>>() {
                    self.tell_later(node, In::Leaving { node: id, contributes: true }, DELAY_MAX);
                }
            }
            Fault::Cut(group) => self.cut(group),
            Fault::Heal => {
                self.cut = None;
                self.look_later(DELAY_MAX);
            }
            _ => {}
        }
    }

    fn cut(&mut self, group: BTreeSet<NodeId>) {
        self.cut = Some(group);
        let ids: Vec<NodeId> = self.nodes.keys().copied().filter(|id| self.is_up(*id)).collect();
        for one in &ids {
            for other in ids.iter().filter(|other| !self.connected(*one, **other)).copied().collect::<Vec<_>>() {
                let incarnation = self.nodes[&other].member.incarnation;
                self.tell_later(*one, In::Lost(other, incarnation), DETECTION_MAX);
            }
        }
    }

    fn is_candidate(&self, id: NodeId) -> bool {
        let node = &self.nodes[&id];
        node.outside && !node.drained && (node.waiting || node.last.is_some())
    }

    /// Plays the membership: whoever is left out resigns and asks to join; everybody hears of the candidates and of who is back.
    fn look(&mut self) {
        let best = self.nodes.values().filter(|node| node.alive && !node.outside).max_by_key(|node| node.round).map(|node| node.member.id);
        let Some(view) = best.and_then(|best| self.nodes[&best].machine.view().cloned()) else { return };
        let ids: Vec<NodeId> = self.nodes.keys().copied().filter(|id| self.is_up(*id) && !self.paused(*id)).collect();
        for id in &ids {
            let node = &self.nodes[id];
            let left_out = view.member(*id).is_none_or(|member| member.incarnation != node.member.incarnation);
            let reachable = best.is_some_and(|best| self.connected(best, *id));
            if node.draining && left_out && reachable {
                // The decision was lost on its way: the node may end all the same.
                self.nodes.get_mut(id).unwrap().drained = true;
            } else if !node.outside && left_out && reachable && !node.drained {
                self.nodes.get_mut(id).unwrap().outside = true;
                self.feed(*id, In::Resign);
            }
        }
        // Whoever this very view admits, and is about to hear so, asks for nothing.
        let admitted = |node: &Node| view.member(node.member.id) == Some(&node.member) && node.machine.place().lineage.is_decided();
        let asks = |id: &&NodeId| self.is_candidate(**id) && !admitted(&self.nodes[*id]);
        let candidates: Vec<Member> = ids.iter().filter(asks).map(|id| self.nodes[id].member.clone()).collect();
        for one in &ids {
            let near = candidates.iter().filter(|candidate| self.connected(*one, candidate.id)).cloned().collect();
            self.tell_later(*one, In::Joiners { epoch: view.epoch(), members: near }, DELAY_MAX);
            for other in ids.iter().filter(|other| *other != one && self.connected(*one, **other)).copied().collect::<Vec<_>>() {
                if !self.nodes[&other].outside {
                    self.tell_later(*one, In::Back(other), DELAY_MAX);
                    self.tell_later(*one, In::PeerUp(other), 2 * DELAY_MAX);
                }
            }
        }
        if !candidates.is_empty() {
            self.look_later(DETECTION_MAX);
        }
    }
}
