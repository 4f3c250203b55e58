//! A discrete-event world of many nodes: seeded delays, deaths, restarts, pauses, joins, drains and
//! cuts. It checks every applied outcome against the oracle and never looks inside a machine.

use super::membership::{Absence, LOOK_EVERY};
use super::network::{Link, Network};
use super::node::{BUFFERS, Node, Schedule};
use super::oracle::Oracle;
use crate::algorithm::BufferStrategy;
use crate::coordinator::{In, Outcome, RoundKind, Voter};
use crate::ident::{Epoch, Incarnation, Lineage, NodeId};
use crate::machine::{Identity, Outbox};
use crate::node::vectors::{Done, SLOWMO, Stream, Vectors, carry_out};
use crate::node::{Applied, DecidedRound, Failure, Mail, RoundsEffect, ToAggregator, ToRounds};
use crate::policy::{OnQuorumLoss, Quorum};
use crate::simulation::{Queue, Random};
use crate::time::Instant;
use crate::topology::{RATES_MAX, Rate};
use crate::view::{Member, View};
use crate::wire::{Frame, Header, Message};
use std::collections::{BTreeMap, BTreeSet};

/// How long a frame usually takes at most, in simulated microseconds.
pub const DELAY_MAX: u64 = 1_000;
/// Events after which a run is taken for endless.
const EVENTS_MAX: u64 = 3_000_000;

#[derive(Clone, Debug)]
pub enum Fault {
    Kill(NodeId),
    /// Kills a node if a quorum survives it.
    KillOne(NodeId),
    /// Starts a node: a new one, or one that died, under a new incarnation.
    Start(NodeId),
    Pause(NodeId, u64),
    /// Everybody takes a living node for dead for so long.
    Suspect(NodeId, u64),
    Drain(NodeId),
    /// A member leaves without another contribution.
    Leave(NodeId),
    /// Everything to and from a node takes long for a while.
    Slow(NodeId, u64),
    /// The connection of two nodes breaks.
    Break(NodeId, NodeId),
    /// Every frame and stream between the two groups is lost.
    Cut(BTreeSet<NodeId>),
    Heal,
}

pub enum Event {
    Train(NodeId, Incarnation),
    Frame(NodeId, Link, Header, Box<Message>),
    Stream(NodeId, Link, Stream),
    Tell(NodeId, Incarnation, In),
    Tick(NodeId, Incarnation),
    Fault(Fault),
    /// What a dead node sent is lost from now on.
    Break(NodeId, NodeId, Link),
    /// The membership looks around: who is dead, back, a candidate; who must join again.
    Look,
}

pub struct World {
    pub nodes: BTreeMap<NodeId, Node>,
    pub oracle: Oracle,
    pub seed: u64,
    pub network: Network,
    pub absences: Vec<Absence>,
    /// How many faults are still to come.
    pub faults: usize,
    pub now: u64,
    pub random: Random,
    pub schedule: Schedule,
    pub quorum: Quorum,
    pub on_quorum_loss: OnQuorumLoss,
    pub replicas: usize,
    /// Lost shards that a run may have.
    pub losses_allowed: bool,
    pub slow_nodes: BTreeSet<NodeId>,
    queue: Queue<Event>,
    pub cut: Option<BTreeSet<NodeId>>,
    pub incarnations: u64,
    lineage: Lineage,
    pub steps_max: u64,
    /// Starts that died without a trace: nobody is told that they ended.
    pub vanished: BTreeSet<Voter>,
    /// It is dropped while it runs only if a check fails.
    running: bool,
}

impl World {
    pub fn new(
        seed: u64,
        ids: &[u64],
        replicas: usize,
        quorum: Quorum,
        schedule: Schedule,
    ) -> Self {
        Self::with(seed, ids, replicas, (quorum, OnQuorumLoss::Wait), schedule)
    }

