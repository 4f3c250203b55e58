//! A discrete-event world of many membership machines: seeded delays, deaths, restarts, partitions.
//! It simulates the transport (sessions, dialing, duplicate ids), discovery and liveness; `rounds`
//! simulates the coordinators.

use super::process::{Process, Session, Start};
use crate::coordinator::GivesUp;
use crate::ident::{Incarnation, Lineage, NodeId, Round};
use crate::machine::Outbox;
use crate::membership::{Effect, In, Membership, Settings};
use crate::policy::Bootstrap;
use crate::simulation::{InOrder, Queue, Random};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::Frame;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Microseconds per millisecond.
pub const MS: u64 = 1_000;
/// Longest delay of a frame, in microseconds.
pub const DELAY_MAX: u64 = 20 * MS;
/// Mean time, in microseconds, between a process's looks for peers and signs of life.
const LOOK_EVERY: u64 = 50 * MS;
/// Least silence, in microseconds, after which a killed process (first) or a partitioned peer
/// (second) is declared dead; up to 100 ms of jitter are added.
const DEATH: (u64, u64) = (150 * MS, 1_000 * MS);
/// Likewise, silence after which the connections to it are given up.
const IDLE: (u64, u64) = (100 * MS, 2_000 * MS);
/// How long an address is dialed, in microseconds.
const DIAL_FOR: u64 = 30_000 * MS;

pub enum Event {
    /// A process looks for peers and signs of life.
    Look(usize),
    Tick(usize),
    Frame {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    /// The other end of a session ended it.
    Closed {
        at: usize,
        peer: usize,
        departed: bool,
    },
    /// The coordinators check whether a round can be decided.
    Rounds,
    Apply(super::rounds::Apply),
    /// The coordinator's answer to a resignation.
    Resigned(usize, bool),
    /// A process whose handover was decided ends.
    Leave(usize),
}

/// Settings that all processes of a run share.
#[derive(Clone, Copy)]
pub struct Common {
    pub min_nodes: usize,
    pub max_nodes: usize,
    pub survivors: bool,
    pub connect_timeout: Span,
}

pub struct World {
    pub seed: u64,
    pub now: u64,
    pub random: Random,
    pub common: Common,
    /// Every incarnation of every node, alive or not.
    pub processes: Vec<Process>,
    /// Addresses that discovery finds.
    pub known: BTreeSet<SocketAddr>,
    /// The next view of every decided round.
    pub decided: BTreeMap<(Lineage, Round), View>,
    /// Whether decisions are suspended.
    pub slow_rounds: bool,
    cut: Option<BTreeSet<NodeId>>,
    queue: Queue<Event>,
    in_order: InOrder<usize>,
}

impl World {
    pub fn new(seed: u64, common: Common) -> Self {
        let processes = Vec::new();
        let known = BTreeSet::new();
        let decided = BTreeMap::new();
        let queue = Queue::default();
        let in_order = InOrder::default();
        let random = Random(seed);
        let cut = None;
        let slow_rounds = false;
        let mut world = Self {
            seed,
            now: 0,
            random,
            common,
            processes,
            known,
            decided,
            slow_rounds,
            cut,
            queue,
            in_order,
        };
        world.at(0, Event::Rounds);
        world
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    pub fn later(&mut self, most: u64, event: Event) {
        let at = self.now + 1 + self.random.below(most);
        self.at(at, event);
    }

    /// Starts a process; its incarnation is its number, starting at 1. Its model is known at once.
    pub fn start(&mut self, start: Start) -> usize {
        let index = self.processes.len();
        let incarnation = Incarnation(self.processes.len() as u64 + 1);
        let address = SocketAddr::from(([127, 0, 0, 1], start.port.unwrap_or(7000 + index as u16)));
        let Common {
            min_nodes,
            max_nodes,
            connect_timeout,
            ..
        } = self.common;
        let machine = Membership::new(Settings {
            identity: crate::machine::Identity {
                cluster: super::CLUSTER,
                node: start.id,
                incarnation,
            },
            address,
            devices: 1,
            min_nodes,
            max_nodes,
            join: start.join,
            lineage: start.lineage,
            bootstrap: Bootstrap::Auto,
            restarted: start.restarted,
            refuses: start.refuses,
            shared: start.shared,
            addresses_may_be_stale: true,
            connect_timeout,
            synchronize_timeout: connect_timeout,
        });
        self.processes
            .push(Process::new(start.id, incarnation, address, machine));
        self.later(LOOK_EVERY, Event::Look(index));
        self.feed(index, In::Synchronize(start.model));
        index
    }

    /// Runs for this many simulated milliseconds.
    pub fn run(&mut self, milliseconds: u64) {
        let until = self.now + milliseconds * MS;
        while let Some((at, event)) = self.queue.pop(until) {
            self.now = at;
            self.handle(event);
        }
        self.now = until;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Look(index) if self.processes[index].alive => self.look(index),
            Event::Tick(index) if self.processes[index].alive => {
                self.processes[index].tick_at = None;
                self.feed(index, In::Tick);
            }
            Event::Frame { from, to, bytes } => self.deliver(from, to, &bytes),
            Event::Closed { at, peer, departed } if self.processes[at].alive => {
                self.end_session(at, peer, departed)
            }
            Event::Rounds => self.rounds(),
            Event::Apply(apply) => self.apply(apply),
            Event::Leave(index) if self.processes[index].alive => self.feed(index, In::Leave),
            Event::Resigned(index, obeyed) if self.processes[index].alive => {
                self.feed(index, In::Resigned(obeyed))
            }
            Event::Resigned(..)
            | Event::Look(_)
            | Event::Tick(_)
            | Event::Closed { .. }
            | Event::Leave(_) => {}
        }
    }

