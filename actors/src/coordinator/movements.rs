//! The data movements of one attempt: tasks that send, receive and average, and report to the
//! coordinator.

use super::group_sum::{self, Owed, SumStreams};
use super::opening::open;
use super::outlets::Outlets;
use super::reduce::{self, OwnContribution, Work};
use super::transfer::{self, Broken, Owner, StateCut};
use crate::buffers::Frozen;
use crate::context::NodeContext;
use crate::data::{Arrived, Buffers, Coding, Encoder, FrozenContribution, ShardState};
use crate::messages::{CoordinatorMessage, Told};
use crate::metrics::round_name;
use crate::ports::transport::BulkError;
use futures_util::future::try_join_all;
use ractor::ActorRef;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator::{Attempt, Plan, Publication, Voter, Way};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::node::{GroupSum, Moved, Reduction, ToRounds};
use slowmo_protocol::view::View;
use slowmo_protocol::wire::{Bulk, ContributionHeader};
use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::{Instrument, Span};

/// Time for which a relay's streams stay open after what it sends on broke: longer than its report
/// takes until the leader begins another attempt, which ends them.
const HOLD: Duration = Duration::from_secs(2);

/// The data movements of one attempt that are in progress.
pub struct Movements {
    context: Arc<NodeContext>,
    actor: ActorRef<CoordinatorMessage>,
    plan: Arc<Plan>,
    /// Encoding of the parameters between participants; `None` for float32.
    pub coding: Option<Coding>,
    /// This node's residual for the shards whose sums it sends as a relay.
    pub owed: Arc<Owed>,
    /// How many of the model's values are parameters.
    model_parameters: usize,
    /// The view of the round, which names the owners' keys.
    view: Option<View>,
    /// Tracing span, open as long as the attempt, or a stream that it still sends, is in progress;
    /// each movement is a span in it.
    span: Span,
    /// Dropping the set aborts every movement, which resets its streams.
    tasks: JoinSet<()>,
}

impl Movements {
    /// Starts the movements of an attempt.
    pub fn new(
        context: Arc<NodeContext>,
        actor: ActorRef<CoordinatorMessage>,
        plan: Arc<Plan>,
        coding: Option<Coding>,
        model_parameters: usize,
        view: Option<View>,
    ) -> Self {
        let round = plan.attempt.round.0;
        let term = plan.attempt.term.counter;
        let kind = round_name(plan.spec.kind);
        let span = tracing::info_span!("round", round, term, kind, step = plan.spec.step.0);
        Self {
            context,
            actor,
            plan,
            coding,
            owed: Arc::default(),
            model_parameters,
            view,
            span,
            tasks: JoinSet::new(),
        }
    }

    /// Streams the contribution to an owner, to the relay of this node's group, or to a node that
    /// is both. All streams begin before any value is sent.
    pub fn contribute(&mut self, own: &FrozenContribution, to: NodeId, ways: BTreeSet<Way>) {
        let encoder = own.encoder.clone();
        let wire = encoder
            .as_ref()
            .map_or(WireType::Float32, |encoder| encoder.wire());
        let header = ContributionHeader {
            spec: self.plan.spec,
            weight: own.weight,
            wire,
        };
        let streams = ways.into_iter().map(|way| {
            let content = match way {
                Way::Owner => Bulk::Contribution(header),
                Way::Relay => Bulk::Relayed(header),
            };
            (content, ranges(&self.plan, self.plan.sent_to(to, way)))
        });
        let streams: Vec<_> = streams.collect();
        let context = Arc::clone(&self.context);
        let frozen = own.frozen.clone();
        let place = self.plan.place;
        let work = async move {
            let chunk = |range: Range<usize>| match &encoder {
                Some(encoder) => encoder.chunk(&range),
                None => frozen.bytes(range),
            };
            let mut opened = Vec::new();
            for (content, shards) in streams {
                opened.push((open(&context, place, to, content).await?, shards));
            }
            let sent = opened
                .into_iter()
                .map(|(stream, shards)| transfer::send(stream, shards, chunk));
            try_join_all(sent).await.map(drop)
        };
        let span = tracing::debug_span!(parent: &self.span, "contribute", %to);
        self.spawn(span, async move {
            work.await.err().map(|error| broken(to, &error))
        });
    }

