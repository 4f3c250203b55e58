//! Many machines on a simulated network: seeded loss, delay, pauses, starvation and kills. One seed
//! is one run.

use crate::ident::{ClusterId, Incarnation, NodeId};
use crate::liveness::{DownCause, Effect, In, Liveness, Settings};
use crate::machine::{Identity, Machine, Outbox};
use crate::simulation::{Queue, Random};
use crate::time::{Instant, Span};
use std::collections::{BTreeMap, BTreeSet};

/// How long a connection takes to be set up anew, once both ends run.
const RECONNECT: Span = Span::from_millis(30);

/// The network's treatment of packets.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Lost packets of a thousand.
    pub lost_per_thousand: u64,
    /// Shortest way.
    pub delay: Span,
    /// Longest way is this much longer.
    pub jitter: Span,
    /// One of so many packets opens a spike on its way, in which everything is late.
    pub spike_one_in: u64,
    /// How late.
    pub spike: Span,
}

impl Default for Network {
    fn default() -> Self {
        let delay = Span(50);
        let jitter = Span(200);
        Self {
            lost_per_thousand: 0,
            delay,
            jitter,
            spike_one_in: u64::MAX,
            spike: Span::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake(u64),
    Arrival { from: u64, to: u64, bytes: Vec<u8> },
    Refusal { by: u64, to: u64 },
    Reconnected(u64, u64),
    Pause(u64, Span),
    Kill(u64),
}

/// A verdict: when, whose, about whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub at: Instant,
    pub by: u64,
    pub about: u64,
    /// `None`: up again.
    pub down: Option<DownCause>,
}

struct Node {
    machine: Liveness,
    heard: BTreeSet<u64>,
    paused_until: Instant,
    killed: bool,
    /// Events that arrived while it was paused; the oldest are lost, as in a socket's buffer.
    waiting: Vec<Event>,
    wake_at: Option<Instant>,
}

pub struct Simulation {
    pub network: Network,
    nodes: BTreeMap<u64, Node>,
    events: Queue<Event>,
    pub now: Instant,
    random: Random,
    broken: BTreeSet<(u64, u64)>,
    spikes: BTreeMap<(u64, u64), Instant>,
    pub verdicts: Vec<Verdict>,
    pub datagrams: u64,
    pub port_probes: u64,
}

impl Simulation {
    /// `count` nodes that watch each other from the start.
    pub fn new(count: u64, network: Network, seed: u64) -> Self {
        let identity = |node| Identity {
            cluster: ClusterId(1),
            node: NodeId(node),
            incarnation: Incarnation(1),
        };
        let machine = |node| {
            Liveness::new(Settings {
                seed: seed ^ node,
                ..Settings::new(identity(node))
            })
        };
        let node = |id| {
            let heard = BTreeSet::new();
            let waiting = Vec::new();
            let paused_until = Instant(0);
            (
                id,
                Node {
                    machine: machine(id),
                    heard,
                    paused_until,
                    killed: false,
                    waiting,
                    wake_at: None,
                },
            )
        };
        let nodes = (0..count).map(node).collect();
        let events = Queue::default();
        let broken = BTreeSet::new();
        let spikes = BTreeMap::new();
        let verdicts = Vec::new();
        let now = Instant(0);
        let mut simulation = Self {
            network,
            nodes,
            events,
            now,
            random: Random(seed),
            broken,
            spikes,
            verdicts,
            datagrams: 0,
            port_probes: 0,
        };
        let members: Vec<_> = (0..count).map(|id| (NodeId(id), Incarnation(1))).collect();
        for id in 0..count {
            // Processes do not tick at the same moments.
            simulation.now = Instant(simulation.roll(20_000));
            simulation.feed(id, In::Members(members.clone()));
        }
        simulation
    }

    /// A number below `bound`, by the seed.
    pub fn roll(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    pub fn kill_at(&mut self, at: Instant, node: u64) {
        self.schedule(at, Event::Kill(node));
    }

    pub fn pause_at(&mut self, at: Instant, node: u64, pause: Span) {
        self.schedule(at, Event::Pause(node, pause));
    }

    pub fn run_until(&mut self, end: Instant) {
        while let Some((at, event)) = self.events.pop(end.0) {
            self.now = Instant(at);
            self.happen(event);
        }
        self.now = end;
    }

    /// Gives a node an event of its shell's.
    pub fn feed(&mut self, id: u64, event: In) {
        let mut out = Outbox::default();
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.machine.handle(event, self.now, &mut out);
        for effect in out.take() {
            self.execute(id, effect);
        }
        self.arm(id);
    }

    pub fn is_down(&self, by: u64, about: u64) -> bool {
        self.nodes[&by].machine.is_down(NodeId(about))
    }

    /// When the first node other than itself found it down, and the last.
    pub fn found_down(&self, about: u64) -> Vec<Instant> {
        let found = self
            .verdicts
            .iter()
            .filter(|verdict| verdict.about == about && verdict.down.is_some());
        // The last ones first, so that the first one of each node stays.
        let first: BTreeMap<u64, Instant> = found
            .rev()
            .map(|verdict| (verdict.by, verdict.at))
            .collect();
        let mut first: Vec<Instant> = first.into_values().collect();
        first.sort_unstable();
        first
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.events.push(at.0, event);
    }

    fn arm(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let Some(deadline) = node
            .machine
            .next_deadline()
            .filter(|deadline| node.wake_at.is_none_or(|at| *deadline < at))
        else {
            return;
        };
        node.wake_at = Some(deadline);
        self.schedule(deadline.max(self.now), Event::Wake(id));
    }

    fn happen(&mut self, event: Event) {
        let runs = match &event {
            Event::Wake(id) | Event::Refusal { to: id, .. } | Event::Arrival { to: id, .. } => *id,
            Event::Reconnected(one, other) => return self.reconnect(*one, *other),
            Event::Kill(id) => {
                return self
                    .nodes
                    .get_mut(id)
                    .into_iter()
                    .for_each(|node| node.killed = true);
            }
            Event::Pause(id, pause) => {
                let until = self.now.after(*pause);
                return self
                    .nodes
                    .get_mut(id)
                    .into_iter()
                    .for_each(|node| node.paused_until = until);
            }
        };
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&runs).filter(|node| !node.killed) else {
            return;
        };
        if node.paused_until > now {
            if let Event::Wake(_) = event {
                let until = node.paused_until;
                return self.schedule(until, event);
            }
            node.waiting.push(event);
            return;
        }
        match event {
            Event::Wake(id) => self.wake(id),
            Event::Refusal { by, to } => {
                self.poll(to);
                self.feed(to, In::PortRefused(NodeId(by)));
            }
            Event::Arrival { from, to, bytes } if !self.broken.contains(&pair(from, to)) => {
                node.heard.insert(from);
                self.feed(
                    to,
                    In::Datagram {
                        from: NodeId(from),
                        bytes,
                    },
                );
            }
            _ => {}
        }
    }

