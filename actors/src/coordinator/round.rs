//! The data movements of the attempt under way: its tasks, and what they have brought so far.

use super::encoding::{Carried, Coding, Encoder, is_encoded};
use super::messages::{CoordinatorMessage, DataEvent};
use super::reduce::{self, OwnContribution, Reduction};
use super::shards::{OwnPart, ShardState, ShardStates};
use super::transfer::{self, StateCut};
use crate::buffers::{Assembled, Frozen};
use crate::context::NodeContext;
use crate::metrics::round_name;
use crate::ports::transport::BulkError;
use crate::streams::{Arrived, StreamInbox};
use ractor::ActorRef;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator::{Attempt, Donation, Plan, Publication};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::wire::{Bulk, Contribution};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tracing::{Instrument, Span};

/// Which of a round's streams: attempt, content, sender.
pub type StreamKey = (Attempt, StreamKind, NodeId);

/// The contents of a round's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKind {
    /// A frozen contribution.
    Contribution,
    /// Published parameters.
    Parameters,
    /// Anchor and momentum on their way to another holder.
    State,
    /// A member's buffers of the base optimizer.
    Buffers,
}

impl StreamKind {
    /// The kind of a stream's content; `None` if it is no round's.
    pub fn of(content: &Bulk) -> Option<Self> {
        match content {
            Bulk::Contribution(_) => Some(Self::Contribution),
            Bulk::Parameters | Bulk::Update(_) => Some(Self::Parameters),
            Bulk::State => Some(Self::State),
            Bulk::Buffers => Some(Self::Buffers),
            Bulk::Gossip { .. } => None,
        }
    }
}

/// What this node brought to a round; kept until the round is decided, for any number of attempts.
pub struct Contributed {
    /// Its push-sum weight.
    pub weight: f64,
    /// The values.
    pub frozen: Frozen,
    /// The base optimizer's buffers, for whoever joins and for a checkpoint.
    pub donation: Option<Frozen>,
    /// Who encodes it, once an encoded round is under way.
    pub encoder: Option<Arc<Encoder>>,
}

/// The attempt under way.
pub struct RoundInProgress {
    /// Its reduction.
    pub plan: Arc<Plan>,
    /// Who gets what it makes, once that is proposed.
    pub publication: watch::Sender<Option<Arc<Publication>>>,
    /// The new values that arrived or were made so far.
    pub values: Assembled,
    /// The new state of shards so far: received, or made here.
    pub states: BTreeMap<ShardId, ShardState>,
    /// What a member gave of the base optimizer's buffers.
    pub donated: Option<Assembled>,
    /// How its parameters travel between those that take part, if not as float32.
    pub coding: Option<Coding>,
    /// What this node then owes for its own shards.
    pub owed: Assembled,
    /// `Σw` of the contributors, if this node averages a shard.
    pub weight: Option<f64>,
    /// Open as long as the attempt, and what it still sends, is under way; each movement is a span in it.
    span: Span,
    /// Dropping the set ends every movement, which resets its streams.
    tasks: JoinSet<()>,
}

/// Starts an attempt's movements.
pub struct Starter<'a> {
    /// The node.
    pub context: &'a Arc<NodeContext>,
    /// Where its streams arrive.
    pub streams: &'a mut StreamInbox<StreamKey>,
    /// Whom to tell.
    pub actor: &'a ActorRef<CoordinatorMessage>,
    /// The decided state of the held shards.
    pub states: &'a ShardStates,
    /// What it carries from one encoded round to the next.
    pub carried: &'a Carried,
    /// How many of the round's values are parameters.
    pub parameters: usize,
    /// How many of the model's values are parameters.
    pub model_parameters: usize,
}