    pub fn feed(&mut self, index: usize, event: In) {
        let process = &mut self.processes[index];
        let mut out = Outbox::default();
        crate::machine::Machine::handle(&mut process.machine, event, Instant(self.now), &mut out);
        for effect in out.take() {
            self.act(index, effect);
        }
        let deadline = crate::machine::Machine::next_deadline(&self.processes[index].machine);
        let process = &mut self.processes[index];
        if let Some(Instant(deadline)) =
            deadline.filter(|deadline| process.tick_at.is_none_or(|at| deadline.0 < at))
        {
            process.tick_at = Some(deadline);
            self.at(deadline.max(self.now + 1), Event::Tick(index));
        }
    }

    fn act(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::Send { to, frame } => self.send(index, to, &frame),
            Effect::Connect(address) => self.dial(index, address),
            Effect::Disconnect(node) => {
                if let Some(session) = self.processes[index].sessions.get(&node).copied() {
                    self.end_session(index, session.process, false);
                }
            }
            Effect::Drained => {
                self.processes[index].coordinator = None;
                self.later(50 * MS, Event::Leave(index));
            }
            Effect::Return { .. } => {
                let process = &mut self.processes[index];
                if let Some(at) = process.before.take()
                    && process.coordinator.is_none()
                {
                    process.coordinator = Some(at.clone());
                    self.feed(index, In::Decided(at));
                }
            }
            Effect::Left => self.end(index, true),
            Effect::Resign(gives_up) => {
                let stands = self.processes[index].coordinator.as_ref();
                let obeyed = !(gives_up != GivesUp::Membership
                    && stands.is_some_and(|at| at.round > Round::BOOTSTRAP));
                if obeyed {
                    self.processes[index].note(effect);
                }
                self.later(MS, Event::Resigned(index, obeyed));
            }
            other => self.processes[index].note(other),
        }
    }

    /// Frames travel encoded and arrive in order per pair of processes, or not at all.
    fn send(&mut self, from: usize, to: NodeId, frame: &Frame) {
        let Some(session) = self.processes[from]
            .sessions
            .get(&to)
            .filter(|session| session.up)
        else {
            return;
        };
        let to = session.process;
        let bytes = frame.encode().unwrap();
        let delayed = self.now + 1 + self.random.below(DELAY_MAX);
        let at = self.in_order.arrives(from, to, delayed);
        self.at(at, Event::Frame { from, to, bytes });
    }

    fn deliver(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let attached = self.processes[to]
            .sessions
            .get(&self.processes[from].id)
            .is_some_and(|session| session.process == from);
        if attached && self.reaches(from, to) {
            let Frame::V1 { header, message } = Frame::decode(bytes).unwrap();
            self.feed(to, In::Frame { header, message });
        }
    }

    fn dial(&mut self, index: usize, address: SocketAddr) {
        let up = self.processes[index]
            .sessions
            .values()
            .any(|session| session.up && self.processes[session.process].address == address);
        if !up && address != self.processes[index].address {
            let give_up = self.now + DIAL_FOR;
            self.processes[index]
                .dialing
                .entry(address)
                .or_insert(give_up);
        }
    }

    fn look(&mut self, index: usize) {
        self.at(
            self.now + LOOK_EVERY / 2 + self.random.0 % LOOK_EVERY,
            Event::Look(index),
        );
        if self.processes[index].search {
            self.feed(index, In::Discovered(self.known.iter().copied().collect()));
            self.known
                .clone()
                .into_iter()
                .for_each(|address| self.dial(index, address));
        }
        for (address, give_up) in self.processes[index].dialing.clone() {
            if self.connect(index, address) {
                self.processes[index].dialing.remove(&address);
            } else if self.now >= give_up {
                self.processes[index].dialing.remove(&address);
                let error = "no answer".to_owned();
                self.feed(
                    index,
                    In::DialFailed {
                        address,
                        tried_for: Span(DIAL_FOR),
                        error,
                    },
                );
            }
        }
        self.listen(index);
    }

