//! The machine: opens a round when this node contributes, tells the leader when it holds all it must hold, decides as
//! leader, applies what was decided. The view is fixed, so a lost member ends the run with an error that names it.

use super::error::RoundError;
use super::outcome::{Outcome, RoundKind, Terms};
use super::plan::Plan;
use crate::ballot::{Acceptor, first_ballot};
use crate::ident::{Ballot, Lineage, NodeId, Round};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::shards::{Layout, ShardMap};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{Frame, Header, Message, RefusalReason};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Control frames of the next round that are kept until this node gets there, per member.
pub const EARLY_FRAMES_PER_MEMBER_MAX: usize = 4;
/// Layouts whose shard map is kept: those of parameters, gradients and averaged buffers.
const SHARD_MAPS_MAX: usize = 4;

/// What happens to the coordinator.
#[derive(Clone, Debug)]
pub enum In {
    /// This node froze its contribution.
    Contribute {
        /// What it expects the round to be.
        terms: Terms,
    },
    /// A control frame of this lineage arrived.
    Frame {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Message,
    },
    /// This node's own shards are averaged and their publication is handed to the transport.
    Reduced(Ballot),
    /// All parameters that `owner` publishes arrived.
    ParametersHeld(Ballot, NodeId),
    /// All momentum of `owner` that this node replicates arrived.
    MomentumHeld(Ballot, NodeId),
    /// A contributor expects another round than this node.
    TermsDiffer(Ballot, NodeId, Terms),
    /// A stream to or from a member failed while the member seems alive.
    StreamBroken(Ballot, NodeId),
    /// A member is gone.
    MemberLost(NodeId),
    /// Time passed.
    Tick,
}

/// What the coordinator asks its shell for.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a control frame.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame,
    },
    /// Start the data movements of a round.
    Open(Arc<Plan>),
    /// Stop the data movements of a ballot and throw their results away.
    Discard(Ballot),
    /// Install a decided outcome and release whoever waits for it.
    Apply(Outcome),
    /// Release whoever waits with an error; nothing was changed.
    Fail(RoundError),
}

/// What a coordinator needs to know at the founding.
#[derive(Clone, Debug)]
pub struct Founding {
    /// This node.
    pub identity: Identity,
    /// The founding view.
    pub view: View,
    /// The new model history.
    pub lineage: Lineage,
    /// `R`: replicas of a shard beside its owner.
    pub replicas: usize,
    /// How long a round may take before it is given up.
    pub round_timeout: Span,
}

/// The SlowMo coordinator of one node.
#[derive(Clone, Debug)]
pub struct Coordinator {
    founding: Founding,
    round: Round,
    ballot: Ballot,
    acceptor: Acceptor<Outcome>,
    maps: Vec<(u64, Arc<ShardMap>)>,
    proposed: Option<Outcome>,
    prepared: BTreeSet<NodeId>,
    decided: Option<Outcome>,
    open: Option<Open>,
    early: Vec<(Header, Message)>,
    stopped: Option<RoundError>,
}

/// A round that this node has contributed to (or receives) and that is not applied yet.
#[derive(Clone, Debug)]
struct Open {
    plan: Arc<Plan>,
    deadline: Instant,
    reducing: bool,
    parameters_from: BTreeSet<NodeId>,
    momentum_from: BTreeSet<NodeId>,
    told_leader: bool,
}

impl Open {
    fn new(plan: Arc<Plan>, deadline: Instant) -> Self {
        let parameters_from = plan.other_owners().into_iter().collect();
        let momentum_from = plan.momentum_from().into_iter().map(|(owner, _)| owner).collect();
        Self { deadline, reducing: plan.owns(), parameters_from, momentum_from, told_leader: false, plan }
    }

    fn holds_all(&self) -> bool {
        !self.reducing && self.parameters_from.is_empty() && self.momentum_from.is_empty()
    }
}

impl Machine for Coordinator {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Contribute { terms } => self.contribute(terms, now, out),
            In::Frame { header, message } => self.receive(header, message, now, out),
            In::Reduced(ballot) => self.holds(ballot, out, |open| open.reducing = false),
            In::ParametersHeld(ballot, owner) => self.holds(ballot, out, |open| _ = open.parameters_from.remove(&owner)),
            In::MomentumHeld(ballot, owner) => self.holds(ballot, out, |open| _ = open.momentum_from.remove(&owner)),
            In::TermsDiffer(ballot, other, terms) => self.terms_differ(ballot, other, terms, out),
            In::StreamBroken(ballot, node) if ballot == self.ballot => self.abandon(RefusalReason::StreamBroken { node }, out),
            In::StreamBroken(..) => {}
            In::MemberLost(node) => self.member_lost(node, out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.deadline)
    }
}

impl Coordinator {
    /// A coordinator before round 0 of a new lineage; the lowest id leads.
    #[must_use]
    pub fn new(founding: Founding) -> Self {
        let (ballot, acceptor) = (first_ballot(&founding.view), Acceptor::new(&founding.view));
        Self {
            founding,
            round: Round::FOUNDING,
            ballot,
            acceptor,
            maps: Vec::new(),
            proposed: None,
            prepared: BTreeSet::new(),
            decided: None,
            open: None,
            early: Vec::new(),
            stopped: None,
        }
    }