    /// Sums up the contributions of this node's group for the owners of other groups.
    pub fn sum(&mut self, sum: GroupSum<Buffers>, own: Option<&FrozenContribution>) {
        let own = own.map(OwnContribution::of);
        let context = Arc::clone(&self.context);
        let coding = self.coding.clone();
        let owed = Arc::clone(&self.owed);
        let span = tracing::debug_span!(parent: &self.span, "sum");
        let reporter = self.reporter();
        self.spawn(span, async move {
            let mut streams = SumStreams::new();
            let summed =
                group_sum::sum(&context, sum, coding.as_ref(), own, &mut streams, &owed).await;
            if let Err(broken) = summed {
                reporter.report(broken.into());
                hold(streams).await;
            }
            None
        });
    }

    /// Streams the base optimizer's buffers to a joining node.
    pub fn send_buffers(&mut self, lent: Option<Frozen>, to: NodeId, values: u64) {
        let whole = 0..usize::try_from(values).unwrap_or(usize::MAX);
        let lent = lent.filter(|lent| lent.values().len() == whole.len());
        let context = Arc::clone(&self.context);
        let place = self.plan.place;
        let span = tracing::debug_span!(parent: &self.span, "send_buffers", %to);
        self.spawn(span, async move {
            let Some(lent) = lent else {
                return Some(Moved::Broken(to));
            };
            let sent = match open(&context, place, to, Bulk::Buffers).await {
                Ok(stream) => transfer::send(stream, vec![whole], |range| lent.bytes(range)).await,
                Err(error) => Err(error),
            };
            sent.err().map(|error| broken(to, &error))
        });
    }

    /// Streams the state of shards to a new holder of them.
    pub fn send_state(
        &mut self,
        publication: &Publication,
        to: NodeId,
        states: Vec<(ShardId, ShardState)>,
    ) {
        let context = Arc::clone(&self.context);
        let place = self.plan.place;
        let cut = self.cut(publication);
        let span = tracing::debug_span!(parent: &self.span, "send_state", %to);
        self.spawn(span, async move {
            transfer::send_state(&context, place, to, &states, cut)
                .await
                .err()
                .map(|error| broken(to, &error))
        });
    }

    fn cut(&self, publication: &Publication) -> StateCut {
        StateCut {
            layout: publication.state_layout,
            parameters: self.model_parameters,
            anchor: publication.moves_anchor,
        }
    }

    /// Averages this node's own shards. `parameters` is the number of parameters in the
    /// contribution.
    pub fn reduce(
        &mut self,
        reduction: Reduction<Buffers>,
        own: Option<&FrozenContribution>,
        parameters: usize,
    ) {
        let own = own.map(OwnContribution::of);
        let parameters = if self.coding.is_some() {
            self.model_parameters
        } else {
            parameters
        };
        let work = Work {
            context: Arc::clone(&self.context),
            reduction,
            parameters,
            coding: self.coding.clone(),
            own,
        };
        let span = tracing::debug_span!(parent: &self.span, "reduce");
        self.spawn(span, async move {
            Some(match reduce::run(work).await {
                Ok(reduced) => Moved::Reduced(reduced),
                Err(broken) => broken.into(),
            })
        });
    }