impl Starter<'_> {
    /// Starts the reduction of `plan` with this node's contribution, if it has one.
    pub fn start(mut self, plan: Arc<Plan>, contributed: Option<&mut Contributed>) -> RoundInProgress {
        let (mut tasks, span) = (JoinSet::new(), span_of(&plan));
        let publication = watch::Sender::new(None);
        let own = contributed.filter(|_| plan.contributes());
        match self.coding(&plan) {
            Ok(coding) => {
                let own = own.map(|own| own.encoded_as(coding.as_ref()));
                if let Some(own) = own {
                    self.contribute(&plan, own, &span, &mut tasks);
                }
                if plan.owns() {
                    self.reduce(&plan, own, coding.clone(), publication.subscribe(), (&span, &mut tasks));
                }
                self.receive(&plan, coding.as_ref(), &span, &mut tasks);
                RoundInProgress::new(plan, publication, coding, (span, tasks))
            }
            Err(event) => {
                self.spawn(&mut tasks, plan.attempt, span.clone(), async move { Some(event) });
                RoundInProgress::new(plan, publication, None, (span, tasks))
            }
        }
    }

    /// How the parameters travel between those that take part, of which a node that joins is none.
    fn coding(&self, plan: &Plan) -> Result<Option<Coding>, DataEvent> {
        let wire = self.context.settings.algorithm.round_wire;
        if !(is_encoded(plan.spec.kind, wire) && plan.participants.contains(&plan.me)) {
            return Ok(None);
        }
        let coding = self.carried.coding(wire, self.model_parameters, &self.context.pool);
        coding.map(Some).ok_or_else(|| {
            // Founding or joining gave it to every member; without it nothing that arrives means anything.
            tracing::error!(round = plan.attempt.round.0, "what the round before decided is missing");
            DataEvent::Broken(plan.me)
        })
    }

    /// Starts what the publication of the open attempt adds: state that moves to and from this node.
    pub fn publish(mut self, round: &mut RoundInProgress, publication: Arc<Publication>, contributed: Option<&Contributed>) {
        if let Some(donation) = &publication.donation {
            self.donate(round, donation, contributed);
        }
        let cut = StateCut { layout: publication.state_layout, parameters: self.model_parameters, anchor: publication.moves_anchor };
        let (plan, me) = (Arc::clone(&round.plan), round.plan.me);
        for moved in publication.moves_to(me) {
            let (from, shards) = (moved.from, moved.shards.clone());
            let (context, stream) = (Arc::clone(self.context), self.expect(&plan, StreamKind::State, from));
            let span = tracing::debug_span!(parent: &round.span, "receive_state", %from);
            self.spawn(&mut round.tasks, plan.attempt, span, async move {
                let received = transfer::receive_state(&context, stream, &shards, cut).await;
                Some(received.map_or_else(|error| broken(from, &error), |states| DataEvent::State(from, states)))
            });
        }
        // After a slow step the reduction sends the new momentum itself.
        for moved in publication.moves_from(me).filter(|_| publication.moves_anchor) {
            let states: Vec<_> = moved.shards.iter().map(|shard| (*shard, self.states.state(*shard))).collect();
            let (context, place, to) = (Arc::clone(self.context), plan.place, moved.to);
            let span = tracing::debug_span!(parent: &round.span, "send_state", %to);
            self.spawn(&mut round.tasks, plan.attempt, span, async move {
                transfer::send_state(&context, place, to, &states, cut).await.err().map(|error| broken(to, &error))
            });
        }
        round.publication.send_replace(Some(publication));
    }

    /// The base optimizer's buffers travel from the donor to those that join.
    fn donate(&mut self, round: &mut RoundInProgress, donation: &Donation, contributed: Option<&Contributed>) {
        let (plan, donor) = (Arc::clone(&round.plan), donation.donor);
        let whole = 0..usize::try_from(donation.values).unwrap_or(usize::MAX);
        if donation.joiners.contains(&plan.me) {
            let (context, stream, whole) = (Arc::clone(self.context), self.expect(&plan, StreamKind::Buffers, donor), whole.clone());
            let span = tracing::debug_span!(parent: &round.span, "receive_buffers", %donor);
            self.spawn(&mut round.tasks, plan.attempt, span, async move {
                let received = transfer::receive(&context, stream, std::slice::from_ref(&whole)).await;
                Some(received.map_or_else(|error| broken(donor, &error), |values| DataEvent::Buffers(donor, values)))
            });
        }
        if donor != plan.me {
            return;
        }
        let lent = contributed.and_then(|contributed| contributed.donation.clone()).filter(|lent| lent.values().len() == whole.len());
        for to in donation.joiners.iter().copied() {
            let (context, place, lent, whole) = (Arc::clone(self.context), plan.place, lent.clone(), whole.clone());
            let span = tracing::debug_span!(parent: &round.span, "send_buffers", %to);
            self.spawn(&mut round.tasks, plan.attempt, span, async move {
                let Some(lent) = lent else { return Some(DataEvent::Broken(to)) };
                let sent =
                    transfer::contribute(&context, place, to, Bulk::Buffers, std::slice::from_ref(&whole), |range| lent.bytes(range)).await;
                sent.err().map(|error| broken(to, &error))
            });
        }
    }

    fn expect(&mut self, plan: &Plan, kind: StreamKind, from: NodeId) -> oneshot::Receiver<Arrived> {
        self.streams.expect((plan.attempt, kind, from))
    }

    fn contribute(&self, plan: &Arc<Plan>, own: &Contributed, round: &Span, tasks: &mut JoinSet<()>) {
        for owner in plan.other_owners() {
            let shards = ranges(plan, owner);
            let wire = own.encoder.as_ref().map_or(WireType::Float32, |encoder| encoder.wire());
            let content = Bulk::Contribution(Contribution { spec: plan.spec, weight: own.weight, wire });
            let (context, frozen, encoder, place) = (Arc::clone(self.context), own.frozen.clone(), own.encoder.clone(), plan.place);
            let work = async move {
                match encoder {
                    Some(encoder) => transfer::contribute(&context, place, owner, content, &shards, |range| encoder.chunk(&range)).await,
                    None => transfer::contribute(&context, place, owner, content, &shards, |range| frozen.bytes(range)).await,
                }
            };
            let span = tracing::debug_span!(parent: round, "contribute", to = %owner);
            self.spawn(tasks, plan.attempt, span, async move { work.await.err().map(|error| broken(owner, &error)) });
        }
    }

    fn reduce(
        &mut self,
        plan: &Arc<Plan>,
        own: Option<&Contributed>,
        coding: Option<Coding>,
        publication: watch::Receiver<Option<Arc<Publication>>>,
        (round, tasks): (&Span, &mut JoinSet<()>),
    ) {
        let others = plan.contributors.iter().copied().filter(|node| *node != plan.me);
        let expected = others.map(|node| (node, self.expect(plan, StreamKind::Contribution, node))).collect();
        let own = own.map(|own| OwnContribution { weight: own.weight, frozen: own.frozen.clone(), encoder: own.encoder.clone() });
        let reduction = Reduction {
            context: Arc::clone(self.context),
            plan: Arc::clone(plan),
            publication,
            parameters: if coding.is_some() { self.model_parameters } else { self.parameters },
            coding,
            own,
            expected,
            states: plan.owned_by(plan.me).into_iter().map(|shard| (shard, self.states.state(shard))).collect(),
        };
        let span = tracing::debug_span!(parent: round, "reduce");
        self.spawn(
            tasks,
            plan.attempt,
            span,
            async move { Some(reduce::run(reduction).await.map_or_else(|event| event, DataEvent::Reduced)) },
        );
    }

    fn receive(&mut self, plan: &Arc<Plan>, coding: Option<&Coding>, round: &Span, tasks: &mut JoinSet<()>) {
        for owner in plan.other_owners() {
            let (ranges, coding) = (ranges(plan, owner), coding.cloned());
            let (context, stream) = (Arc::clone(self.context), self.expect(plan, StreamKind::Parameters, owner));
            let span = tracing::debug_span!(parent: round, "receive", from = %owner);
            self.spawn(tasks, plan.attempt, span, async move {
                let received = transfer::receive_parameters(&context, stream, &ranges, coding.as_ref()).await;
                Some(received.map_or_else(|error| broken(owner, &error), |values| DataEvent::Parameters(owner, values)))
            });
        }
    }

    /// Runs one movement; what it reports goes to the coordinator with the attempt it belongs to.
    fn spawn(&self, tasks: &mut JoinSet<()>, attempt: Attempt, span: Span, work: impl Future<Output = Option<DataEvent>> + Send + 'static) {
        let actor = self.actor.clone();
        let told = async move {
            if let Some(event) = work.await {
                // A stopped coordinator needs no event.
                _ = actor.cast(CoordinatorMessage::Data(attempt, event));
            }
        };
        tasks.spawn(told.instrument(span));
    }
}

