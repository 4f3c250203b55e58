//! Many coordinators in one discrete-event simulation: frames in order per pair, streams with any delay, a numeric model whose
//! result is compared with the single-process oracle at every applied round.

use super::node::{Content, Node, Stream};
use super::oracle::{Expected, GAMMA, Oracle, Random};
use crate::coordinator::{Effect, In, Outcome, RoundError, RoundKind, Terms};
use crate::ident::{NodeId, Step};
use crate::machine::{Machine, Outbox};
use crate::time::{Instant, Span};
use crate::view::tests::view;
use crate::wire::{Frame, Header, Message};
use std::collections::BTreeMap;

pub const ROUND_TIMEOUT: Span = Span(1_000_000);
const DELAY_MAX: u64 = 200;

/// One run: its size, its schedule and what goes wrong.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub members: usize,
    pub replicas: usize,
    pub elements: usize,
    pub gradients: usize,
    pub kinds: Vec<RoundKind>,
    /// The node of this rank dies at this instant.
    pub death: Option<(usize, u64)>,
    /// The node of this rank expects other terms in this round.
    pub odd: Option<(usize, u64, Terms)>,
    /// Streams of the node of this rank vanish from this round on.
    pub silent: Option<(usize, u64)>,
    /// Frames arrive twice, and frames of nobody's arrive too.
    pub noise: bool,
}

#[derive(Clone)]
enum Event {
    Contribute(NodeId),
    Frame(NodeId, Header, Message),
    Stream(NodeId, Stream),
    Reduce(NodeId, crate::coordinator::Attempt),
    Lost(NodeId, NodeId),
    Tick(NodeId),
}

pub struct Simulation {
    scenario: Scenario,
    pub nodes: BTreeMap<NodeId, Node>,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    now: u64,
    random: Random,
    in_order: BTreeMap<(NodeId, NodeId), u64>,
    expected: Vec<Expected>,
    outcomes: BTreeMap<u64, Outcome>,
    pub dead: Option<NodeId>,
}

impl Simulation {
    pub fn new(scenario: Scenario) -> Self {
        let ids: Vec<u64> = (0..scenario.members as u64).map(|rank| rank * 5 + 2).collect();
        let view = view(&ids);
        let nodes: BTreeMap<_, _> = view.ids().enumerate().map(|(rank, id)| (id, Node::new(id, rank, &view, &scenario))).collect();
        let mut oracle = Oracle::new(scenario.members, scenario.elements);
        let closed = |(round, kind): (usize, &RoundKind)| oracle.close(round as u64, *kind, scenario.gradients);
        let expected = scenario.kinds.iter().enumerate().map(closed).collect();
        let random = Random(scenario.seed);
        let (queue, in_order, outcomes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut simulation = Self { scenario, nodes, queue, sequence: 0, now: 0, random, in_order, expected, outcomes, dead: None };
        for id in view.ids() {
            simulation.later(Event::Contribute(id), 3 * DELAY_MAX);
        }
        simulation
    }

    /// Runs until nothing is left to happen, checking after every event.
    pub fn run(&mut self) {
        let mut events = 0;
        while let Some(((at, _), event)) = self.queue.pop_first() {
            events += 1;
            assert!(events < 2_000_000, "the simulation does not end");
            self.now = self.now.max(at);
            self.die_when_due();
            self.step(event);
        }
        assert!(self.nodes.values().all(|node| self.dead == Some(node.id) || node.movement.is_none()), "a round never ended");
    }

    fn die_when_due(&mut self) {
        let Some((rank, at)) = self.scenario.death.filter(|(_, at)| self.dead.is_none() && self.now >= *at) else { return };
        _ = at;
        let victim = *self.nodes.keys().nth(rank).unwrap();
        self.dead = Some(victim);
        for id in self.nodes.keys().copied().filter(|id| *id != victim).collect::<Vec<_>>() {
            self.later(Event::Lost(id, victim), 4 * DELAY_MAX);
        }
    }

    fn later(&mut self, event: Event, delay_max: u64) {
        let at = self.now + self.random.below(delay_max);
        self.at(at, event);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Contribute(id) => self.contribute(id),
            Event::Frame(to, header, message) => {
                self.feed(to, In::Frame { header, message });
            }
            Event::Stream(to, stream) => self.deliver(to, stream),
            Event::Reduce(id, attempt) => self.reduce(id, attempt),
            Event::Lost(id, lost) => self.feed(id, In::MemberLost(lost)),
            Event::Tick(id) => self.feed(id, In::Tick),
        }
    }

    pub fn feed(&mut self, id: NodeId, event: In) {
        if self.dead == Some(id) {
            return;
        }
        let mut out = Outbox::default();
        let machine = &mut self.nodes.get_mut(&id).unwrap().machine;
        machine.handle(event, Instant(self.now), &mut out);
        if let Some(deadline) = machine.next_deadline() {
            self.at(deadline.0, Event::Tick(id));
        }
        for effect in out.take() {
            self.execute(id, effect);
        }
    }

    /// The terms of the node's next round.
    fn terms(&self, rank: usize, round: u64) -> Terms {
        let kind = self.scenario.kinds.get(round as usize).copied().unwrap_or(RoundKind::Average);
        let elements = if kind == RoundKind::Gradients { self.scenario.gradients } else { self.scenario.elements };
        let ours = Terms { kind, step: Step(round * 3), gamma: GAMMA, elements: elements as u64 };
        self.scenario.odd.filter(|(odd, at, _)| (*odd, *at) == (rank, round)).map_or(ours, |(_, _, terms)| terms)
    }

