//! The coordinator and the data of its attempts: assigns streams to attempts, starts the averaging
//! of shards, keeps the results of decided rounds and reports them to the other parts.

use super::attempt::{Applied, GroupSum, Moving, Reduction, Unfit, fits};
use super::data::{Arrived, Data, StreamKind};
use super::mail::{DecidedRound, Failure, Mail, Moved, ToAggregator, ToGossip, ToRounds};
use super::parked::Parked;
use super::shards::Shards;
use crate::changeable::ChangedSettings;
use crate::coordinator::{
    Attempt, Coordinator, Effect, In, MemberOrder, Outcome, Plan, Publication, RoundKind, Settings,
    Straggler, Votes, Way,
};
use crate::ident::{Epoch, Lineage, NodeId, ShardId};
use crate::machine::{Machine, Outbox};
use crate::membership;
use crate::sound::Unsound;
use crate::time::Instant;
use crate::view::Member;
use crate::wire::{Frame, Header};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Actions that the part requests from its driver.
#[derive(Debug)]
pub enum RoundsEffect<D: Data> {
    /// Send a control frame.
    Send {
        /// Receiver of the frame.
        to: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// Tell another part.
    Tell(Mail<D>),
    /// An attempt begins.
    Open(Arc<Plan>),
    /// Send this node's contribution to an owner, to the relay of its group, or to a node that is
    /// both. All its streams begin before any value is sent: the receiver reads a stream only when
    /// all contributions that it sums up have begun, and what it does not read holds up the others.
    Contribute(Arc<Plan>, NodeId, BTreeSet<Way>),
    /// Sum up the contributions of this node's group, and send the sums to the owners in other
    /// groups.
    Sum(Box<GroupSum<D>>),
    /// The receivers of an attempt's results are known.
    Publish(Arc<Publication>),
    /// Send the state of shards to a new holder.
    SendState {
        /// The attempt's plan.
        plan: Arc<Plan>,
        /// The publication, which says how the state is cut into shards.
        publication: Arc<Publication>,
        /// Receiver of the state.
        to: NodeId,
        /// The shards and their state, ascending.
        states: Vec<(ShardId, D::State)>,
    },
    /// Send the base optimizer's buffers, as they were passed to the contribution, to a joining
    /// node.
    SendBuffers {
        /// The attempt's plan.
        plan: Arc<Plan>,
        /// Receiver of the buffers.
        to: NodeId,
        /// Number of values.
        values: u64,
    },
    /// Average the node's own shards and publish them, with the state that this makes.
    Reduce(Box<Reduction<D>>),
    /// Read a stream of parameters, state or buffers. The publication of state and buffers is
    /// known.
    Read {
        /// The attempt's plan.
        plan: Arc<Plan>,
        /// The publication, if known: which node sends what.
        publication: Option<Arc<Publication>>,
        /// The stream.
        stream: Arrived<D::Stream>,
    },
    /// Stop the data movements of an attempt that nobody needs any more.
    Discard(Attempt),
    /// A round is applied. Its attempt and all others are over; what the attempt still sends serves
    /// the others' progress.
    Applied(Box<Applied<D>>),
    /// This node belongs to no view any more.
    Resigned,
    /// This node is back in the view that it was in before it resigned.
    Returned,
    /// A round was decided whose data this node does not hold.
    MustRejoin,
    /// Reason why no round is decided now; `None` if nothing is in the way.
    Waiting(Option<String>),
    /// Members that live and contributed nothing to the last round.
    Stragglers(Vec<Straggler>),
    /// Whether a round may soon make a checkpoint beside the schedule.
    CheckpointAsked(bool),
    /// Another member ordered something of all nodes.
    Ordered(NodeId, MemberOrder),
    /// A stream was dropped, with the reason.
    Refused(Header, &'static str),
    /// A node sent what no correct node sends. From now on it counts as unreachable.
    Unsound(NodeId, Unsound),
}

/// The circumstances of a decided outcome.
struct Decision {
    began_in: Lineage,
    votes: Option<Votes>,
    members: Arc<[Member]>,
    drained: bool,
}

/// The coordinator's machine, the attempts whose data moves or is kept, and the decided shards.
#[derive(Debug)]
pub struct RoundsPart<D: Data> {
    machine: Coordinator,
    /// The newest is last; only its data moves.
    attempts: Vec<Moving<D>>,
    parked: Parked<D::Stream>,
    shards: Shards<D>,
    contribution: Option<D::Contribution>,
    /// Number of the model's values that are parameters: the extent of its state.
    parameters: usize,
    /// Epoch of the view that the gossip peer was told last.
    epoch: Epoch,
    /// Order of the gossip graph that it was told with that view.
    order: Vec<NodeId>,
    /// Voters that are not members, as last reported to the membership.
    retained: Vec<Member>,
    /// The changed settings as last told to the gossip peer.
    changed: ChangedSettings,
}

impl<D: Data> RoundsPart<D> {
    /// A coordinator without a view.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            machine: Coordinator::new(settings),
            attempts: Vec::new(),
            parked: Parked::default(),
            shards: Shards::default(),
            contribution: None,
            parameters: 0,
            epoch: Epoch(0),
            order: Vec::new(),
            retained: Vec::new(),
            changed: ChangedSettings::default(),
        }
    }