/// The span of an attempt, for who traces: its movements are spans in it.
fn span_of(plan: &Plan) -> Span {
    let (round, term, kind) = (plan.attempt.round.0, plan.attempt.term.counter, round_name(plan.spec.kind));
    tracing::info_span!("round", round, term, kind, step = plan.spec.step.0)
}

/// The elements of the shards that `owner` averages.
fn ranges(plan: &Plan, owner: NodeId) -> Vec<Range<usize>> {
    plan.owned_by(owner).into_iter().map(|shard| plan.layout.range(shard)).collect()
}

impl Contributed {
    /// With its encoder for a round that travels as `coding`: the one it has, unless what it encodes differences from changed.
    fn encoded_as(&mut self, coding: Option<&Coding>) -> &Self {
        let known = self.encoder.take().filter(|encoder| coding.is_some_and(|coding| encoder.is_of(coding)));
        let fresh = || coding.map(|coding| Arc::new(Encoder::new(coding.clone(), self.weight, self.frozen.clone())));
        self.encoder = known.or_else(fresh);
        self
    }
}

impl RoundInProgress {
    fn new(
        plan: Arc<Plan>,
        publication: watch::Sender<Option<Arc<Publication>>>,
        coding: Option<Coding>,
        (span, tasks): (Span, JoinSet<()>),
    ) -> Self {
        let (values, owed, states) = (Assembled::default(), Assembled::default(), BTreeMap::new());
        Self { plan, publication, values, states, donated: None, coding, owed, weight: None, span, tasks }
    }

