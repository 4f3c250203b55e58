//! Simulated nodes with their machines, in virtual time; every event is followed by an audit.

use super::audit::{Audit, combine};
use super::bench::{ROUND, view_of};
use super::faults::Fault;
use super::identity;
use super::network::Network;
use super::node::{Doing, Node, Stream};
use super::scenario::{Class, Scenario};
use super::seen::Seen;
use crate::algorithm::LatePeers;
use crate::gossip_peer::{GossipPeer, In, Key, Waits};
use crate::ident::{Epoch, Lineage, NodeId, Step};
use crate::machine::{Machine, Outbox};
use crate::push_sum::WEIGHT_MIN;
use crate::simulation::{Queue, Random};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{Frame, Header, Message};
use std::collections::BTreeMap;

/// Events after which a run is taken for endless.
const EVENTS_MAX: u64 = 4_000_000;
/// Steps that everybody takes once the faults are over, and for how long at least: what has no
/// answer is asked for.
const QUIET_STEPS: u64 = 40;
const QUIET_MIN: u64 = 3_000_000;
/// At least as many as the cycle of any graph here has.
const TURNS: u64 = 16;
/// How far apart the models may be in the end.
const AGREEMENT: f64 = 1e-6;

pub enum Event {
    /// An inner step is done.
    Trained,
    Tell(In),
    Frame(NodeId, u64, Header, Box<Message>),
    /// A stream begins; the link it came by.
    Offer(Key, Header, Stream, u64),
    /// A stream was read to its end.
    Read(Key, u64, u64),
    /// The training thread mixed: what is sent is on its way now.
    Numerators,
    Tick,
    Fault(Fault),
}

pub struct World {
    pub scenario: Scenario,
    pub nodes: BTreeMap<NodeId, Node>,
    pub audit: Audit,
    pub network: Network,
    pub random: Random,
    pub now: u64,
    pub seen: Seen,
    /// The faults are over.
    pub quiet: bool,
    /// How many inner steps every node had taken when the faults ended.
    began: BTreeMap<NodeId, u64>,
    queue: Queue<Planned>,
}

/// An event, and the node that it happens to, if it is one node.
type Planned = (Option<NodeId>, Event);

impl World {
    pub fn new(scenario: Scenario) -> Self {
        let ids: Vec<NodeId> = (0..scenario.nodes)
            .map(|index| NodeId(index * 3 + 1))
            .collect();
        let random = Random(scenario.seed);
        let mut world = Self {
            nodes: BTreeMap::new(),
            audit: Audit::default(),
            network: Network::default(),
            random,
            now: 0,
            seen: Seen::default(),
            quiet: false,
            began: BTreeMap::new(),
            queue: Queue::default(),
            scenario,
        };
        let view = view_of(Epoch::BOOTSTRAP, ids.iter().map(|id| (*id, 0)));
        for id in &ids {
            let mass = [
                1.0,
                world.random.below(20_000) as f64 / 1e3 - 10.0,
                world.random.below(1_000) as f64,
            ];
            world.audit.expected = combine(world.audit.expected, 1.0, mass);
            let machine = world.machine(*id, &view);
            world.nodes.insert(*id, Node::new(machine, mass));
        }
        ids.into_iter().for_each(|id| world.compute(id));
        world.plan_faults();
        world
    }

    fn machine(&self, id: NodeId, view: &View) -> GossipPeer {
        let grace = self.scenario.grace;
        let waits = Waits {
            message: grace,
            settle: Span(grace.0 / 2),
            leave: Span::from_millis(5_000),
        };
        GossipPeer::new(
            identity(id),
            self.scenario.gossip,
            waits,
            (view, Lineage(1), ROUND),
        )
    }

