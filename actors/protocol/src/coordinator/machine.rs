//! The machine: opens a round when this node contributes, tells the leader when it holds all it must hold, decides as
//! leader, applies what was decided. The view is fixed, so a lost member ends the run with an error that names it.

mod open;
mod voting;

use super::error::RoundError;
use super::outcome::{Outcome, RoundKind, Terms};
use super::plan::{Attempt, Plan};
use crate::ballot::{Acceptor, first_ballot};
use crate::ident::{Ballot, Lineage, NodeId, Round};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::shards::{Layout, ShardMap};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{Frame, Header, Message, RefusalReason};
use open::Open;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Control frames of the next round that are kept until this node gets there, per member.
pub const EARLY_FRAMES_PER_MEMBER_MAX: usize = 4;
/// Layouts whose shard map is kept: those of parameters, gradients and averaged buffers.
const SHARD_MAPS_MAX: usize = 4;

/// How long a broken stream may go unexplained before its other end is blamed: that end may be about to say that it ended
/// the round because of another member, or be found gone itself.
pub const STREAM_BROKEN_WAIT_MAX: Span = Span::from_millis(1_000);

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
    Reduced(Attempt),
    /// All parameters that `owner` publishes arrived.
    ParametersHeld(Attempt, NodeId),
    /// All momentum of `owner` that this node replicates arrived.
    MomentumHeld(Attempt, NodeId),
    /// A contributor expects another round than this node.
    TermsDiffer(Attempt, NodeId, Terms),
    /// A stream to or from a member failed while the member seems alive.
    StreamBroken(Attempt, NodeId),
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
    stopped: Option<Stopped>,
}

/// Why no further round can be decided: the view is fixed.
#[derive(Clone, Debug)]
enum Stopped {
    Refused(RefusalReason),
    TimedOut(RoundError),
}

impl Stopped {
    fn error(&self, round: Round) -> RoundError {
        match self {
            Self::Refused(reason) => RoundError::refused(round, reason.clone()),
            Self::TimedOut(error) => error.clone(),
        }
    }
}

impl Machine for Coordinator {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Contribute { terms } => self.contribute(terms, now, out),
            In::Frame { header, message } => self.receive(header, message, out),
            In::Reduced(attempt) => self.holds(attempt, out, |open| open.reducing = false),
            In::ParametersHeld(attempt, owner) => self.holds(attempt, out, |open| _ = open.parameters_from.remove(&owner)),
            In::MomentumHeld(attempt, owner) => self.holds(attempt, out, |open| _ = open.momentum_from.remove(&owner)),
            In::TermsDiffer(attempt, other, terms) => self.terms_differ(attempt, other, terms, out),
            In::StreamBroken(attempt, node) => self.stream_broken(attempt, node, now),
            In::MemberLost(node) => self.member_lost(node, out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.open.as_ref().map(Open::next_deadline)
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
        let near = header.round == self.round || header.round == self.round.next();
        // Ballots start afresh with every round.
        let current = (header.round, header.ballot) >= (self.round, self.ballot);
        near && current && self.is_from_member(header)
    }

    fn me(&self) -> NodeId {
        self.founding.identity.node
    }

    fn leads(&self) -> bool {
        self.ballot.node == self.me()
    }

