//! The coordinator of a simulated node and its data movements: real sums over small vectors. As the actor does, but for chunks: a
//! stream arrives as a whole or not at all.

use super::movement::{Applied, Moving, Parked, Shards};
use crate::sim::mail::{
    Contribution, Failure, Mail, Movement, RoundDecided, Stream, ToAggregator, ToGossip, ToMembership, ToRounds, Values, Wish,
};
use slowmo_protocol::algorithm::OuterOptimizer;
use slowmo_protocol::coordinator::{Attempt, Coordinator, Effect, In, Outcome, Plan, Publication, RoundKind, Settings, Votes};
use slowmo_protocol::ident::{Epoch, Lineage, NodeId, Round};
use slowmo_protocol::machine::{Identity, Machine, Outbox};
use slowmo_protocol::membership;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Decided, Event, Start};
use slowmo_protocol::view::Member;
use std::sync::Arc;

/// What the coordinator's shell may have parked: see `ROUND_STREAMS_PARKED_MAX` of the actor.
pub const STREAMS_PARKED_MAX: usize = slowmo_actors::coordinator::ROUND_STREAMS_PARKED_MAX;

/// The machine, the decided shards and the attempt under way.
pub struct RoundsPart {
    machine: Coordinator,
    start: Start,
    shards: Shards,
    parked: Parked,
    /// The attempts whose data moves or is kept, the newest last.
    moving: Vec<Moving>,
    contributed: Option<Contribution>,
    epoch: Epoch,
    order: Vec<NodeId>,
    retained: Vec<Member>,
    copies_buffers: bool,
    optimizer: OuterOptimizer,
    rates: Vec<slowmo_protocol::topology::Rate>,
    /// How long what this node computes or writes takes, in microseconds.
    pub work: u64,
    /// The last outcome whose parameters the training thread had when it contributed.
    pub after: Option<slowmo_protocol::trace::Place>,
    /// Why no round is decided.
    pub waiting: Option<String>,
    /// The decided outcomes applied so far.
    pub applied: u64,
}

impl RoundsPart {
    /// A coordinator without a view.
    pub fn new(settings: Settings, optimizer: OuterOptimizer, rates: Vec<slowmo_protocol::topology::Rate>) -> Self {
        let start = Start { node: settings.identity.node, incarnation: settings.identity.incarnation };
        let copies_buffers = settings.copies_buffers.is_some();
        Self {
            machine: Coordinator::new(settings),
            start,
            shards: Shards::default(),
            parked: Parked::default(),
            moving: Vec::new(),
            contributed: None,
            epoch: Epoch(0),
            order: Vec::new(),
            retained: Vec::new(),
            copies_buffers,
            optimizer,
            rates,
            work: 0,
            after: None,
            waiting: None,
            applied: 0,
        }
    }

    /// When it must be given a tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// The machine, to look at.
    pub fn machine(&self) -> &Coordinator {
        &self.machine
    }