    fn wake(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.wake_at = None;
        // The timer is served first, what waits in the socket afterwards: the harder order.
        let waiting = std::mem::take(&mut node.waiting);
        if node
            .machine
            .next_deadline()
            .is_some_and(|deadline| deadline <= self.now)
        {
            self.poll(id);
            self.feed(id, In::Tick);
        }
        for event in waiting {
            self.happen(event);
        }
        self.arm(id);
    }

    fn poll(&mut self, id: u64) {
        let heard = self
            .nodes
            .get_mut(&id)
            .map(|node| std::mem::take(&mut node.heard))
            .unwrap_or_default();
        for from in heard {
            self.feed(id, In::Heard(NodeId(from)));
        }
    }

    fn execute(&mut self, by: u64, effect: Effect) {
        match effect {
            Effect::Datagram { to, bytes } => self.send(by, to.0, bytes),
            Effect::PortProbe(node) => self.port_probe(by, node.0),
            Effect::Down(node, _, cause) => {
                self.verdicts.push(Verdict {
                    at: self.now,
                    by,
                    about: node.0,
                    down: Some(cause),
                });
                self.disconnect(by, node.0);
            }
            Effect::Up(node, _) => self.verdicts.push(Verdict {
                at: self.now,
                by,
                about: node.0,
                down: None,
            }),
        }
    }

    /// How long a packet is under way; `None` if it is lost.
    fn way(&mut self, from: u64, to: u64) -> Option<Span> {
        let Network {
            lost_per_thousand,
            delay,
            jitter,
            spike_one_in,
            spike,
        } = self.network;
        if self.roll(1000) < lost_per_thousand {
            return None;
        }
        if self.roll(spike_one_in) == 0 && spike_one_in < u64::MAX {
            self.spikes.insert((from, to), self.now.after(spike));
        }
        let late = self
            .spikes
            .get(&(from, to))
            .map_or(Span::default(), |until| until.since(self.now));
        let jitter = self.roll(jitter.0 + 1);
        Some(Span(delay.0 + jitter + late.0))
    }

    fn send(&mut self, from: u64, to: u64, bytes: Vec<u8>) {
        self.datagrams += 1;
        if !self.is_broken(from, to)
            && let Some(way) = self.way(from, to)
        {
            self.schedule(self.now.after(way), Event::Arrival { from, to, bytes });
        }
    }

    fn port_probe(&mut self, from: u64, at: u64) {
        self.port_probes += 1;
        let killed = self.nodes[&at].killed;
        if killed && let (Some(there), Some(back)) = (self.way(from, at), self.way(at, from)) {
            self.schedule(
                self.now.after(there).after(back),
                Event::Refusal { by: at, to: from },
            );
        }
    }

    /// One end takes the other for dead: the connections end, and whoever lives dials again.
    fn disconnect(&mut self, one: u64, other: u64) {
        if self.broken.insert(pair(one, other)) {
            self.schedule(self.now.after(RECONNECT), Event::Reconnected(one, other));
        }
    }

    fn reconnect(&mut self, one: u64, other: u64) {
        let first = &self.nodes[&one];
        let second = &self.nodes[&other];
        if first.killed || second.killed {
            return;
        }
        let paused = first.paused_until.max(second.paused_until);
        if paused > self.now {
            return self.schedule(paused.after(RECONNECT), Event::Reconnected(one, other));
        }
        self.broken.remove(&pair(one, other));
        self.feed(one, In::PeerUp(NodeId(other), Incarnation(1)));
        self.feed(other, In::PeerUp(NodeId(one), Incarnation(1)));
    }

    fn is_broken(&self, one: u64, other: u64) -> bool {
        self.broken.contains(&pair(one, other))
    }
}

fn pair(one: u64, other: u64) -> (u64, u64) {
    (one.min(other), one.max(other))
}