    pub fn with(
        seed: u64,
        ids: &[u64],
        replicas: usize,
        rule: (Quorum, OnQuorumLoss),
        schedule: Schedule,
    ) -> Self {
        let (quorum, on_quorum_loss) = rule;
        let mut world = Self {
            nodes: BTreeMap::new(),
            oracle: Oracle::default(),
            seed,
            network: Network::default(),
            absences: Vec::new(),
            faults: 0,
            now: 0,
            random: Random(seed),
            schedule,
            quorum,
            on_quorum_loss,
            replicas,
            losses_allowed: false,
            slow_nodes: BTreeSet::new(),
            queue: Queue::default(),
            cut: None,
            incarnations: 1,
            lineage: Lineage(77),
            steps_max: 40,
            vanished: BTreeSet::new(),
            running: false,
        };
        for id in ids {
            world.nodes.insert(
                NodeId(*id),
                Node::new(NodeId(*id), 1, schedule, replicas, rule),
            );
        }
        let members: Vec<Member> = world
            .nodes
            .values()
            .map(|node| node.member.clone())
            .collect();
        let view = View::new(Epoch::BOOTSTRAP, members).unwrap();
        for id in view.ids() {
            world.nodes.get_mut(&id).unwrap().outside = false;
            let formed = In::Formed {
                view: view.clone(),
                lineage: world.lineage,
            };
            world.tell_later(id, formed, 2 * DELAY_MAX);
            world.train_later(id);
        }
        world.at(LOOK_EVERY, Event::Look);
        world
    }

    pub fn fault_at(&mut self, at: u64, fault: Fault) {
        self.faults += 1;
        self.at(at, Event::Fault(fault));
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    pub fn later(&mut self, event: Event, delay_max: u64) {
        let at = self.now + 1 + self.random.below(delay_max);
        self.at(at, event);
    }

    pub fn tell_later(&mut self, id: NodeId, event: In, delay_max: u64) {
        let incarnation = self.nodes[&id].member.incarnation;
        self.later(Event::Tell(id, incarnation, event), delay_max);
    }

    pub fn train_later(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        if node.next.step.0 >= self.steps_max || node.draining && node.drained {
            return;
        }
        let incarnation = node.member.incarnation;
        let slow = self.slow_nodes.contains(&id);
        self.later(
            Event::Train(id, incarnation),
            if slow { 400 * DELAY_MAX } else { 4 * DELAY_MAX },
        );
    }

    /// Runs until `until` or until nothing is left to happen.
    pub fn run(&mut self, until: u64) {
        let mut events = 0u64;
        self.running = true;
        while let Some((at, event)) = self.queue.pop(until) {
            events += 1;
            assert!(events < EVENTS_MAX, "the simulation does not end");
            self.now = self.now.max(at);
            self.step(event);
        }
        self.running = false;
    }

    pub fn is_up(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.alive)
    }