    /// The next contribution of a node; after the schedule's end only to learn whether the run can go on.
    pub fn contribute(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        let (rank, round) = (node.rank, node.applied.len() as u64);
        if self.dead == Some(id) || node.failed.is_some() {
            return;
        }
        let terms = self.terms(rank, round);
        self.nodes.get_mut(&id).unwrap().freeze(terms, round);
        self.feed(id, In::Contribute { terms });
    }

    fn execute(&mut self, id: NodeId, effect: Effect) {
        match effect {
            Effect::Send { to, frame } => self.send(id, to, &frame),
            Effect::Open(plan) => {
                let streams = self.nodes.get_mut(&id).unwrap().open(plan);
                self.send_streams(id, streams);
                self.progress(id);
            }
            Effect::Discard(_) => self.nodes.get_mut(&id).unwrap().movement = None,
            Effect::Apply(outcome) => self.apply(id, outcome),
            Effect::Fail(error) => {
                let node = self.nodes.get_mut(&id).unwrap();
                assert!(node.failed.is_none(), "{id} failed twice: {:?}, {error}", node.failed);
                assert!(node.movement.is_none(), "a failed round still moves data");
                node.failed = Some(error);
            }
        }
    }

    /// Frames travel encoded and arrive in order per pair of nodes.
    fn send(&mut self, from: NodeId, to: NodeId, frame: &Frame) {
        let Frame::V1 { header, message } = Frame::decode(&frame.encode().unwrap()).unwrap();
        let delayed = self.now + self.random.below(DELAY_MAX);
        let last = self.in_order.entry((from, to)).or_default();
        *last = delayed.max(*last);
        let at = *last;
        self.at(at, Event::Frame(to, header, message.clone()));
        if self.scenario.noise && !matches!(message, Message::Abandon(_)) {
            if self.random.below(2) == 0 {
                let again = at + self.random.below(4 * DELAY_MAX);
                self.at(again, Event::Frame(to, header, message.clone()));
            }
            for (header, message) in super::noise::around(header, &message, &mut self.random) {
                self.later(Event::Frame(to, header, message), 2 * DELAY_MAX);
            }
        }
    }

    fn send_streams(&mut self, from: NodeId, streams: Vec<(NodeId, Stream)>) {
        let rank = self.nodes[&from].rank;
        for (to, stream) in streams {
            let vanishes = self.scenario.silent.is_some_and(|(silent, round)| silent == rank && stream.header.round.0 >= round);
            if !vanishes {
                self.later(Event::Stream(to, stream), 2 * DELAY_MAX);
            }
        }
    }

    fn deliver(&mut self, to: NodeId, stream: Stream) {
        let lost_on_the_way = self.dead == Some(stream.header.sender) && self.random.below(2) == 0;
        if lost_on_the_way || self.dead == Some(to) {
            return;
        }
        if self.nodes.get_mut(&to).unwrap().park(stream) {
            self.progress(to);
        }
    }

    /// Hands a node what its open round was waiting for.
    fn progress(&mut self, id: NodeId) {
        let ready = self.nodes.get_mut(&id).unwrap().take_ready();
        for stream in ready {
            let (from, attempt) = (stream.header.sender, stream.attempt());
            let event = match stream.content {
                Content::Parameters => In::ParametersHeld(attempt, from),
                Content::Momentum => In::MomentumHeld(attempt, from),
                Content::Contribution(_) => continue,
            };
            self.feed(id, event);
        }
        if let Some(attempt) = self.nodes.get_mut(&id).unwrap().may_reduce() {
            self.later(Event::Reduce(id, attempt), DELAY_MAX);
        }
    }

    fn reduce(&mut self, id: NodeId, attempt: crate::coordinator::Attempt) {
        match self.nodes.get_mut(&id).unwrap().reduce(attempt) {
            None => {}
            Some(Err((node, terms))) => self.feed(id, In::TermsDiffer(attempt, node, terms)),
            Some(Ok(streams)) => {
                self.send_streams(id, streams);
                self.feed(id, In::Reduced(attempt));
            }
        }
    }

    fn apply(&mut self, id: NodeId, outcome: Outcome) {
        let node = self.nodes.get_mut(&id).unwrap();
        let round = outcome.round.0;
        assert_eq!(round, node.applied.len() as u64, "{id} applied a round out of order");
        assert!(node.failed.is_none(), "{id} applied a round after it failed");
        let known = self.outcomes.entry(round).or_insert_with(|| outcome.clone());
        assert_eq!(*known, outcome, "two outcomes of one round");
        node.apply(&outcome);
        if self.scenario.odd.is_none_or(|(_, odd, _)| round < odd) {
            let expected = &self.expected[round as usize];
            assert_eq!(node.applied.last(), Some(&expected.values), "{id} applied other values in round {round}");
            node.assert_momentum(&expected.momentum);
        }
        if node.applied.len() < self.scenario.kinds.len() {
            let slow = 1 + 5 * (self.random.below(4) / 3);
            self.later(Event::Contribute(id), slow * DELAY_MAX);
        }
    }

    /// Every living node's end: the error of the round that failed, or of one it would contribute to now.
    pub fn errors(&mut self) -> Vec<(NodeId, RoundError)> {
        let living: Vec<_> = self.nodes.keys().copied().filter(|id| self.dead != Some(*id)).collect();
        for id in &living {
            self.contribute(*id);
        }
        self.run();
        let error = |id: &NodeId| (*id, self.nodes[id].failed.clone().unwrap_or_else(|| panic!("{id} never failed")));
        living.iter().map(error).collect()
    }
}