    /// Reads a stream of parameters, state or buffers.
    pub fn read(&mut self, publication: Option<&Publication>, arrived: Arrived) {
        let from = arrived.header.sender;
        let context = Arc::clone(&self.context);
        match (&arrived.content, publication) {
            (Bulk::State, Some(publication)) => {
                let shards = publication
                    .moves_to(self.plan.me)
                    .filter(|moved| moved.from == from);
                let shards: Vec<ShardId> = shards
                    .flat_map(|moved| moved.shards.iter().copied())
                    .collect();
                let cut = self.cut(publication);
                let span = tracing::debug_span!(parent: &self.span, "receive_state", %from);
                self.spawn(span, async move {
                    let received = transfer::receive_state(&context, arrived, &shards, cut).await;
                    Some(received.map_or_else(
                        |error| Broken::reading(from, &error).into(),
                        |states| Moved::State(from, states),
                    ))
                });
            }
            (Bulk::Buffers, Some(publication)) => {
                let values = publication
                    .optimizer_transfer
                    .as_ref()
                    .map_or(0, |optimizer_transfer| optimizer_transfer.values);
                let whole = 0..usize::try_from(values).unwrap_or(usize::MAX);
                let span = tracing::debug_span!(parent: &self.span, "receive_buffers", %from);
                self.spawn(span, async move {
                    let received =
                        transfer::receive(&context, arrived, std::slice::from_ref(&whole)).await;
                    Some(received.map_or_else(
                        |error| Broken::reading(from, &error).into(),
                        |values| Moved::Buffers(from, values),
                    ))
                });
            }
            _ => {
                let of = match arrived.content {
                    Bulk::Forwarded { owner, .. } => owner,
                    _ => from,
                };
                let ranges = ranges(&self.plan, self.plan.owned_by(of));
                let coding = self.coding.clone();
                let most = self.plan.spec.carries_parameters().then_some(f32::MAX);
                let member = self.view.as_ref().and_then(|view| view.member(of));
                let reporter = self.reporter();
                let passed_on = Outlets::passing_on(&context, &self.plan, of, coding.as_ref());
                let owner = member.map(|member| Owner {
                    attempt: self.plan.attempt,
                    start: Voter::from(member),
                    key: member.key,
                });
                let span = tracing::debug_span!(parent: &self.span, "receive", %from);
                self.spawn(span, async move {
                    let received = transfer::receive_parameters(
                        &context,
                        arrived,
                        &ranges,
                        (coding.as_ref(), most),
                        owner,
                        &passed_on,
                    )
                    .await;
                    match received {
                        Ok((values, signed)) => Some(Moved::Parameters(of, values, signed)),
                        Err(error) => {
                            reporter.report(Broken::reading(from, &error).into());
                            if !passed_on.is_empty() {
                                hold(passed_on).await;
                            }
                            None
                        }
                    }
                });
            }
        }
    }

    /// Called when the round is decided: streams that are still being sent are needed by other
    /// nodes and continue.
    pub fn finish(mut self) {
        self.tasks.detach_all();
    }

    fn reporter(&self) -> Reporter {
        Reporter {
            actor: self.actor.clone(),
            attempt: self.plan.attempt,
        }
    }

    /// Spawns one movement; its result goes to the coordinator with the attempt to which it
    /// belongs.
    fn spawn(
        &mut self,
        span: Span,
        work: impl Future<Output = Option<Moved<Buffers>>> + Send + 'static,
    ) {
        let reporter = self.reporter();
        let told = async move {
            if let Some(moved) = work.await {
                reporter.report(moved);
            }
        };
        self.tasks.spawn(told.instrument(span));
    }
}

/// Reports to the coordinator for one attempt.
struct Reporter {
    actor: ActorRef<CoordinatorMessage>,
    attempt: Attempt,
}

impl Reporter {
    fn report(&self, moved: Moved<Buffers>) {
        // A stopped coordinator needs no event.
        _ = self.actor.cast(CoordinatorMessage::Told(Told {
            message: ToRounds::Moved(self.attempt, moved),
            credit: None,
        }));
    }
}

/// Keeps the streams of a relay open after the input of one broke. Otherwise their receivers would
/// report this node as broken at the same moment as it reports the sender of that input.
async fn hold<T>(streams: T) {
    tokio::time::sleep(HOLD).await;
    drop(streams);
}

/// The element ranges of shards.
fn ranges(plan: &Plan, shards: Vec<ShardId>) -> Vec<Range<usize>> {
    shards
        .into_iter()
        .map(|shard| plan.layout.range(shard))
        .collect()
}

impl FrozenContribution {
    /// Sets the encoder for a round that travels as `coding`. Keeps the current encoder unless the
    /// reference has changed.
    pub fn encode_as(&mut self, coding: Option<&Coding>) {
        let known = self
            .encoder
            .take()
            .filter(|encoder| coding.is_some_and(|coding| encoder.is_of(coding)));
        let fresh = || {
            coding.map(|coding| {
                Arc::new(Encoder::new(
                    coding.clone(),
                    self.weight,
                    self.frozen.clone(),
                ))
            })
        };
        self.encoder = known.or_else(fresh);
    }
}

fn broken(node: NodeId, error: &BulkError) -> Moved<Buffers> {
    tracing::info!(%node, %error, "a round's stream broke");
    Moved::Broken(node)
}