    pub fn connected(&self, one: NodeId, other: NodeId) -> bool {
        self.cut
            .as_ref()
            .is_none_or(|group| group.contains(&one) == group.contains(&other))
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Train(id, incarnation) => self.train(id, incarnation),
            Event::Frame(to, ..)
            | Event::Stream(to, ..)
            | Event::Tell(to, ..)
            | Event::Tick(to, _)
                if self.paused(to) =>
            {
                self.at(self.nodes[&to].stopped_until, event);
            }
            Event::Frame(to, link, header, message) => {
                if self.carries(link, header.sender, to) {
                    self.feed(to, In::Frame { header, message });
                }
            }
            Event::Stream(to, link, stream) => self.deliver(to, link, stream),
            Event::Tell(id, incarnation, event) => {
                if self.is_start(id, incarnation) {
                    self.tell(id, event);
                }
            }
            Event::Tick(id, incarnation) => {
                let due = self
                    .nodes
                    .get(&id)
                    .filter(|node| node.member.incarnation == incarnation);
                if due
                    .and_then(|node| node.part.next_deadline())
                    .is_some_and(|deadline| deadline.0 <= self.now)
                {
                    self.feed(id, In::Tick);
                }
            }
            Event::Fault(fault) => {
                self.faults -= 1;
                self.fault(fault);
            }
            Event::Break(one, other, link) => {
                if self.carries(link, one, other) {
                    self.break_link(one, other);
                }
            }
            Event::Look => self.look(),
        }
    }

    pub fn paused(&self, id: NodeId) -> bool {
        self.nodes
            .get(&id)
            .is_some_and(|node| node.stopped_until > self.now)
    }

    /// Whether this start of the node is up.
    pub fn is_start(&self, id: NodeId, incarnation: Incarnation) -> bool {
        self.nodes
            .get(&id)
            .is_some_and(|node| node.alive && node.member.incarnation == incarnation)
    }

    fn train(&mut self, id: NodeId, incarnation: Incarnation) {
        if self.paused(id) {
            return self.at(self.nodes[&id].stopped_until, Event::Train(id, incarnation));
        }
        let Some(node) = self
            .nodes
            .get_mut(&id)
            .filter(|node| node.alive && node.member.incarnation == incarnation)
        else {
            return;
        };
        if node.waiting
            || node.silent
            || node.failed.is_some()
            || node.drained
            || node.next.step.0 >= self.steps_max
        {
            return;
        }
        node.train();
        let round = node.round;
        let frozen = node.frozen.clone();
        let buffers = node.buffers.clone();
        if !node.outside {
            let began_in = Some(node.machine().began_in())
                .filter(|lineage| lineage.is_decided())
                .unwrap_or(self.lineage);
            self.oracle
                .contributions
                .insert((began_in, round, id), frozen);
            self.oracle.buffers.insert((began_in, round, id), buffers);
        }
        let contribute = node.contribute(rates(id));
        self.take(id, ToRounds::Contribute(Box::new(contribute)));
    }

    pub fn feed(&mut self, id: NodeId, event: In) {
        self.take(id, ToRounds::In(event));
    }

    pub fn take(&mut self, id: NodeId, message: ToRounds<Vectors>) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive) else {
            return;
        };
        let mut out = Outbox::default();
        node.part.handle(message, Instant(self.now), &mut out);
        let incarnation = node.member.incarnation;
        let identity = node.identity();
        if let Some(deadline) = node.part.next_deadline() {
            self.at(deadline.0.max(self.now + 1), Event::Tick(id, incarnation));
        }
        let mut reports = Vec::new();
        for effect in out.take() {
            reports.extend(self.execute(id, identity, effect));
        }
        for report in reports {
            self.take(id, report);
        }
    }

    /// Carries out an effect; returns what the node is told of it.
    fn execute(
        &mut self,
        id: NodeId,
        identity: Identity,
        effect: RoundsEffect<Vectors>,
    ) -> Vec<ToRounds<Vectors>> {
        let node = self.nodes.get_mut(&id).unwrap();
        let mut reports = Vec::new();
        match effect {
            RoundsEffect::Send { to, frame } => {
                let Frame::V1 { message, .. } = &frame;
                if let Message::Decide {
                    entry: Some(outcome),
                    ..
                } = &**message
                {
                    self.oracle.hear(outcome);
                }
                self.send(id, to, &frame);
            }
            RoundsEffect::Applied(applied) => node.applies = Some(applied),
            RoundsEffect::Tell(Mail::Aggregator(ToAggregator::Decided(decided))) => {
                self.apply(id, &decided)
            }
            RoundsEffect::Tell(Mail::Aggregator(ToAggregator::Failed(Failure::Round(error)))) => {
                node.failed = Some(error)
            }
            RoundsEffect::Tell(Mail::Aggregator(ToAggregator::Failed(failure))) => {
                panic!("{id}: {failure:?}")
            }
            RoundsEffect::MustRejoin => self.must_rejoin(id),
            RoundsEffect::Waiting(why) => node.waits_for = why,
            effect => {
                for done in carry_out(&mut node.part, identity, SLOWMO, effect) {
                    match done {
                        Done::Stream(to, stream) => self.send_stream(to, stream),
                        Done::Report(attempt, moved) => {
                            reports.push(ToRounds::Moved(attempt, moved))
                        }
                    }
                }
            }
        }
        reports
    }

    fn apply(&mut self, id: NodeId, decided: &DecidedRound<Vectors>) {
        let node = self.nodes.get_mut(&id).unwrap();
        let applied = node.applies.take().unwrap();
        let Applied {
            publication,
            outcome,
            began_in,
            votes,
            drained,
            ..
        } = &*applied;
        assert!(
            votes
                .as_ref()
                .is_none_or(|votes| votes.voters.is_quorum(votes.accepted.iter().copied())),
            "{id} decided without a quorum"
        );
        assert!(
            !drained || node.draining,
            "{id} was drained without having asked for it"
        );
        node.drained = *drained;
        let joins = node.outside;
        node.apply(&applied, decided, self.schedule);
        self.check(id, outcome, *began_in, &publication.lost);
        if joins {
            self.check_buffers(id, outcome, *began_in);
        }
        self.train_later(id);
    }

    /// Whoever is a member after an outcome holds its data, so only a decision without it leaves it
    /// behind.
    fn must_rejoin(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        let round = node.round;
        let start = node.start();
        node.leave();
        let lacks = |outcome: &Outcome| {
            outcome
                .view
                .members()
                .iter()
                .all(|member| Voter::from(member) != start)
        };
        // It may have missed one that it holds, and hear of a later one.
        let mut since = self
            .oracle
            .said
            .values()
            .filter(|outcome| outcome.round >= round);
        assert!(
            since.any(lacks),
            "{id} lacks what made it a member after {round}"
        );
    }

    /// Momentum is lost only with more than `R` members, gone at some time from the proposal of the
    /// round before on.
    fn check_losses(&self, outcome: &Outcome, began_in: Lineage) {
        let Some(known) = self.oracle.before(began_in, outcome.round) else {
            return;
        };
        if outcome.momentum_lost == known.outcome.momentum_lost {
            return;
        }
        let since = self
            .oracle
            .before(known.began_in, known.outcome.round)
            .map_or(0, |before| before.decided_at);
        let gone = |member: &&Member| self.was_gone(Voter::from(*member), since);
        let gone: Vec<NodeId> = known
            .outcome
            .view
            .members()
            .iter()
            .filter(gone)
            .map(|member| member.id)
            .collect();
        assert!(
            self.losses_allowed && gone.len() > self.replicas,
            "momentum was lost in {} with only {gone:?} gone",
            outcome.round
        );
    }

    /// Whoever joins has the buffers of the lowest contributor, or all have zeros.
    fn check_buffers(&self, id: NodeId, outcome: &Outcome, began_in: Lineage) {
        let donor = &self.oracle.buffers[&(began_in, outcome.round, outcome.contributors[0])];
        let reset = outcome.spec.kind == RoundKind::Slow && BUFFERS == BufferStrategy::Reset;
        let expected = if reset {
            vec![0.0; donor.len()]
        } else {
            donor.clone()
        };
        assert_eq!(
            self.nodes[&id].buffers, expected,
            "{id} joined in {} with other buffers",
            outcome.round
        );
    }

    /// Whoever is a member after an outcome holds its data when it is decided, unless it died.
    fn check_holders(&self, outcome: &Outcome) {
        for member in outcome.view.members() {
            let node = &self.nodes[&member.id];
            let there = node.alive && node.start() == Voter::from(member);
            let holds = node.round > outcome.round || node.holds(outcome);
            assert!(
                !there || holds,
                "{} is a member after {} and does not hold what it made",
                member.id,
                outcome.round
            );
        }
    }

    fn check(
        &mut self,
        id: NodeId,
        outcome: &Outcome,
        began_in: Lineage,
        lost: &[crate::ident::ShardId],
    ) {
        self.check_losses(outcome, began_in);
        if self.oracle.decide(outcome, began_in, lost, self.now) {
            self.check_holders(outcome);
        }
        let node = &self.nodes[&id];
        let round = outcome.round;
        let expected = &self.oracle.entries[&(outcome.lineage, round)];
        assert_eq!(
            node.values, expected.values,
            "{id} holds other values after {round}"
        );
        assert_eq!(
            node.parameters, expected.parameters,
            "{id} holds other parameters after {round}"
        );
        let layout = crate::shards::Layout::new(self.schedule.elements);
        for (shard, state) in node.part.shards().all() {
            let range = layout.range(shard);
            assert_eq!(
                state.anchor,
                expected.anchor[range.clone()],
                "{id}: anchor of {shard}, {round}"
            );
            assert_eq!(
                state.momentum, expected.momentum[range],
                "{id}: momentum of {shard}, {round}"
            );
        }
    }
}

impl Drop for World {
    /// What a failure in the middle of a run says nothing of.
    fn drop(&mut self) {
        if self.running {
            eprintln!(
                "seed {} failed at {} of the simulated time",
                self.seed, self.now
            );
        }
    }
}

/// Even and odd ids are a site each: what a node measured to whoever there may be.
fn rates(of: NodeId) -> Vec<Rate> {
    let rate = |to: u64| Rate {
        to: NodeId(to),
        kilobytes: if (to < 15) == (of.0 < 15) {
            1_000_000
        } else {
            1_000
        },
    };
    (0..RATES_MAX as u64).map(rate).collect()
}
