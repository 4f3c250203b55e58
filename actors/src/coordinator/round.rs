//! The data movements of the round under way: its tasks, and what they have brought so far.

use super::messages::{CoordinatorMessage, DataEvent};
use super::reduce::{self, Reduction};
use super::shards::{OwnPart, ShardStates};
use super::transfer;
use crate::buffers::{Assembled, Frozen};
use crate::context::NodeContext;
use crate::ports::transport::BulkError;
use crate::streams::{Arrived, StreamInbox};
use ractor::ActorRef;
use slowmo_protocol::coordinator::{Attempt, Plan};
use slowmo_protocol::ident::{Ballot, NodeId, Round, ShardId};
use slowmo_protocol::machine::Place;
use slowmo_protocol::wire::{Bulk, Contribution};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Which of a round's streams: round, ballot, content, sender.
pub type StreamKey = (Round, Ballot, StreamKind, NodeId);

/// The contents of a round's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKind {
    /// A frozen contribution.
    Contribution,
    /// Published parameters.
    Parameters,
    /// Published momentum.
    Momentum,
}

impl StreamKind {
    /// The kind of a stream's content; `None` if it is no round's.
    pub fn of(content: &Bulk) -> Option<Self> {
        match content {
            Bulk::Contribution(_) => Some(Self::Contribution),
            Bulk::Parameters => Some(Self::Parameters),
            Bulk::Momentum => Some(Self::Momentum),
            Bulk::Gossip { .. } => None,
        }
    }
}

/// What this node brought to a round.
pub struct Contributed {
    /// Its push-sum weight.
    pub weight: f64,
    /// How many of the values are parameters.
    pub parameters: usize,
    /// The values.
    pub frozen: Frozen,
}

/// The round under way.
pub struct RoundInProgress {
    /// Its movements.
    pub plan: Arc<Plan>,
    /// How many of the values are parameters.
    pub parameters: usize,
    /// The new values that arrived or were made so far.
    pub values: Assembled,
    /// The new momentum of the held shards so far.
    pub momentum: Vec<(ShardId, Assembled)>,
    /// Dropping the set ends every movement, which resets its streams.
    tasks: JoinSet<()>,
}

/// Starts a round's movements.
pub struct Starter<'a> {
    /// The node.
    pub context: &'a Arc<NodeContext>,
    /// Where its streams arrive.
    pub streams: &'a mut StreamInbox<StreamKey>,
    /// Whom to tell.
    pub actor: &'a ActorRef<CoordinatorMessage>,
    /// The place of its streams.
    pub place: Place,
    /// The decided state of the held shards.
    pub states: &'a ShardStates,
}

impl Starter<'_> {
    /// Starts every movement of `plan` with this node's contribution.
    pub fn start(mut self, plan: Arc<Plan>, contributed: &Contributed) -> RoundInProgress {
        let mut tasks = JoinSet::new();
        if plan.contributes() {
            self.contribute(&plan, contributed, &mut tasks);
        }
        if plan.owns() {
            self.reduce(&plan, contributed, &mut tasks);
        }
        self.receive(&plan, contributed.parameters, &mut tasks);
        let parameters = contributed.parameters;
        RoundInProgress { plan, parameters, values: Assembled::default(), momentum: Vec::new(), tasks }
    }

    fn expect(&mut self, plan: &Plan, kind: StreamKind, from: NodeId) -> oneshot::Receiver<Arrived> {
        self.streams.expect((plan.round, plan.ballot, kind, from))
    }

    fn contribute(&self, plan: &Arc<Plan>, contributed: &Contributed, tasks: &mut JoinSet<()>) {
        for owner in plan.other_owners() {
            let shards: Vec<Range<usize>> = plan.map.owned_by(owner).map(|shard| plan.layout.range(shard)).collect();
            let content = Bulk::Contribution(Contribution { terms: plan.terms, weight: contributed.weight });
            let (context, frozen, place) = (Arc::clone(self.context), contributed.frozen.clone(), self.place);
            let work = async move { transfer::contribute(&context, place, owner, content, &shards, &frozen).await };
            self.spawn(tasks, plan.attempt(), async move { work.await.err().map(|error| broken(owner, &error)) });
        }
    }

    fn reduce(&mut self, plan: &Arc<Plan>, contributed: &Contributed, tasks: &mut JoinSet<()>) {
        let others = plan.contributors.iter().copied().filter(|node| *node != plan.me);
        let expected = others.map(|node| (node, self.expect(plan, StreamKind::Contribution, node))).collect();
        let reduction = Reduction {
            context: Arc::clone(self.context),
            plan: Arc::clone(plan),
            place: self.place,
            parameters: contributed.parameters,
            own: plan.contributes().then(|| (contributed.weight, contributed.frozen.clone())),
            expected,
            states: plan.own_shards().into_iter().map(|shard| (shard, self.states.state(shard))).collect(),
        };
        self.spawn(tasks, plan.attempt(), async move { Some(reduce::run(reduction).await.map_or_else(|event| event, DataEvent::Reduced)) });
    }

    fn receive(&mut self, plan: &Arc<Plan>, parameters: usize, tasks: &mut JoinSet<()>) {
        for owner in plan.other_owners() {
            let ranges: Vec<Range<usize>> = plan.map.owned_by(owner).map(|shard| plan.layout.range(shard)).collect();
            let (context, stream) = (Arc::clone(self.context), self.expect(plan, StreamKind::Parameters, owner));
            self.spawn(tasks, plan.attempt(), async move {
                let received = transfer::receive(&context, stream, &ranges).await;
                Some(received.map_or_else(|error| broken(owner, &error), |values| DataEvent::Parameters(owner, values)))
            });
        }
        for (owner, shards) in plan.momentum_from() {
            let (context, stream) = (Arc::clone(self.context), self.expect(plan, StreamKind::Momentum, owner));
            let layout = plan.layout;
            self.spawn(tasks, plan.attempt(), async move {
                let received = transfer::receive_momentum(&context, stream, &shards, layout, parameters).await;
                Some(received.map_or_else(|error| broken(owner, &error), |momentum| DataEvent::Momentum(owner, momentum)))
            });
        }
    }

    /// Runs one movement; what it reports goes to the coordinator with the attempt it belongs to.
    fn spawn(&self, tasks: &mut JoinSet<()>, attempt: Attempt, work: impl Future<Output = Option<DataEvent>> + Send + 'static) {
        let actor = self.actor.clone();
        tasks.spawn(async move {
            if let Some(event) = work.await {
                // A stopped coordinator needs no event.
                _ = actor.cast(CoordinatorMessage::Data(attempt, event));
            }
        });
    }
}

impl RoundInProgress {
    /// Takes over what the reduction made.
    pub fn take_own(&mut self, part: OwnPart) {
        self.values.extend(part.values);
        self.momentum.extend(part.momentum);
    }

    /// Ends the movements that are still under way and hands out what they brought. Sending that is still going on belongs
    /// to others' progress and runs on.
    pub fn finish(mut self) -> (Arc<Plan>, Assembled, Vec<(ShardId, Assembled)>) {
        self.tasks.detach_all();
        (self.plan, self.values, self.momentum)
    }
}

fn broken(node: NodeId, error: &BulkError) -> DataEvent {
    tracing::warn!(%node, %error, "a round's stream broke");
    DataEvent::Broken(node)
}
