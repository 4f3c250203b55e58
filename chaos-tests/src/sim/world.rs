//! The simulated world: processes, a network between them, one queue of events in virtual time. The
//! invariants are checked after every event.

use super::books::{Books, Entry};
use super::clock::Clock;
use super::config::Config;
use super::coverage::Coverage;
use super::ending;
use super::event::Event;
use super::going_on::GoesOn;
use super::mail::{Mail, Output, Part};
use super::network::{Network, Process};
use super::node::training::says_it_is_over;
use super::node::{self, Bootstrapping, Node};
use super::schedule::{Deed, Schedule, Settings};
use super::watch::Watch;
use crate::random::Random;
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::coordinator::RoundError;
use slowmo_protocol::gossip_peer::models_kept_max;
use slowmo_protocol::ident::{Incarnation, NodeId, ShardId};
use slowmo_protocol::node::Failure;
use slowmo_protocol::simulation::Queue;
use slowmo_protocol::sound::Unsound;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{End, Event as Traced, Start};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Number of events after which a run is considered endless.
const EVENTS_MAX: u64 = 40_000_000;
/// Number of times per idle time that a process checks whether its connections are alive.
const LOOKS: u64 = 4;

/// The rule that nobody is named who never lied.
const NAMING: &str = "naming";

/// One process and its environment.
pub struct Running {
    /// The machines of the process.
    pub node: Node,
    /// Whether the process has not ended.
    pub alive: bool,
    /// Whether the process publishes other values to some nodes; see
    /// [`super::schedule::Act::Equivocate`].
    pub lies: bool,
    /// Whether it ever did: it ends with an error once it is shown that.
    pub lied: bool,
    /// Time until which the process does nothing.
    pub paused_until: u64,
    /// The clock of the process.
    pub clock: Clock,
    /// Whether the process looks for peers.
    pub searches: bool,
    /// Whether the process was asked to drain.
    pub draining: bool,
    /// How the process ended, if it did.
    pub ended: Option<End>,
    /// The incarnations that told this process that they leave for good.
    pub leavers: BTreeSet<Start>,
    /// The addresses that the process was told of.
    pub discovered: Option<Vec<SocketAddr>>,
    /// Whether the process may be part of a bootstrap view.
    pub bootstrap: Bootstrapping,
    /// Time of each part's next tick.
    ticks: [Option<u64>; Part::COUNT],
    /// Time at which the last message to each part arrives.
    mailboxes: [u64; Part::COUNT],
}

/// The world.
pub struct World {
    /// Configuration of the run.
    pub config: Config,
    /// Virtual time, in microseconds.
    pub now: u64,
    /// Every incarnation of every node, alive or not.
    pub processes: Vec<Running>,
    /// The network between the processes.
    pub network: Network,
    /// The deeds, with their times.
    pub deeds: Vec<(Instant, Deed)>,
    /// Deeds that could not be carried out: they would have left no holder of the model, or found
    /// no target.
    pub not_done: Vec<(Instant, Deed)>,
    /// The trace and its judge.
    pub watch: Watch,
    /// The combinations that were seen.
    pub coverage: Coverage,
    books: Books,
    /// Whether the faults are over.
    pub quiet: bool,
    /// How the live nodes continued while the dead stayed dead, if that was checked.
    pub(super) went_on: Option<GoesOn>,
    /// Time since which the faults are over but the dead stay dead, if they do.
    pub(super) still: Option<u64>,
    /// The shards that each incarnation holds.
    pub(super) holds: BTreeMap<Start, Vec<ShardId>>,
    /// Number of events so far.
    pub events: u64,
    /// Time until which the last fault is felt.
    pub(super) felt_until: u64,
    /// Maximum number of models that a node keeps for gossip.
    pub(super) models_kept_max: u64,
    /// The highest fill of everything that is bounded.
    pub(super) fullest: BTreeMap<&'static str, u64>,
    pub(super) random: Random,
    /// The newest process of each node.
    pub(super) newest: BTreeMap<NodeId, Process>,
    pub(super) addresses: BTreeMap<SocketAddr, Process>,
    queue: Queue<Event>,
    frames: u64,
}