    /// What it is doing, in a word.
    pub fn phase(&self) -> &'static str {
        match self.moving.last() {
            _ if self.machine.view().is_none() => "outside",
            Some(moving) if moving.publication.is_some() => "publish",
            Some(_) => "reduce",
            None if self.contributed.is_some() => "contributed",
            None => "compute",
        }
    }

    /// How many streams are parked.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Takes a message.
    pub fn take(&mut self, message: ToRounds, now: Instant, wishes: &mut Vec<Wish>) {
        let mut out = Outbox::default();
        match message {
            ToRounds::In(event) => {
                self.machine.handle(event, now, &mut out);
            }
            ToRounds::Contribute(contribution) => self.contribute(*contribution, now, wishes, &mut out),
            ToRounds::Stream(stream) => {
                if self.machine.admits(&stream.header) {
                    self.parked.put(*stream);
                }
            }
            ToRounds::Broken(attempt, node) if self.is_moving(attempt) => {
                self.machine.handle(In::StreamBroken(attempt, node), now, &mut out)
            }
            ToRounds::Reduced(attempt) if self.is_moving(attempt) => self.machine.handle(In::Reduced(attempt), now, &mut out),
            ToRounds::Held(attempt, from, what) if self.is_moving(attempt) => {
                let event = match what {
                    Movement::Parameters => In::ParametersHeld(attempt, from),
                    Movement::State => In::StateHeld(attempt, from),
                    Movement::Buffers => In::BuffersHeld(attempt, from),
                };
                self.machine.handle(event, now, &mut out);
            }
            // Of an attempt that is over.
            ToRounds::Broken(..) | ToRounds::Reduced(_) | ToRounds::Held(..) => {}
            ToRounds::FoundingFailed => self.contributed = None,
        }
        for effect in out.take() {
            self.act(effect, wishes);
        }
        self.progress(wishes);
    }

    fn is_moving(&self, attempt: Attempt) -> bool {
        self.moving.last().is_some_and(|moving| moving.plan.attempt == attempt)
    }

    fn contribute(&mut self, contribution: Contribution, now: Instant, wishes: &mut Vec<Wish>, out: &mut Outbox<Effect>) {
        let Contribution { round, spec, ref samples, ref buffers, .. } = contribution;
        let (samples, buffers) = (samples.clone(), if self.copies_buffers { buffers.len() as u64 } else { 0 });
        let values = contribution.values.to_vec();
        let after = self.after;
        wishes.push(Wish::Record(Event::Contributed {
            start: self.start,
            lineage: self.machine.began_in(),
            round,
            after,
            weight: contribution.weight,
            values,
            samples: contribution.used.clone(),
        }));
        self.contributed = Some(contribution);
        self.machine.handle(In::Contribute { round, spec, samples, rates: self.rates.clone(), buffers }, now, out);
    }

    fn act(&mut self, effect: Effect, wishes: &mut Vec<Wish>) {
        match effect {
            Effect::Send { to, frame } => wishes.push(Wish::Frame(to, frame)),
            Effect::Open(plan) => self.open(plan, wishes),
            Effect::Publish(publication) => self.publish(publication, wishes),
            Effect::Discard(attempt) => self.moving.retain(|moving| moving.plan.attempt != attempt),
            Effect::Apply { attempt, outcome, members, began_in, votes, drained } => {
                let decision = Decision { began_in, votes, members, drained };
                self.apply(attempt, outcome, decision, wishes);
            }
            Effect::Fail(error) => {
                self.contributed = None;
                wishes.push(Wish::Tell(Mail::Aggregator(ToAggregator::Failed(Failure::Round(error)))));
            }
            Effect::Stranded => {
                self.shards = Shards::default();
                wishes.push(Wish::Tell(Mail::Membership(ToMembership::In(membership::In::Stranded))));
            }
            Effect::Resigned(obeyed) => {
                if obeyed {
                    self.shards = Shards::default();
                    self.epoch = Epoch(0);
                    wishes.push(Wish::Record(Event::Resigned(self.start)));
                }
                wishes.push(Wish::Tell(Mail::Membership(ToMembership::In(membership::In::Resigned(obeyed)))));
            }
            Effect::Waiting(why) => self.waiting = why,
        }
    }

    fn open(&mut self, plan: Arc<Plan>, wishes: &mut Vec<Wish>) {
        self.parked.forget_below(plan.attempt);
        let header = self.header(&plan);
        if let Some(own) = self.contributed.as_ref().filter(|_| plan.contributes()) {
            for owner in plan.other_owners() {
                let stream = Stream { header, content: Moving::contribution(&plan, owner, own) };
                wishes.push(Wish::Stream(owner, Box::new(stream)));
            }
        }
        self.moving.push(Moving::new(plan));
    }

    fn header(&self, plan: &Plan) -> slowmo_protocol::wire::Header {
        identity(self.start).header(plan.place)
    }

    fn publish(&mut self, publication: Arc<Publication>, wishes: &mut Vec<Wish>) {
        let Some(plan) = self.moving.last().map(|moving| Arc::clone(&moving.plan)) else { return };
        let header = self.header(&plan);
        let buffers = self.contributed.as_ref().map(|own| own.buffers.clone());
        for (to, content) in self.shards.moved(&publication, self.start.node, buffers.as_ref()) {
            wishes.push(Wish::Stream(to, Box::new(Stream { header, content })));
        }
        if let Some(moving) = self.moving.last_mut() {
            moving.publication = Some(publication);
        }
    }

    /// Averages, publishes and takes in what has arrived.
    fn progress(&mut self, wishes: &mut Vec<Wish>) {
        let Some(moving) = self.moving.last_mut() else { return };
        let (attempt, header) = (moving.plan.attempt, moving.plan.place);
        let header = identity(self.start).header(header);
        if moving.reduce(&self.parked, self.contributed.as_ref(), &self.shards, self.optimizer) {
            for (to, content) in moving.published(self.start.node) {
                wishes.push(Wish::Stream(to, Box::new(Stream { header, content })));
            }
            wishes.push(Wish::Later(self.work, Mail::Rounds(ToRounds::Reduced(attempt))));
        }
        for (from, what) in moving.take_in(&mut self.parked) {
            wishes.push(Wish::Later(self.work, Mail::Rounds(ToRounds::Held(attempt, from, what))));
        }
    }

    fn apply(&mut self, attempt: Attempt, outcome: Outcome, decision: Decision, wishes: &mut Vec<Wish>) {
        let decided = std::mem::take(&mut self.moving).into_iter().find(|moving| moving.plan.attempt == attempt);
        let Some(moving) = decided else { return };
        let participants = moving.plan.participants.clone();
        self.contributed = None;
        let Applied { values, donated } = moving.finish(&outcome, &mut self.shards, self.start.node);
        self.applied += 1;
        self.record(&outcome, &decision, participants, &values, wishes);
        let Decision { members, drained, .. } = decision;
        let next = outcome.round.next();
        let another = outcome.view.epoch() != self.epoch || outcome.order != self.order;
        if another || outcome.spec.kind == RoundKind::Found {
            (self.epoch, self.order) = (outcome.view.epoch(), outcome.order.clone());
            let order = outcome.order.clone();
            wishes.push(Wish::Tell(Mail::Gossip(ToGossip::View(outcome.view.clone(), outcome.lineage, next, order))));
        } else {
            wishes.push(Wish::Tell(Mail::Gossip(ToGossip::Round(next))));
        }
        if outcome.retained != self.retained {
            self.retained.clone_from(&outcome.retained);
            let event = membership::In::Retained(outcome.retained.clone());
            wishes.push(Wish::Tell(Mail::Membership(ToMembership::In(event))));
        }
        self.tell_decided(&outcome, next, wishes);
        let decided = RoundDecided { outcome, members, values, donated, drained };
        wishes.push(Wish::Tell(Mail::Aggregator(ToAggregator::Decided(Box::new(decided)))));
    }

    fn tell_decided(&self, outcome: &Outcome, round: Round, wishes: &mut Vec<Wish>) {
        let (view, lineage) = (outcome.view.clone(), outcome.lineage);
        wishes.push(Wish::Tell(Mail::Membership(ToMembership::In(membership::In::Decided { view, lineage, round }))));
    }

    fn record(&self, outcome: &Outcome, decision: &Decision, participants: Vec<NodeId>, values: &Values, wishes: &mut Vec<Wish>) {
        let members = decision.members.iter().map(|member| Start { node: member.id, incarnation: member.incarnation }).collect();
        let decided = Decided::new(outcome, decision.began_in, members, participants);
        wishes.push(Wish::Record(Event::Applied {
            start: self.start,
            decided: Box::new(decided),
            digest: slowmo_protocol::trace::digest_values(values),
            values: values.to_vec(),
            holds: self.shards.held(),
            drained: decision.drained,
            votes: decision.votes.as_ref().map(slowmo_protocol::trace::Votes::from),
        }));
    }
}

/// How an outcome was decided.
struct Decision {
    began_in: Lineage,
    votes: Option<Votes>,
    members: Arc<[Member]>,
    drained: bool,
}

fn identity(start: Start) -> Identity {
    Identity { cluster: super::CLUSTER, node: start.node, incarnation: start.incarnation }
}