    /// Where in history this node stands: the place of every stream it opens for the current round.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { lineage: self.founding.lineage, epoch: self.founding.view.epoch(), round: self.round, ballot: self.ballot }
    }

    /// The view in force.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.founding.view
    }

    /// Whether a stream of this header belongs to the current or the next round of this lineage, from a member.
    #[must_use]
    pub fn admits(&self, header: &Header) -> bool {
        let place = self.place();
        let near = header.round == place.round || header.round == place.round.next();
        let same = header.lineage == place.lineage && header.epoch == place.epoch && header.ballot >= place.ballot;
        let member = self.view().member(header.sender).is_some_and(|member| member.incarnation == header.incarnation);
        near && same && member
    }

    fn me(&self) -> NodeId {
        self.founding.identity.node
    }

    fn leads(&self) -> bool {
        self.ballot.node == self.me()
    }

    fn contribute(&mut self, terms: Terms, now: Instant, out: &mut Outbox<Effect>) {
        if let Some(error) = &self.stopped {
            return out.push(Effect::Fail(error.clone()));
        }
        if self.open.is_some() {
            return out.push(Effect::Fail(RoundError::RoundStillOpen(self.round)));
        }
        if let Some(proposed) = self.proposed.as_ref().filter(|proposed| proposed.terms != terms) {
            let reason = self.difference(terms, self.ballot.node, proposed.terms);
            self.abandon(reason, out);
            // Nothing is open yet, but the caller waits.
            let error = self.stopped.clone();
            return error.into_iter().for_each(|error| out.push(Effect::Fail(error)));
        }
        let contributors = self.contributors(terms.kind);
        let map = self.shard_map(terms.elements);
        let plan = Plan::new(self.me(), (self.round, self.ballot), terms, contributors, self.view(), map);
        let plan = Arc::new(plan);
        self.open = Some(Open::new(Arc::clone(&plan), now.after(self.founding.round_timeout)));
        out.push(Effect::Open(Arc::clone(&plan)));
        if self.leads() {
            self.propose(&plan, out);
        }
        self.advance(out);
    }

    /// All members, except at the founding, where only the lowest id has the parameters that count.
    fn contributors(&self, kind: RoundKind) -> Vec<NodeId> {
        match kind {
            RoundKind::Found => vec![self.view().lowest()],
            _ => self.view().ids().collect(),
        }
    }

    fn shard_map(&mut self, elements: u64) -> Arc<ShardMap> {
        if let Some((_, map)) = self.maps.iter().find(|(known, _)| *known == elements) {
            return Arc::clone(map);
        }
        let map = Arc::new(ShardMap::new(self.view(), &Layout::new(elements as usize), self.founding.replicas));
        if self.maps.len() == SHARD_MAPS_MAX {
            self.maps.remove(0);
        }
        self.maps.push((elements, Arc::clone(&map)));
        map
    }

    fn propose(&mut self, plan: &Plan, out: &mut Outbox<Effect>) {
        let outcome = Outcome {
            lineage: self.founding.lineage,
            round: self.round,
            terms: plan.terms,
            contributors: plan.contributors.clone(),
            view: self.founding.view.clone(),
        };
        self.broadcast(&Message::Propose(outcome.clone()), out);
        self.proposed = Some(outcome);
    }

    fn receive(&mut self, header: Header, message: Message, now: Instant, out: &mut Outbox<Effect>) {
        let place = self.place();
        let known = self.view().contains(header.sender) && header.lineage == place.lineage && header.epoch == place.epoch;
        if !known {
            return;
        }
        if header.round < place.round || header.ballot < place.ballot {
            let worth_an_answer = matches!(message, Message::Prepare | Message::Propose(_));
            return if worth_an_answer {
                self.send(header.sender, Message::Stale, out)
            };
        }
        if header.round > place.round {
            let room = self.early.len() < EARLY_FRAMES_PER_MEMBER_MAX * self.view().size();
            if room && header.round == place.round.next() {
                self.early.push((header, message));
            }
            return;
        }
        self.act(header, message, now, out);
    }

    /// Acts on a frame of the current round.
    fn act(&mut self, header: Header, message: Message, _now: Instant, out: &mut Outbox<Effect>) {
        match message {
            Message::Prepare => self.promise(header, out),
            Message::Propose(outcome) if header.sender == header.ballot.node => self.accept_proposal(outcome, out),
            Message::Prepared => {
                self.prepared.insert(header.sender);
                self.advance(out);
            }
            Message::Decide(outcome) => {
                self.decided = Some(outcome);
                self.advance(out);
            }
            Message::Abandon(reason) => self.stop(RoundError::refused(self.round, reason), out),
            _ => {}
        }
    }

    fn promise(&mut self, header: Header, out: &mut Outbox<Effect>) {
        match self.acceptor.prepare(header.ballot) {
            Ok(promise) => {
                self.ballot = header.ballot;
                self.send(header.sender, Message::Promise { accepted: promise.accepted }, out);
            }
            Err(_) => self.send(header.sender, Message::Stale, out),
        }
    }

    fn accept_proposal(&mut self, outcome: Outcome, out: &mut Outbox<Effect>) {
        let ours = self.open.as_ref().map(|open| open.plan.terms);
        if let Some(ours) = ours.filter(|ours| *ours != outcome.terms) {
            let reason = self.difference(ours, self.ballot.node, outcome.terms);
            return self.abandon(reason, out);
        }
        self.proposed = Some(outcome);
        self.advance(out);
    }

    fn holds(&mut self, ballot: Ballot, out: &mut Outbox<Effect>, mark: impl FnOnce(&mut Open)) {
        if let Some(open) = self.open.as_mut().filter(|open| open.plan.ballot == ballot) {
            mark(open);
            self.advance(out);
        }
    }

    /// Takes every step that became possible: accept, decide, apply.
    fn advance(&mut self, out: &mut Outbox<Effect>) {
        self.accept_when_held(out);
        self.decide_when_prepared(out);
        let ready = self.open.as_ref().is_some_and(Open::holds_all);
        if let Some(outcome) = self.decided.take_if(|_| ready) {
            self.apply(outcome, out);
        }
    }

    fn accept_when_held(&mut self, out: &mut Outbox<Effect>) {
        let Some(open) = self.open.as_mut().filter(|open| open.holds_all() && !open.told_leader) else { return };
        let Some(outcome) = self.proposed.clone() else { return };
        if self.acceptor.accept(self.ballot, outcome).is_err() {
            return;
        }
        open.told_leader = true;
        if self.leads() {
            self.prepared.insert(self.me());
        } else {
            self.send(self.ballot.node, Message::Prepared, out);
        }
    }

    /// The leader's rule: a quorum accepted, and every shard is held by all its holders.
    fn decide_when_prepared(&mut self, out: &mut Outbox<Effect>) {
        let Some(open) = self.open.as_ref().filter(|_| self.leads() && self.decided.is_none()) else { return };
        let held = open.plan.holders().is_subset(&self.prepared);
        if !held || !self.view().is_quorum(self.prepared.iter().copied()) {
            return;
        }
        if let Some(outcome) = self.proposed.clone() {
            self.broadcast(&Message::Decide(outcome.clone()), out);
            self.decided = Some(outcome);
        }
    }

    fn apply(&mut self, outcome: Outcome, out: &mut Outbox<Effect>) {
        self.round = self.round.next();
        self.acceptor.next_decree(&self.founding.view);
        self.ballot = first_ballot(&self.founding.view);
        self.open = None;
        self.proposed = None;
        self.prepared.clear();
        out.push(Effect::Apply(outcome));
        for (header, message) in std::mem::take(&mut self.early) {
            self.act(header, message, Instant::default(), out);
        }
    }

    fn terms_differ(&mut self, ballot: Ballot, other: NodeId, terms: Terms, out: &mut Outbox<Effect>) {
        if let Some(open) = self.open.as_ref().filter(|open| open.plan.ballot == ballot) {
            let reason = self.difference(open.plan.terms, other, terms);
            self.abandon(reason, out);
        }
    }

    fn difference(&self, ours: Terms, other: NodeId, theirs: Terms) -> RefusalReason {
        RefusalReason::TermsDiffer { one: self.me(), one_terms: ours.to_string(), other, other_terms: theirs.to_string() }
    }

    fn member_lost(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        if !self.view().contains(node) || self.stopped.is_some() {
            return;
        }
        let reason = RefusalReason::MemberLost { node };
        if self.open.is_some() {
            self.abandon(reason, out);
        } else {
            self.stopped = Some(RoundError::refused(self.round, reason));
        }
    }

    /// Ends the round for everybody: with a fixed view it cannot be decided any more.
    fn abandon(&mut self, reason: RefusalReason, out: &mut Outbox<Effect>) {
        self.broadcast(&Message::Abandon(reason.clone()), out);
        self.stop(RoundError::refused(self.round, reason), out);
    }

    fn stop(&mut self, error: RoundError, out: &mut Outbox<Effect>) {
        if self.stopped.is_none() {
            self.stopped = Some(error.clone());
        }
        if let Some(open) = self.open.take() {
            out.push(Effect::Discard(open.plan.ballot));
            out.push(Effect::Fail(error));
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let Some(open) = self.open.as_ref().filter(|open| now >= open.deadline) else { return };
        let mut waiting: BTreeSet<NodeId> = open.parameters_from.union(&open.momentum_from).copied().collect();
        if waiting.is_empty() {
            waiting.insert(self.ballot.node);
        }
        let waiting_for = waiting.into_iter().collect();
        let error = RoundError::TimedOut { round: self.round, after: self.founding.round_timeout, waiting_for };
        self.stop(error, out);
    }

    fn broadcast(&self, message: &Message, out: &mut Outbox<Effect>) {
        for to in self.view().ids().filter(|id| *id != self.me()) {
            self.send(to, message.clone(), out);
        }
    }

    fn send(&self, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        out.push(Effect::Send { to, frame: self.founding.identity.frame(self.place(), message) });
    }
}