    /// Tries once to connect; `true` if there is no need to try again.
    fn connect(&mut self, index: usize, address: SocketAddr) -> bool {
        let found = self
            .processes
            .iter()
            .position(|process| process.alive && process.address == address);
        let Some(peer) = found.filter(|peer| self.reaches(index, *peer)) else {
            return false;
        };
        if self.processes[peer].id == self.processes[index].id {
            return true;
        }
        if !(self.admits(peer, index) && self.admits(index, peer)) {
            return false;
        }
        self.attach(peer, index, false);
        self.attach(index, peer, true);
        true
    }

    /// Whether `at` accepts a session with `peer`: a later incarnation of a node that is still
    /// heard is turned away, and so is an earlier one.
    fn admits(&self, at: usize, peer: usize) -> bool {
        let known = self.processes[at].sessions.get(&self.processes[peer].id);
        known.is_none_or(|known| {
            known.process == peer || (known.process < peer && !self.reaches(at, known.process))
        })
    }

    fn attach(&mut self, at: usize, peer: usize, up: bool) {
        let id = self.processes[peer].id;
        let incarnation = self.processes[peer].incarnation;
        if let Some(other) = self.processes[at]
            .sessions
            .get(&id)
            .copied()
            .filter(|known| known.process != peer)
        {
            self.end_session(at, other.process, false);
        }
        let session = self.processes[at].sessions.entry(id).or_insert(Session {
            process: peer,
            up: false,
        });
        if up && !std::mem::replace(&mut session.up, true) {
            self.feed(at, In::PeerUp(id, incarnation));
        }
    }

    /// Ends the session that `at` has with a process, and tells that process if it can be told.
    pub fn end_session(&mut self, at: usize, peer: usize, departed: bool) {
        let node = self.processes[peer].id;
        let Some(session) = self.processes[at]
            .sessions
            .get(&node)
            .copied()
            .filter(|session| session.process == peer)
        else {
            return;
        };
        self.processes[at].sessions.remove(&node);
        self.later(
            DELAY_MAX,
            Event::Closed {
                at: peer,
                peer: at,
                departed: false,
            },
        );
        if session.up {
            self.feed(at, In::PeerDown { node, departed });
        }
        let incarnation = self.processes[peer].incarnation;
        if departed && self.processes[at].declare(node, incarnation) {
            self.feed(
                at,
                In::Down {
                    node,
                    incarnation,
                    ended: false,
                },
            );
        }
    }

    /// Simulates liveness: a watched node that is silent for long is dead, and alive again when
    /// heard.
    fn listen(&mut self, index: usize) {
        for peer in 0..self.processes.len() {
            let heard = self.reaches(index, peer);
            let jitter = self.random.below(100 * MS);
            let lives = self.processes[peer].alive;
            let bound = |(killed, cut): (u64, u64)| jitter + if lives { cut } else { killed };
            let now = self.now;
            let process = &mut self.processes[index];
            let silent = if heard {
                process.silent_since.remove(&peer).map(|_| 0)
            } else {
                Some(now - *process.silent_since.entry(peer).or_insert(now))
            };
            let silent = silent.unwrap_or(0);
            if silent >= bound(IDLE) {
                self.end_session(index, peer, false);
            }
            let node = self.processes[peer].id;
            let incarnation = self.processes[peer].incarnation;
            if silent >= bound(DEATH) && self.processes[index].declare(node, incarnation) {
                self.feed(
                    index,
                    In::Down {
                        node,
                        incarnation,
                        ended: false,
                    },
                );
            } else if heard && self.processes[index].declared.remove(&(node, incarnation)) {
                self.feed(index, In::Up(node));
            }
        }
    }

    pub fn reaches(&self, one: usize, other: usize) -> bool {
        let one = &self.processes[one];
        let other = &self.processes[other];
        let side = |id: &NodeId| self.cut.as_ref().is_some_and(|group| group.contains(id));
        one.alive && other.alive && side(&one.id) == side(&other.id)
    }

    /// Partitions these nodes from the others: everything sent between them is lost.
    pub fn cut(&mut self, group: &[u64]) {
        self.cut = Some(group.iter().map(|id| NodeId(*id)).collect());
    }

    pub fn heal(&mut self) {
        self.cut = None;
    }

    /// Ends a process, killed or after it said goodbye (`departed`).
    pub fn end(&mut self, index: usize, departed: bool) {
        let peers: Vec<usize> = self.processes[index]
            .sessions
            .values()
            .map(|session| session.process)
            .collect();
        for peer in peers
            .into_iter()
            .filter(|peer| departed && self.reaches(index, *peer))
            .collect::<Vec<_>>()
        {
            self.later(
                DELAY_MAX,
                Event::Closed {
                    at: peer,
                    peer: index,
                    departed: true,
                },
            );
        }
        let process = &mut self.processes[index];
        process.alive = false;
        process.left = departed;
        process.sessions.clear();
    }
}