    /// Takes over what the reduction made.
    pub fn take_own(&mut self, part: OwnPart) {
        self.weight = Some(part.weight);
        self.values.extend(part.values);
        self.owed.extend(part.owed);
        let made = part.momentum.into_iter().map(|(shard, momentum)| (shard, ShardState { momentum, ..ShardState::default() }));
        self.states.extend(made);
    }

    /// Ends the movements that are still under way and hands out what they brought. Sending that is still going on belongs
    /// to others' progress and runs on.
    pub fn finish(mut self) -> Finished {
        self.tasks.detach_all();
        let publication = self.publication.borrow().clone();
        let Self { plan, values, states, donated, coding, owed, weight, .. } = self;
        Finished { plan, publication, values, states, donated, coding, owed, weight }
    }
}

/// What a decided attempt brought.
pub struct Finished {
    /// Its reduction.
    pub plan: Arc<Plan>,
    /// Who got what it made.
    pub publication: Option<Arc<Publication>>,
    /// The new values.
    pub values: Assembled,
    /// The new state of shards: received, or made here.
    pub states: BTreeMap<ShardId, ShardState>,
    /// What a member gave of the base optimizer's buffers.
    pub donated: Option<Assembled>,
    /// How its parameters travelled between those that took part, if not as float32.
    pub coding: Option<Coding>,
    /// What this node then owes for its own shards.
    pub owed: Assembled,
    /// `Σw` of the contributors, if this node averaged a shard.
    pub weight: Option<f64>,
}

fn broken(node: NodeId, error: &BulkError) -> DataEvent {
    tracing::info!(%node, %error, "a round's stream broke");
    DataEvent::Broken(node)
}