impl World {
    /// The world of a run before its first event.
    pub fn new(schedule: &Schedule) -> Self {
        let config = schedule.config.clone();
        let mut world = Self {
            now: 0,
            processes: Vec::new(),
            network: Network::default(),
            watch: Watch::new(&config),
            coverage: Coverage::default(),
            books: Books::default(),
            quiet: false,
            went_on: None,
            still: None,
            holds: BTreeMap::new(),
            not_done: Vec::new(),
            events: 0,
            felt_until: 0,
            models_kept_max: if let Base::Sgp(gossip) = &config.algorithm.base {
                models_kept_max(gossip) as u64
            } else {
                0
            },
            fullest: BTreeMap::new(),
            random: Random::new(config.seed, 3),
            newest: BTreeMap::new(),
            addresses: BTreeMap::new(),
            queue: Queue::default(),
            frames: 0,
            deeds: schedule.deeds(),
            config,
        };
        for id in world.config.founders.clone() {
            world.start(id, Settings::Founds, 0);
        }
        for index in 0..world.deeds.len() {
            let at = world.deeds[index].0.0;
            world.at(at, Event::Fault(index));
        }
        let ends = if world.config.trains_until.is_some() {
            Event::Mended
        } else if world.config.goes_on_within.is_some() {
            Event::Still
        } else {
            Event::Quiet
        };
        world.at(world.config.horizon, ends);
        world
    }