    pub fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("it exists")
    }

    pub fn living(&self) -> Vec<NodeId> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.alive)
            .map(|(id, _)| *id)
            .collect()
    }

    pub fn later(&mut self, delay: u64, to: NodeId, event: Event) {
        self.enqueue(self.now + delay, Some(to), event);
    }

    pub fn enqueue(&mut self, at: u64, to: Option<NodeId>, event: Event) {
        self.queue.push(at, (to, event));
    }

    /// Runs until the faults are over and everybody has gone on for a while.
    pub fn run(&mut self) {
        while !self.is_over() {
            self.next();
        }
        self.assert_agreement();
    }

    /// One event.
    pub fn next(&mut self) {
        let (at, (to, event)) = self.queue.pop(u64::MAX).expect("somebody goes on");
        self.now = at;
        self.seen.events += 1;
        assert!(self.seen.events < EVENTS_MAX, "endless");
        let Some(id) = to else {
            if let Event::Fault(fault) = event {
                self.fault(fault);
            }
            return;
        };
        let node = &self.nodes[&id];
        if node.alive && node.paused_until > at {
            self.enqueue(node.paused_until, to, event);
        } else if node.alive {
            self.on(id, event);
            self.check(id);
        }
    }

    fn on(&mut self, id: NodeId, event: Event) {
        match event {
            Event::Trained => self.trained(id),
            Event::Tell(event) => self.feed(id, event),
            Event::Frame(from, link, header, message) if link == self.network.link(from, id) => {
                self.feed(id, In::Frame { header, message });
            }
            Event::Offer(key, header, stream, link) => self.offer(id, key, header, stream, link),
            Event::Read(key, number, link) => self.read(id, key, number, link),
            Event::Numerators => self.numerators(id),
            Event::Tick => {
                self.node(id).ticks_at = None;
                self.feed(id, In::Tick);
            }
            _ => {}
        }
    }

    /// Begins an inner step.
    pub fn compute(&mut self, id: NodeId) {
        let (base, more) = self.scenario.compute;
        let more = self.random.below(more);
        let node = self.node(id);
        node.doing = Doing::Computing;
        let takes = (base + more) * node.slowness / 100 + std::mem::take(&mut node.stall);
        self.later(takes, id, Event::Trained);
    }

    /// The training threads are done with an inner step.
    fn trained(&mut self, id: NodeId) {
        if self.nodes[&id].doing != Doing::Computing {
            return;
        }
        if self.scenario.trains && !self.quiet {
            let moved = [
                0.0,
                self.random.below(200) as f64 / 1e3 - 0.1,
                self.random.below(100) as f64 / 1e2,
            ];
            self.node(id).mass = combine(self.nodes[&id].mass, 1.0, moved);
            self.node(id).moved = moved;
            self.audit.expected = combine(self.audit.expected, 1.0, moved);
        }
        let now = self.now;
        let node = self.node(id);
        node.steps += 1;
        let step = node.step;
        node.mixing = step;
        node.came_at.insert(step, now);
        node.came_at = node.came_at.split_off(&Step(step.0.saturating_sub(64)));
        node.doing = Doing::Gossiping(now);
        let turn = step.0;
        let round = ROUND;
        self.feed(id, In::Gossip { step, turn, round });
    }

    /// Tells the machine and does what it asks for.
    pub fn feed(&mut self, id: NodeId, event: In) {
        let now = Instant(self.now);
        let cause = event.clone();
        let mut out = Outbox::default();
        let node = self.node(id);
        let debt = node.machine.debt;
        node.machine.handle(event, now, &mut out);
        let owed = node.machine.debt - debt;
        let effects = out.take();
        if let In::Frame { header, message } = &cause
            && let Message::GossipReclaimed { step } = **message
            && owed > 0.0
        {
            self.seen.debts += 1;
            self.audit.owed((header.sender, id, step), owed);
        }
        for effect in effects {
            self.act(id, &cause, effect);
        }
        if self.nodes[&id].alive {
            self.after(id, &cause);
        }
    }

    /// Books the mass that came back without an effect, and plans the tick that the machine wants.
    fn after(&mut self, id: NodeId, cause: &In) {
        for of in self.audit.open_of(id) {
            if !self.nodes[&id].machine.escrow.is_open((of.1, of.2)) {
                self.audit.returned(of, matches!(cause, In::MemberLost(_)));
            }
        }
        let now = self.now;
        let node = self.node(id);
        let deadline = node
            .machine
            .next_deadline()
            .map(|deadline| deadline.0.max(now));
        if let Some(deadline) =
            deadline.filter(|deadline| node.ticks_at.is_none_or(|ticks_at| *deadline < ticks_at))
        {
            node.ticks_at = Some(deadline);
            self.later(deadline - now, id, Event::Tick);
        }
    }

    pub fn send(&mut self, from: NodeId, to: NodeId, frame: Frame) {
        let Frame::V1 { header, message } = frame;
        let link = self.network.link(from, to);
        let copies = if self.breaks_now() && self.random.below(50) == 0 {
            2
        } else {
            1
        };
        for _ in 0..copies {
            if !self.network.is_cut(from, to) {
                let delay = self.delay();
                self.later(delay, to, Event::Frame(from, link, header, message.clone()));
            }
        }
    }

    pub fn delay(&mut self) -> u64 {
        // A regular run has one delay for all.
        if self.scenario.compute.1 == 1 {
            self.scenario.delay_max
        } else {
            1 + self.random.below(self.scenario.delay_max)
        }
    }

    pub fn breaks_now(&self) -> bool {
        self.scenario.breaks() && !self.quiet
    }

    /// The faults are over.
    pub fn fall_quiet(&mut self) {
        self.quiet = true;
        self.began = self
            .living()
            .into_iter()
            .map(|id| (id, self.nodes[&id].steps))
            .collect();
    }

    fn is_over(&self) -> bool {
        let went_on = |(id, node): (&NodeId, &Node)| {
            let began = self.began.get(id).copied().unwrap_or(0);
            node.steps >= began + QUIET_STEPS || !node.alive || node.doing == Doing::Leaving
        };
        let waited = self.now > self.scenario.horizon + QUIET_MIN;
        let limit = self.scenario.horizon
            + QUIET_MIN
            + QUIET_STEPS * (self.scenario.grace.0 + 100_000)
            + 60_000_000;
        assert!(
            self.now < limit,
            "no progress: {:?}",
            self.nodes
                .values()
                .map(|node| (node.step, node.doing))
                .collect::<Vec<_>>()
        );
        let over = self.quiet && waited && self.nodes.iter().all(went_on);
        over && (!self.agrees() || self.spread() < AGREEMENT || self.now > limit / 2)
    }

    /// How far apart the models are, those on their way included.
    pub fn spread(&self) -> f64 {
        let living = self.nodes.values().filter(|node| node.alive);
        let masses = living
            .flat_map(|node| node.held.values().chain([&node.mass]))
            .chain(self.audit.on_their_way());
        let models = masses.map(|mass| mass[1] / mass[0]);
        let (min, max) = models.fold((f64::MAX, f64::MIN), |(min, max), model| {
            (min.min(model), max.max(model))
        });
        max - min
    }

    /// Whether models must agree in the end: where peers are done without at once, messages must
    /// not take longer than steps; and somebody must have weight to give away.
    fn agrees(&self) -> bool {
        let Scenario {
            gossip,
            delay_max,
            compute,
            ..
        } = &self.scenario;
        let in_time = 2 * delay_max < self.scenario.late_max() * compute.0;
        let living = self.living();
        let weighty = self.audit.expected[0] > 2.0 * WEIGHT_MIN * living.len() as f64;
        let connected = living.iter().all(|id| self.has_peers(*id, &living));
        weighty && connected && (gossip.late_peers == LatePeers::Wait || in_time)
    }

    /// Whether somebody who lives sends to a node within a cycle of the graph: else it waits for
    /// nobody, and detours may be too late for it until the next view.
    fn has_peers(&self, id: NodeId, living: &[NodeId]) -> bool {
        let machine = &self.nodes[&id].machine;
        let inward = |turn| machine.graph.peers(&machine.members, id, turn).inward;
        living.len() == 1
            || (0..TURNS).any(|turn| inward(turn).iter().any(|from| living.contains(from)))
    }

    fn assert_agreement(&mut self) {
        let doubled = self.audit.doubled(&self.nodes);
        assert!(doubled.is_empty(), "made for good: {doubled:?}");
        if matches!(self.scenario.class, Class::Quiet | Class::Slow) {
            assert!(
                !self.audit.adjusted && self.seen.wrong_waits == 0,
                "{:?}",
                self.seen
            );
        }
        if !self.agrees() {
            return;
        }
        let mean = self.audit.expected[1] / self.audit.expected[0];
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.alive) {
            assert!(
                (node.model()[0] - mean).abs() < 2.0 * AGREEMENT,
                "{id}: {} is not {mean}, spread {}",
                node.model()[0],
                self.spread()
            );
        }
    }
}

/// The first step of a gossip that a message of `step` may be late for.
pub fn is_in_time(step: Step, mixing: Step, late_max: u64) -> bool {
    step.0 + late_max >= mixing.0
}