    fn contribute(&mut self, terms: Terms, now: Instant, out: &mut Outbox<Effect>) {
        if let Some(stopped) = &self.stopped {
            return out.push(Effect::Fail(stopped.error(self.round)));
        }
        if self.open.is_some() {
            return out.push(Effect::Fail(RoundError::RoundStillOpen(self.round)));
        }
        let known = self.decided.as_ref().or(self.proposed.as_ref()).map(|outcome| outcome.terms);
        if let Some(theirs) = known.filter(|theirs| *theirs != terms) {
            let reason = self.difference(terms, self.ballot.node, theirs);
            self.abandon(reason.clone(), out);
            return out.push(Effect::Fail(RoundError::refused(self.round, reason)));
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

    /// The open round, if `attempt` is the one it is at: what an earlier round's movements still report is of no interest.
    fn open_at(&mut self, attempt: Attempt) -> Option<&mut Open> {
        self.open.as_mut().filter(|open| open.plan.attempt() == attempt)
    }

    fn holds(&mut self, attempt: Attempt, out: &mut Outbox<Effect>, mark: impl FnOnce(&mut Open)) {
        if let Some(open) = self.open_at(attempt) {
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

    fn apply(&mut self, outcome: Outcome, out: &mut Outbox<Effect>) {
        self.round = self.round.next();
        self.acceptor.next_decree(&self.founding.view);
        self.ballot = first_ballot(&self.founding.view);
        self.open = None;
        self.proposed = None;
        self.prepared.clear();
        out.push(Effect::Apply(outcome));
        for (header, message) in std::mem::take(&mut self.early) {
            self.receive(header, message, out);
        }
    }

    fn terms_differ(&mut self, attempt: Attempt, other: NodeId, terms: Terms, out: &mut Outbox<Effect>) {
        if let Some(ours) = self.open_at(attempt).map(|open| open.plan.terms) {
            let reason = self.difference(ours, other, terms);
            self.abandon(reason, out);
        }
    }

    fn stream_broken(&mut self, attempt: Attempt, node: NodeId, now: Instant) {
        if let Some(open) = self.open_at(attempt) {
            open.broken.get_or_insert((node, now.after(STREAM_BROKEN_WAIT_MAX)));
        }
    }

    fn difference(&self, ours: Terms, other: NodeId, theirs: Terms) -> RefusalReason {
        RefusalReason::TermsDiffer { one: self.me(), one_terms: ours.to_string(), other, other_terms: theirs.to_string() }
    }

    fn member_lost(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        if !self.view().contains(node) || node == self.me() {
            return;
        }
        let reason = RefusalReason::MemberLost { node };
        // A decided round whose data comes from others ends with its outcome; the next one cannot.
        let can_end = self.decided.is_some() && self.open.as_ref().is_some_and(|open| !open.needs(node));
        if can_end {
            self.stopped.get_or_insert(Stopped::Refused(reason));
        } else {
            self.abandon(reason, out);
        }
    }

    /// Ends the round for everybody: with a fixed view it cannot be decided any more.
    fn abandon(&mut self, reason: RefusalReason, out: &mut Outbox<Effect>) {
        if self.stopped.is_none() {
            self.broadcast(&Message::Abandon(reason.clone()), out);
        }
        self.stop(Stopped::Refused(reason), out);
    }

    fn stop(&mut self, stopped: Stopped, out: &mut Outbox<Effect>) {
        let error = stopped.error(self.round);
        self.stopped.get_or_insert(stopped);
        if let Some(open) = self.open.take() {
            out.push(Effect::Discard(open.plan.ballot));
            out.push(Effect::Fail(error));
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let broken = self.open.as_ref().and_then(|open| open.broken).filter(|(_, deadline)| now >= *deadline);
        if let Some((node, _)) = broken {
            return self.abandon(RefusalReason::StreamBroken { node }, out);
        }
        let Some(open) = self.open.as_ref().filter(|open| now >= open.deadline) else { return };
        let waiting_for = self.missing(open).into_iter().collect();
        let error = RoundError::TimedOut { round: self.round, after: self.founding.round_timeout, waiting_for };
        self.stop(Stopped::TimedOut(error), out);
    }

    /// Whose data or decision is missing: data first, then what a leader or a member waits for.
    fn missing(&self, open: &Open) -> BTreeSet<NodeId> {
        let data = open.missing();
        if !data.is_empty() {
            return data;
        }
        if !self.leads() {
            return BTreeSet::from([self.ballot.node]);
        }
        let holders: BTreeSet<_> = open.plan.holders().difference(&self.prepared).copied().collect();
        if holders.is_empty() { self.view().ids().filter(|id| !self.prepared.contains(id)).collect() } else { holders }
    }

    fn broadcast(&self, message: &Message, out: &mut Outbox<Effect>) {
        for to in self.view().ids().filter(|id| *id != self.me()) {
            self.send(to, message.clone(), out);
        }
    }

    fn send(&self, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        self.send_from(self.place(), to, message, out);
    }

    fn send_from(&self, place: Place, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        out.push(Effect::Send { to, frame: self.founding.identity.frame(place, message) });
    }
}