    /// Plans an event.
    pub fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    /// Runs until `until`, or until a rule is broken.
    pub fn run(&mut self, until: u64) {
        while self.watch.violation().is_none() {
            let Some((at, event)) = self.queue.pop(until) else {
                break;
            };
            self.now = self.now.max(at);
            self.events += 1;
            if self.events > EVENTS_MAX * (1 + self.config.founders.len() as u64 / 32) {
                self.watch.endless(self.now);
            }
            self.step(event);
        }
        self.now = self.now.max(until);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Mail(to, ..)
            | Event::Packet { to, .. }
            | Event::Dial(to, ..)
            | Event::Search(to)
            | Event::Look(to)
            | Event::Closed { at: to, .. }
                if self.is_paused(to) =>
            {
                let wakes = self.processes[to].paused_until;
                self.at(wakes, event);
            }
            // Datagrams that do not fit into the kernel's buffer while a process is stopped are
            // lost.
            Event::Datagram { to, .. } if self.is_paused(to) && self.random.once_in(2) => {}
            Event::Datagram { to, .. } | Event::Tick(to, _) if self.is_paused(to) => {
                let wakes = self.processes[to].paused_until;
                self.at(wakes, event);
            }
            Event::Mail(process, mail) => self.feed(process, mail),
            Event::Tick(process, part) => self.tick(process, part),
            Event::Packet {
                from,
                to,
                connection,
                packet,
            } => self.arrive(from, to, connection, packet),
            Event::Datagram { from, to, bytes } => self.receive_datagram(from, to, bytes),
            Event::Dial(process, address, give_up) => self.dial_once(process, address, give_up),
            Event::Search(process) => self.search(process),
            Event::Look(process) => self.look(process),
            Event::Closed {
                at,
                peer,
                departed,
                connections,
            } => self.hear_closed(at, peer, departed, connections),
            Event::Fault(index) => self.fault(index),
            // A process that wakes earlier than it was told to would hear of events in another
            // order than they happened.
            Event::Quiet | Event::Still | Event::Mended if self.wakes() > self.now => {
                let wakes = self.wakes();
                self.at(wakes, event);
            }
            Event::Quiet => self.fall_quiet(),
            Event::Still => self.fall_still(),
            Event::Mended => self.fall_mended(),
            Event::GoesOn => self.judge_going_on(),
        }
    }

    /// Whether a process is stopped.
    #[must_use]
    pub fn is_paused(&self, process: Process) -> bool {
        self.processes[process].paused_until > self.now && self.processes[process].alive
    }

    /// Time at which the last stopped process continues.
    fn wakes(&self) -> u64 {
        self.living()
            .map(|process| self.processes[process].paused_until)
            .max()
            .unwrap_or(0)
    }

    /// The incarnation of the next start of a node, by its clock.
    fn incarnation(&self, id: NodeId, clock_back: u64) -> Incarnation {
        let earlier = self
            .newest
            .get(&id)
            .map(|process| self.processes[*process].node.start.incarnation.0);
        let next = Incarnation(self.config.first_incarnation + self.processes.len() as u64);
        if clock_back == 0 {
            return next;
        }
        let Some(earlier) = earlier else {
            return next;
        };
        // No two incarnations of a node read the same time.
        let used = |incarnation: &u64| {
            let start = Start {
                node: id,
                incarnation: Incarnation(*incarnation),
            };
            self.processes
                .iter()
                .any(|running| running.node.start == start)
        };
        let mut lower = (0..=earlier.saturating_sub(clock_back)).rev();
        Incarnation(lower.find(|incarnation| !used(incarnation)).unwrap_or(0))
    }

    /// Starts a node: a new process under its id. See [`super::schedule::Act::Start`].
    pub fn start(&mut self, id: NodeId, settings: Settings, clock_back: u64) -> Process {
        let process = self.processes.len();
        let start = Start {
            node: id,
            incarnation: self.incarnation(id, clock_back),
        };
        let address = SocketAddr::from((
            [127, 0, (process >> 14) as u8, 1],
            7_000 + (process & 0x3fff) as u16,
        ));
        let bootstrap = self.bootstrap(id, settings);
        let node = Node::new(start, address, bootstrap, &self.config);
        self.processes.push(Running {
            node,
            alive: true,
            lies: false,
            lied: false,
            paused_until: 0,
            clock: Clock::default(),
            searches: true,
            discovered: None,
            draining: false,
            ended: None,
            leavers: BTreeSet::new(),
            bootstrap,
            ticks: [None; Part::COUNT],
            mailboxes: [0; Part::COUNT],
        });
        self.network.add();
        self.newest.insert(id, process);
        self.addresses.insert(address, process);
        self.record(Traced::Started(start));
        let begins = self.now + self.random.below(20_000);
        self.at(begins, Event::Search(process));
        let looks = self.now + self.config.waits.idle.0 / LOOKS;
        self.at(looks, Event::Look(process));
        let mut outputs = Vec::new();
        self.processes[process].node.training.begin(&mut outputs);
        self.grant(process, outputs);
        self.arm(process, Part::Membership);
        process
    }

    /// Whether a node that is started may bootstrap a run. The marker tells a node that it was a
    /// member and did not leave.
    fn bootstrap(&self, id: NodeId, settings: Settings) -> Bootstrapping {
        let earlier = self
            .newest
            .get(&id)
            .map(|process| &self.processes[*process]);
        let was_member = earlier.is_some_and(|earlier| {
            let knows =
                earlier.node.rounds.applied > 0 || earlier.bootstrap == Bootstrapping::Again;
            knows && earlier.ended != Some(End::Left)
        });
        match settings {
            Settings::Joins => Bootstrapping::Never,
            Settings::Founds if was_member => Bootstrapping::Again,
            Settings::Founds | Settings::Forgets => Bootstrapping::Allowed,
        }
    }

    /// Ends a process.
    pub fn end(&mut self, process: Process, how: End) {
        if !std::mem::replace(&mut self.processes[process].alive, false) {
            return;
        }
        let start = self.processes[process].node.start;
        if how != End::Killed {
            self.depart(process);
        }
        self.processes[process].ended = Some(how);
        self.network.sessions[process].clear();
        self.record(Traced::Ended { start, end: how });
    }

    /// Records an event.
    pub fn record(&mut self, event: Traced) {
        match &event {
            Traced::Applied { start, holds, .. } => {
                _ = self
                    .holds
                    .insert(*start, holds.iter().map(|held| held.shard).collect())
            }
            Traced::Resigned(start) => _ = self.holds.remove(start),
            _ => {}
        }
        self.watch.observe(Instant(self.now), event);
    }

    fn book(&mut self, process: Process, entry: Entry) {
        match self.books.take(self.processes[process].node.start, entry) {
            Ok(event) => event.into_iter().for_each(|event| self.record(event)),
            Err(what) => self.watch.broken(self.now, "push_sum_mass", what),
        }
    }

    fn tick(&mut self, process: Process, part: Part) {
        let running = &mut self.processes[process];
        if running.ticks[part as usize].is_none_or(|at| at > self.now) || !running.alive {
            return;
        }
        running.ticks[part as usize] = None;
        let local = running.clock.read(self.now);
        let due = running
            .node
            .next_deadline(part)
            .is_some_and(|deadline| deadline <= local);
        match node::tick(part) {
            Some(mail) if due => self.feed(process, mail),
            _ => self.arm(process, part),
        }
    }

    /// Hands a message to a part, and carries out its requests.
    pub fn feed(&mut self, process: Process, mail: Mail) {
        let running = &mut self.processes[process];
        if !running.alive {
            return;
        }
        let part = mail.part();
        let mut outputs = Vec::new();
        self.coverage.seen(&mail, running.node.rounds.phase());
        running.leavers.extend(ending::leaver(&mail));
        let local = running.clock.read(self.now);
        self.watch.told(self.now, running.node.start.node, &mail);
        running
            .node
            .take(mail, &self.network.heard[process], local, &mut outputs);
        self.grant(process, outputs);
        self.arm(process, part);
        self.check(process);
    }

    /// Plans a part's next tick.
    fn arm(&mut self, process: Process, part: Part) {
        let running = &mut self.processes[process];
        if !running.alive {
            return;
        }
        let Some(deadline) = running.node.next_deadline(part) else {
            return;
        };
        let at = running.clock.when(deadline).max(self.now + 1);
        if running.ticks[part as usize].is_none_or(|planned| at < planned) {
            running.ticks[part as usize] = Some(at);
            self.at(at, Event::Tick(process, part));
        }
    }

    fn grant(&mut self, process: Process, outputs: Vec<Output>) {
        for output in outputs {
            if self.processes[process].alive {
                self.grant_one(process, output);
            }
        }
    }

    fn grant_one(&mut self, process: Process, output: Output) {
        match output {
            Output::Tell(mail) => self.tell(process, mail, 0),
            Output::Later(delay, mail) => self.tell(process, mail, delay),
            Output::Frame(to, frame) => {
                self.frames += 1;
                let encodes = self.config.encodes_every > 0
                    && self.frames.is_multiple_of(self.config.encodes_every);
                self.watch.said(
                    self.now,
                    self.processes[process].node.start.node,
                    to,
                    &frame,
                );
                self.send_frame(process, to, frame, encodes);
            }
            Output::Datagram(to, bytes) => self.send_datagram(process, to, bytes),
            Output::Stream(to, stream) => self.send_stream(process, to, stream),
            Output::Connect(address) => self.dial(process, address),
            Output::Disconnect(node) => {
                if let Some(session) = self.network.sessions[process].get(&node).copied() {
                    self.end_session(process, session.peer, false);
                }
            }
            Output::PortProbe(node) => self.port_probe(process, node),
            Output::Search(on) => {
                let searched = std::mem::replace(&mut self.processes[process].searches, on);
                if on && !searched {
                    self.at(self.now + 1, Event::Search(process));
                }
            }
            Output::Record(event) => self.record(event),
            Output::Book(entry) => self.book(process, entry),
            Output::Named(node, what) => self.judge_naming(process, node, &what),
            Output::Exit => self.end(process, End::Left),
            Output::Fail(failure) => {
                let running = &self.processes[process];
                // Who is shown that it lied ends with an error, as it must.
                let is_shown = matches!(failure, Failure::Round(RoundError::Equivocated { .. }));
                let is_told = says_it_is_over(&failure) && self.others_are_done(process);
                if !(running.lies || running.lied && is_shown || is_told) {
                    self.watch.failed(self.now, running.node.start, &failure);
                }
                if is_told {
                    return;
                }
                self.end(process, End::Failed);
            }
        }
    }

    /// Breaks a rule if a node is named that never lied.
    fn judge_naming(&mut self, by: Process, node: NodeId, what: &Unsound) {
        let lied = |running: &Running| running.node.start.node == node && running.lied;
        if !self.processes.iter().any(lied) {
            let by = self.id(by);
            let what = format!("{by} named {node}, which never lied: {what}");
            self.watch.broken(self.now, NAMING, what);
        }
    }

    /// Puts a message into a mailbox of the same process. Each mailbox keeps its order; work that
    /// takes time does not hold it up.
    pub fn tell(&mut self, process: Process, mail: impl Into<Mail>, delay: u64) {
        let mail = mail.into();
        let waits = 1 + self.random.below(self.config.mail_delay_max);
        let mailbox = &mut self.processes[process].mailboxes[mail.part() as usize];
        let mut at = self.now + delay + waits;
        if delay == 0 {
            at = at.max(*mailbox);
            *mailbox = at;
        }
        self.at(at, Event::Mail(process, mail));
    }

    /// Describes a process in words.
    #[must_use]
    pub fn describe(&self, process: Process) -> String {
        let Running { node, draining, .. } = &self.processes[process];
        let Start {
            node: id,
            incarnation,
        } = node.start;
        let place = node.rounds.machine().place();
        let training = node.training.doing;
        let step = node.training.step;
        let phase = node.rounds.phase();
        let admission = &node.membership.waiting;
        let round = &node.rounds.waiting;
        let up: Vec<u64> = self.network.sessions[process]
            .iter()
            .filter(|(_, session)| session.up)
            .map(|(id, _)| id.0)
            .collect();
        format!(
            "{id}.{} at {} {} of {:032x}, {phase}, {training:?} {step}, draining {draining}, can \
             send to {up:?}; admission: {admission:?}; round: {round:?}",
            incarnation.0, place.epoch, place.round, place.lineage.0
        )
    }

    /// The live processes, oldest first.
    pub fn living(&self) -> impl Iterator<Item = Process> + '_ {
        (0..self.processes.len()).filter(|process| self.processes[*process].alive)
    }
}