    /// Time at which the part must be given a tick.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// The coordinator's machine, for inspection.
    #[must_use]
    pub fn machine(&self) -> &Coordinator {
        &self.machine
    }

    /// The decided state that this node holds.
    #[must_use]
    pub fn shards(&self) -> &Shards<D> {
        &self.shards
    }

    /// Number of the model's values that are parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// This node's contribution to the round under way.
    pub fn contribution(&mut self) -> Option<&mut D::Contribution> {
        self.contribution.as_mut()
    }

    /// Number of streams that wait for their attempt.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Most streams that waited at once since the last call.
    pub fn fullest(&mut self) -> usize {
        self.parked.fullest()
    }

    /// Name of the current phase.
    #[must_use]
    pub fn phase(&self) -> &'static str {
        match self.attempts.last() {
            _ if self.machine.view().is_none() => "outside",
            Some(moving) if moving.publication.is_some() => "publish",
            Some(_) => "reduce",
            None if self.contribution.is_some() => "contributed",
            None => "compute",
        }
    }

    /// Handles a message.
    pub fn handle(
        &mut self,
        message: ToRounds<D>,
        now: Instant,
        out: &mut Outbox<RoundsEffect<D>>,
    ) {
        let mut events = VecDeque::new();
        match message {
            ToRounds::In(event) => events.push_back(event),
            ToRounds::BootstrapFailed => self.contribution = None,
            ToRounds::Contribute(contribute) => {
                let super::mail::ContributionMail {
                    round,
                    spec,
                    samples,
                    rates,
                    buffers,
                    parameters,
                    contribution,
                } = *contribute;
                if spec.carries_parameters() {
                    self.parameters = parameters;
                }
                self.contribution = Some(contribution);
                events.push_back(In::Contribute {
                    round,
                    spec,
                    samples,
                    rates,
                    buffers,
                });
            }
            ToRounds::Stream(stream) => self.deliver(stream, &mut events, out),
            ToRounds::Moved(attempt, moved) => events.extend(self.moved(attempt, moved, out)),
        }
        let mut effects = Outbox::default();
        while let Some(event) = events.pop_front() {
            self.machine.handle(event, now, &mut effects);
            for effect in effects.take() {
                self.act(effect, &mut events, out);
            }
        }
    }

    /// Hands a stream to its attempt, or parks it until the attempt is known.
    fn deliver(
        &mut self,
        stream: Arrived<D::Stream>,
        events: &mut VecDeque<In>,
        out: &mut Outbox<RoundsEffect<D>>,
    ) {
        let header = stream.header;
        let attempt = Attempt::of(&header);
        let Some(kind) = StreamKind::of(&stream.content) else {
            return out.push(RoundsEffect::Refused(header, "it is no round's"));
        };
        if !self.machine.admits(&header) {
            return out.push(RoundsEffect::Refused(header, "it is stale or foreign"));
        }
        // State and buffers are awaited once the publication is known, all other streams of an
        // attempt from its beginning.
        let may_come = matches!(kind, StreamKind::State | StreamKind::Buffers);
        let moving = self.moving(attempt);
        if moving
            .as_ref()
            .is_some_and(|moving| moving.awaits(kind, header.sender))
        {
            self.take(kind, stream, events, out);
        } else if moving.is_some() && !may_come {
            out.push(RoundsEffect::Refused(header, "nothing awaits it"));
        } else if !self.parked.put(attempt, kind, stream) {
            out.push(RoundsEffect::Refused(
                header,
                "it came twice, or too many wait",
            ));
        }
    }

    /// The newest attempt, if it is `attempt`.
    fn moving(&mut self, attempt: Attempt) -> Option<&mut Moving<D>> {
        self.attempts
            .last_mut()
            .filter(|moving| moving.plan.attempt == attempt)
    }

    /// Takes a stream that the newest attempt awaits.
    fn take(
        &mut self,
        kind: StreamKind,
        stream: Arrived<D::Stream>,
        events: &mut VecDeque<In>,
        out: &mut Outbox<RoundsEffect<D>>,
    ) {
        let Some(moving) = self.attempts.last_mut() else {
            return;
        };
        let from = stream.header.sender;
        moving.arrived(kind, from);
        let reduces = matches!(
            kind,
            StreamKind::Contribution | StreamKind::Partial | StreamKind::Relayed
        );
        if !reduces {
            let plan = Arc::clone(&moving.plan);
            let publication = moving.publication.clone();
            return out.push(RoundsEffect::Read {
                plan,
                publication,
                stream,
            });
        }
        let attempt = moving.plan.attempt;
        match fits(&moving.plan, from, &stream.content) {
            Ok(()) if kind == StreamKind::Relayed => {
                moving.relayed.insert(from, stream);
                self.sum(out);
            }
            Ok(()) => {
                moving.contributions.insert(from, stream);
                self.reduce(out);
            }
            Err(Unfit::SpecsDiffer(spec)) => events.push_back(In::SpecsDiffer(attempt, from, spec)),
            Err(Unfit::Broken) => events.push_back(In::StreamBroken(attempt, from)),
            Err(Unfit::Unsound(what)) => {
                out.push(RoundsEffect::Unsound(from, what));
                events.push_back(In::Unsound(attempt, from));
            }
        }
    }

    /// Takes the parked streams that the newest attempt awaits.
    fn take_parked(&mut self, events: &mut VecDeque<In>, out: &mut Outbox<RoundsEffect<D>>) {
        let Some(moving) = self.attempts.last() else {
            return;
        };
        let wanted = self
            .parked
            .take(moving.plan.attempt, |kind, from| moving.awaits(kind, from));
        for (kind, stream) in wanted {
            self.take(kind, stream, events, out);
        }
    }

    /// Averages the node's own shards once all inputs are there.
    fn reduce(&mut self, out: &mut Outbox<RoundsEffect<D>>) {
        let Some(moving) = self
            .attempts
            .last_mut()
            .filter(|moving| moving.may_reduce())
        else {
            return;
        };
        let Some(publication) = moving.publication.clone() else {
            return;
        };
        if moving.plan.contributes() && self.contribution.is_none() {
            return;
        }
        moving.reduces = true;
        let plan = Arc::clone(&moving.plan);
        let contributions = std::mem::take(&mut moving.contributions)
            .into_values()
            .collect();
        let states = plan
            .owned_by(plan.me)
            .into_iter()
            .map(|shard| (shard, self.shards.state(shard)))
            .collect();
        out.push(RoundsEffect::Reduce(Box::new(Reduction {
            plan,
            publication,
            contributions,
            states,
        })));
    }

    /// Sums up the contributions of this node's group once all are there, if it is a relay.
    fn sum(&mut self, out: &mut Outbox<RoundsEffect<D>>) {
        let Some(moving) = self.attempts.last_mut().filter(|moving| moving.may_sum()) else {
            return;
        };
        if moving.plan.contributes() && self.contribution.is_none() {
            return;
        }
        moving.sums = true;
        let contributions = std::mem::take(&mut moving.relayed).into_values().collect();
        out.push(RoundsEffect::Sum(Box::new(GroupSum {
            plan: Arc::clone(&moving.plan),
            contributions,
        })));
    }

    /// Handles a report of the newest attempt's data movements; reports of others are ignored.
    fn moved(
        &mut self,
        attempt: Attempt,
        moved: Moved<D>,
        out: &mut Outbox<RoundsEffect<D>>,
    ) -> Option<In> {
        let moving = self.moving(attempt)?;
        Some(match moved {
            Moved::Reduced(reduced) => {
                moving.parts.push(reduced.part);
                moving.states.extend(reduced.states);
                moving.rest = reduced.rest;
                In::Reduced(attempt, reduced.signed)
            }
            Moved::Parameters(owner, part, signed) => {
                moving.parts.push(part);
                In::ParametersHeld(attempt, owner, signed)
            }
            Moved::State(from, states) => {
                moving.states.extend(states);
                In::StateHeld(attempt, from)
            }
            Moved::Buffers(from, values) => {
                moving.donated = Some(values);
                In::BuffersHeld(attempt, from)
            }
            Moved::Broken(node) => In::StreamBroken(attempt, node),
            Moved::Unsound(node, what) => {
                out.push(RoundsEffect::Unsound(node, what));
                In::Unsound(attempt, node)
            }
            Moved::Overflowed(element) => In::Overflowed(attempt, element as u64),
        })
    }

    fn act(
        &mut self,
        effect: Effect,
        events: &mut VecDeque<In>,
        out: &mut Outbox<RoundsEffect<D>>,
    ) {
        match effect {
            Effect::Send { to, frame } => out.push(RoundsEffect::Send { to, frame }),
            Effect::Open(plan) => self.open(plan, events, out),
            Effect::Publish(publication) => self.publish(publication, events, out),
            Effect::Discard(attempt) => {
                self.attempts
                    .retain(|moving| moving.plan.attempt != attempt);
                out.push(RoundsEffect::Discard(attempt));
            }
            Effect::Apply {
                attempt,
                outcome,
                members,
                began_in,
                votes,
                drained,
            } => {
                self.apply(
                    attempt,
                    outcome,
                    Decision {
                        began_in,
                        votes,
                        members,
                        drained,
                    },
                    out,
                );
            }
            Effect::Fail(error) => {
                self.contribution = None;
                out.push(RoundsEffect::Tell(
                    ToAggregator::Failed(Failure::Round(error)).into(),
                ));
            }
            Effect::Unsound(node, what) => out.push(RoundsEffect::Unsound(node, what)),
            Effect::MustRejoin => {
                out.push(RoundsEffect::MustRejoin);
                // The node that said so may be gone before it says where it stands.
                if let Some(cluster) = self.machine.newest_standing() {
                    out.push(RoundsEffect::Tell(membership::In::WentOn(cluster).into()));
                }
                out.push(RoundsEffect::Tell(membership::In::MustRejoin.into()));
            }
            Effect::Resigned(obeyed) => {
                if obeyed {
                    // The view that this node is admitted to may have the same number in another
                    // history.
                    self.epoch = Epoch(0);
                    out.push(RoundsEffect::Resigned);
                }
                out.push(RoundsEffect::Tell(membership::In::Resigned(obeyed).into()));
            }
            Effect::Stands(standing) => {
                out.push(RoundsEffect::Returned);
                out.push(RoundsEffect::Tell(membership::In::Decided(standing).into()));
            }
            Effect::Waiting(why) => out.push(RoundsEffect::Waiting(why)),
            Effect::Stragglers(list) => out.push(RoundsEffect::Stragglers(list)),
            Effect::Ordered(by, order) => out.push(RoundsEffect::Ordered(by, order)),
            Effect::CheckpointAsked(asked) => out.push(RoundsEffect::CheckpointAsked(asked)),
        }
    }

    fn open(
        &mut self,
        plan: Arc<Plan>,
        events: &mut VecDeque<In>,
        out: &mut Outbox<RoundsEffect<D>>,
    ) {
        self.parked.forget_below(plan.attempt);
        out.push(RoundsEffect::Open(Arc::clone(&plan)));
        if plan.contributes() && self.contribution.is_some() {
            out.push_all(
                plan.destinations()
                    .into_iter()
                    .map(|(to, ways)| RoundsEffect::Contribute(Arc::clone(&plan), to, ways)),
            );
        }
        self.attempts.push(Moving::new(plan));
        self.take_parked(events, out);
        self.sum(out);
    }

    fn publish(
        &mut self,
        publication: Arc<Publication>,
        events: &mut VecDeque<In>,
        out: &mut Outbox<RoundsEffect<D>>,
    ) {
        let Some(moving) = self.moving(publication.attempt) else {
            return;
        };
        moving.publish(Arc::clone(&publication));
        let plan = Arc::clone(&moving.plan);
        out.push(RoundsEffect::Publish(Arc::clone(&publication)));
        if publication.moves_anchor {
            for moved in publication.moves_from(plan.me) {
                let states = moved
                    .shards
                    .iter()
                    .map(|shard| (*shard, self.shards.state(*shard)))
                    .collect();
                let plan = Arc::clone(&plan);
                let publication = Arc::clone(&publication);
                out.push(RoundsEffect::SendState {
                    plan,
                    publication,
                    to: moved.to,
                    states,
                });
            }
        }
        if let Some(optimizer_transfer) = publication
            .optimizer_transfer
            .as_ref()
            .filter(|optimizer_transfer| optimizer_transfer.donor == plan.me)
        {
            let values = optimizer_transfer.values;
            out.push_all(
                optimizer_transfer
                    .joiners
                    .iter()
                    .map(|to| RoundsEffect::SendBuffers {
                        plan: Arc::clone(&plan),
                        to: *to,
                        values,
                    }),
            );
        }
        self.take_parked(events, out);
        self.reduce(out);
    }

    fn apply(
        &mut self,
        attempt: Attempt,
        outcome: Outcome,
        decision: Decision,
        out: &mut Outbox<RoundsEffect<D>>,
    ) {
        let Decision {
            began_in,
            votes,
            members,
            drained,
        } = decision;
        let decided = std::mem::take(&mut self.attempts)
            .into_iter()
            .find(|moving| moving.plan.attempt == attempt);
        let complete = decided.and_then(|moving| {
            let Moving {
                plan,
                publication,
                parts,
                states,
                donated,
                rest,
                ..
            } = moving;
            let values = D::assemble(parts, plan.layout.elements())?;
            Some((plan, publication?, values, states, donated, rest))
        });
        let Some((plan, publication, values, states, donated, rest)) = complete else {
            return out.push(RoundsEffect::Tell(
                ToAggregator::Failed(Failure::DataMissing(outcome.round)).into(),
            ));
        };
        self.shards
            .install(&plan, &publication, self.parameters, &values, states);
        let outcome = Arc::new(outcome);
        out.push(RoundsEffect::Applied(Box::new(Applied {
            plan,
            publication,
            outcome: Arc::clone(&outcome),
            members: Arc::clone(&members),
            began_in,
            votes,
            drained,
            values: values.clone(),
            contribution: self.contribution.take(),
            rest,
        })));
        self.tell_decided(&outcome, out);
        let decided = DecidedRound {
            outcome,
            members,
            values,
            donated,
            drained,
        };
        out.push(RoundsEffect::Tell(
            ToAggregator::Decided(Box::new(decided)).into(),
        ));
    }

    /// Tells the gossip peer and the membership the consequences of a decided round.
    fn tell_decided(&mut self, outcome: &Outcome, out: &mut Outbox<RoundsEffect<D>>) {
        let round = outcome.round.next();
        let view = outcome.view.clone();
        let lineage = outcome.lineage;
        let another = view.epoch() != self.epoch || outcome.order != self.order;
        if outcome.changed != self.changed {
            self.changed = outcome.changed;
            out.push(RoundsEffect::Tell(
                ToGossip::Settings(outcome.changed.values).into(),
            ));
        }
        if another || outcome.spec.kind == RoundKind::Bootstrap {
            self.epoch = view.epoch();
            self.order.clone_from(&outcome.order);
            out.push(RoundsEffect::Tell(
                ToGossip::View(view.clone(), lineage, round, outcome.order.clone()).into(),
            ));
        } else {
            out.push(RoundsEffect::Tell(ToGossip::Round(round).into()));
        }
        if outcome.retained != self.retained {
            self.retained.clone_from(&outcome.retained);
            out.push(RoundsEffect::Tell(
                membership::In::Retained(outcome.retained.clone()).into(),
            ));
        }
        out.push(RoundsEffect::Tell(
            membership::In::Decided(outcome.standing()).into(),
        ));
    }
}
