//! The coordinator actor: one per node. Handles outer rounds, exact averages, shard ownership, slow
//! momentum, and changes of the view. The part [`RoundsPart`] decides; this folder moves the data.
//!
//! A contribution is `parameters ++ model buffers ++ optimizer buffers`; the slow step changes the
//! parameters only. What an attempt makes is kept under that attempt and dropped with it: the
//! decided anchor and momentum stay unchanged until an outcome is applied. The anchor is no copy,
//! but the published chunks themselves.
//!
//! For a model of `M` bytes and `W` nodes a round sends about `2·M·(W − 1)/W` bytes per node (a
//! half or a quarter of that if it is encoded), and `M·R/W` for the momentum of `R` replicas. A
//! node holds `M·(1 + R)/W` bytes of anchors and as many of momentum.

mod disagreement;
mod group_sum;
mod keeping;
mod movements;
mod opening;
mod outlets;
mod recording;
mod reduce;
mod shards;
mod signing;
#[cfg(test)]
mod tests;
mod transfer;

pub use keeping::AppliedRound;
pub use opening::CONNECT_WAIT_MAX;
pub use outlets::PUBLISH_WINDOW_CHUNKS;

use crate::buffers::ChunkedBuffer;
use crate::context::{MAILBOX_CREDITS_MAX, NodeContext};
use crate::data::{Buffers, Coding, ErrorFeedback, FrozenContribution, is_encoded};
use crate::messages::{CoordinatorMessage, Inspection, Told};
use crate::ports::recorder::QueueUse;
use crate::status::{Awaited, MemberState};
use crate::timer::Timer;
use disagreement::disagreement;
use movements::Movements;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use signing::Verdict;
use slowmo_protocol::algorithm::{Base, WireType};
use slowmo_protocol::checkpoint::Points;
use slowmo_protocol::coordinator::{
    ASK_AGAIN_EVERY, Attempt, In, MemberOrder, Plan, RoundKind, Settings, VOTES_WAIT, capped_grace,
};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::machine::Outbox;
use slowmo_protocol::node::{
    Applied, ContributionMail, PARKED_MAX, RoundsEffect, RoundsPart, ToRounds,
};
use slowmo_protocol::policy::JoinerBuffers;
use slowmo_protocol::sound::Unsound;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::Event;
use slowmo_protocol::wire::{Frame, Header, Message};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A round that waits as long for a contribution leaves a warning.
const LONG_WAIT: Span = Span::from_millis(5_000);

/// Actor shell of the coordinator.
pub struct CoordinatorActor;

/// The coordinator's part of the node, and the data movements of its attempts.
pub struct CoordinatorState {
    part: RoundsPart<Buffers>,
    context: Arc<NodeContext>,
    myself: ActorRef<CoordinatorMessage>,
    timer: Timer,
    movements: BTreeMap<Attempt, Movements>,
    carried: ErrorFeedback,
    /// Number of parameters in the last contribution; a mean of gradients has its own count.
    parameters: usize,
    /// Time since which this node's contribution is ready.
    contributed_at: Option<Instant>,
    /// Time since which the current attempt publishes.
    publishes_since: Instant,
    /// For whose contribution the round waits, if this node leads it.
    awaited: Option<Awaited>,
}

impl Actor for CoordinatorActor {
    type Msg = CoordinatorMessage;
    type State = CoordinatorState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        context: Arc<NodeContext>,
    ) -> Result<CoordinatorState, ActorProcessingErr> {
        Ok(CoordinatorState {
            part: RoundsPart::new(settings(&context)),
            context,
            myself,
            timer: Timer::default(),
            movements: BTreeMap::new(),
            carried: ErrorFeedback::default(),
            parameters: 0,
            contributed_at: None,
            publishes_since: Instant(0),
            awaited: None,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: CoordinatorMessage,
        state: &mut CoordinatorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            CoordinatorMessage::Told(Told {
                message,
                credit: _credit,
            }) => state.take(message),
            // The requester may have gone.
            CoordinatorMessage::Inspect(reply) => _ = reply.send(state.inspect()),
            CoordinatorMessage::Recover(order, reply) => {
                let answer = state.part.machine().recovery();
                if let Some(lineage) = order {
                    state.take(ToRounds::In(In::Recover(lineage)));
                }
                _ = reply.send(answer);
            }
        }
        Ok(())
    }
}

impl CoordinatorState {
    fn take(&mut self, message: ToRounds<Buffers>) {
        match &message {
            ToRounds::Contribute(contribute) => self.note_contribution(contribute),
            ToRounds::In(In::Tick) => self.timer.disarm(),
            ToRounds::In(In::Frame { header, message }) if !self.is_signed(header, message) => {
                return;
            }
            _ => {}
        }
        let mut out = Outbox::default();
        self.part
            .handle(message, self.context.clock.now(), &mut out);
        for effect in out.take() {
            self.execute(effect);
        }
        self.tell_awaited();
        let tick = || {
            CoordinatorMessage::Told(Told {
                message: ToRounds::In(In::Tick),
                credit: None,
            })
        };
        self.timer.arm(
            self.part.next_deadline(),
            self.context.clock.now(),
            &self.myself,
            tick,
        );
    }

    /// Tells the status for whose contribution the round waits, when that changes.
    fn tell_awaited(&mut self) {
        let machine = self.part.machine();
        let nodes = machine.awaited();
        let awaited = if nodes.is_empty() {
            None
        } else {
            let round = machine.place().round;
            let before = self.awaited.as_ref();
            let since = before
                .filter(|before| before.round == round)
                .map_or_else(|| self.context.clock.now(), |before| before.since);
            Some(Awaited {
                round,
                nodes,
                since,
                grace: machine.grace(),
            })
        };
        if awaited == self.awaited {
            return;
        }
        self.context.status.awaits(awaited.clone());
        let before = std::mem::replace(&mut self.awaited, awaited);
        if let Some(before) = before {
            self.tell_long_wait(&before);
        }
    }

    /// Tells that training stood still, once the round no longer waits as it did.
    fn tell_long_wait(&self, before: &Awaited) {
        let goes_on = |now: &Awaited| now.round == before.round;
        let waited = self.context.clock.now().since(before.since);
        if waited < LONG_WAIT || self.awaited.as_ref().is_some_and(goes_on) {
            return;
        }
        let Awaited { round, nodes, .. } = before;
        let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
        let what = format!(
            "round {} waited {} s for the contribution of {}",
            round.0,
            waited.as_millis() / 1_000,
            nodes.join(", ")
        );
        tracing::warn!("{what}");
        self.context.status.event(what);
    }

    /// Whether the signatures that a frame carries are sound. Names a sender of false ones, and
    /// goes on without it.
    fn is_signed(&self, header: &Header, message: &Message) -> bool {
        let verdict = signing::check(&self.context, self.part.machine(), header, message);
        if verdict == Verdict::False {
            self.context.accuse(header.sender, &Unsound::Signature);
            self.context.actors.tell(In::Distrust(header.sender));
        }
        verdict == Verdict::Sound
    }

    fn note_contribution(&mut self, contribute: &ContributionMail<Buffers>) {
        let ContributionMail {
            round,
            contribution,
            ..
        } = contribute;
        self.parameters = contribution.parameters;
        self.contributed_at = Some(self.context.clock.now());
        if self.context.recorder.is_on() {
            let place = (self.part.machine().began_in(), *round);
            let event = recording::contributed(
                self.context.start(),
                place,
                contribution.weight,
                &contribution.basis,
            );
            self.context.recorder.record(event);
        }
    }

    fn inspect(&self) -> Inspection {
        let machine = self.part.machine();
        let layout = machine.state_layout();
        Inspection {
            outcome: machine.last_outcome().cloned(),
            states: layout
                .map(|layout| shards::copies(self.part.shards(), &layout, self.part.parameters()))
                .unwrap_or_default(),
            joiners: machine.joiners().collect(),
            leaving: machine.leaving().collect(),
        }
    }

    fn execute(&mut self, effect: RoundsEffect<Buffers>) {
        match effect {
            RoundsEffect::Send { to, frame } => self.send(to, frame),
            RoundsEffect::Tell(mail) => self.context.actors.tell(mail),
            RoundsEffect::Open(plan) => self.open(plan),
            RoundsEffect::Contribute(plan, to, ways) => {
                if let (Some(movements), Some(own)) = (
                    self.movements.get_mut(&plan.attempt),
                    self.part.contribution(),
                ) {
                    movements.contribute(own, to, ways);
                }
            }
            RoundsEffect::Sum(sum) => {
                let own = self.part.contribution().map(|own| &*own);
                if let Some(movements) = self.movements.get_mut(&sum.plan.attempt) {
                    movements.sum(*sum, own);
                }
            }
            RoundsEffect::Publish(_) => self.publishes_since = self.context.clock.now(),
            RoundsEffect::SendState {
                plan,
                publication,
                to,
                states,
            } => {
                if let Some(movements) = self.movements.get_mut(&plan.attempt) {
                    movements.send_state(&publication, to, states);
                }
            }
            RoundsEffect::SendBuffers { plan, to, values } => {
                let lent = self
                    .part
                    .contribution()
                    .and_then(|own| own.optimizer_transfer.clone());
                if let Some(movements) = self.movements.get_mut(&plan.attempt) {
                    movements.send_buffers(lent, to, values);
                }
            }
            RoundsEffect::Reduce(reduction) => {
                let contributes = reduction.plan.contributes();
                if let Some(movements) = self.movements.get_mut(&reduction.plan.attempt) {
                    let own = self.part.contribution().map(|own| &*own);
                    movements.reduce(
                        *reduction,
                        if contributes { own } else { None },
                        self.parameters,
                    );
                }
            }
            RoundsEffect::Read {
                plan,
                publication,
                stream,
            } => {
                if let Some(movements) = self.movements.get_mut(&plan.attempt) {
                    movements.read(publication.as_deref(), stream);
                }
            }
            // The attempt's streams end with it.
            RoundsEffect::Discard(attempt) => _ = self.movements.remove(&attempt),
            RoundsEffect::Applied(applied) => self.applied(&applied),
            RoundsEffect::Resigned => {
                if self.context.recorder.is_on() {
                    self.context
                        .recorder
                        .record(Event::Resigned(self.context.start()));
                }
            }
            RoundsEffect::Returned => {
                tracing::warn!(
                    "nobody is left of the history that was to admit this node: it continues its \
                     previous history"
                );
                self.context.status.standing(MemberState::Member);
            }
            RoundsEffect::MustRejoin => tracing::warn!(
                "this node does not hold the data of a decided round: it must rejoin"
            ),
            RoundsEffect::Waiting(why) => {
                match &why {
                    Some(why) => tracing::warn!(why, "no round can be decided"),
                    None => tracing::info!("rounds can be decided again"),
                }
                self.context.status.waiting(why);
            }
            RoundsEffect::Ordered(by, MemberOrder::Checkpoint) => {
                tracing::info!(node = %by, "a member ordered a checkpoint");
            }
            RoundsEffect::Ordered(by, MemberOrder::Settings(values)) => {
                tracing::info!(node = %by, %values, "a member ordered other settings");
            }
            RoundsEffect::CheckpointAsked(soon) => self.context.store.expect(soon),
            RoundsEffect::Stragglers(list) => self.context.status.stragglers(list),
            RoundsEffect::Unsound(from, what) => self.context.accuse(from, &what),
            RoundsEffect::Refused(header, why) => {
                tracing::debug!(
                    from = %header.sender,
                    round = header.round.0,
                    "a round's stream was refused: {why}"
                );
            }
        }
    }

    fn send(&self, to: NodeId, frame: Frame) {
        match signing::sign_ask(&self.context, frame) {
            Some(frame) => self.context.send_frame(to, &frame),
            // The machine asks for one entry only.
            None => tracing::error!(%to, "two entries under one term: the second is not sent"),
        }
    }

    fn open(&mut self, plan: Arc<Plan>) {
        let coding = match self.coding(&plan) {
            Ok(coding) => coding,
            Err(broken) => {
                let broken = ToRounds::Moved(plan.attempt, broken.into());
                return self.context.actors.tell(broken);
            }
        };
        if let Some(own) = self.part.contribution()
            && plan.contributes()
        {
            own.encode_as(coding.as_ref());
        }
        let context = Arc::clone(&self.context);
        let myself = self.myself.clone();
        let movements = Movements::new(
            context,
            myself,
            Arc::clone(&plan),
            coding,
            self.part.parameters(),
            self.part.machine().round_view().cloned(),
        );
        self.movements.insert(plan.attempt, movements);
    }

    /// Encoding of the parameters between a round's participants; a joining node is not one.
    fn coding(&self, plan: &Plan) -> Result<Option<Coding>, transfer::Broken> {
        let wire = self.round_wire();
        if !(is_encoded(plan.spec.kind, wire) && plan.participants.contains(&plan.me)) {
            return Ok(None);
        }
        let coding = self
            .carried
            .coding(wire, self.part.parameters(), &self.context.pool);
        coding.map(Some).ok_or_else(|| {
            // Bootstrapping or joining gave it to every member; without it, arriving differences
            // cannot be decoded.
            tracing::error!(
                round = plan.attempt.round.0,
                "what the round before decided is missing"
            );
            transfer::Broken::Stream(plan.me)
        })
    }

    /// Wire type of parameters in the round under way.
    fn round_wire(&self) -> WireType {
        let changed = self.part.machine().changed_settings().values;
        changed
            .applied_to(self.context.settings.algorithm)
            .round_wire
    }

    fn applied(&mut self, applied: &Applied<Buffers>) {
        let Applied {
            plan,
            outcome,
            members,
            values,
            contribution,
            rest,
            ..
        } = applied;
        let movements = std::mem::take(&mut self.movements).remove(&plan.attempt);
        self.record_applied(applied);
        let parameters = self.part.parameters();
        let counts = if plan.contributes() {
            contribution.as_ref()
        } else {
            None
        };
        let optimizer = counts.and_then(|own| own.optimizer_transfer.as_ref());
        AppliedRound {
            outcome,
            members,
            values,
            parameters,
            optimizer,
        }
        .keep_sharded(&self.context, self.part.shards());
        let own = if outcome.spec.carries_parameters() {
            counts
        } else {
            None
        };
        self.carry(plan, movements.as_ref(), own, &rest.owed, values);
        movements.into_iter().for_each(Movements::finish);
        let published = self.context.clock.now().since(self.publishes_since);
        let gossips = matches!(self.context.settings.algorithm.base, Base::Sgp(_));
        // Only one node contributes to a bootstrap round, which starts every node's weight.
        if let Some(weight) = rest.weight
            && gossips
            && outcome.spec.kind != RoundKind::Bootstrap
        {
            // Every member began the round with weight 1.
            self.context
                .status
                .push_sum_weight(members.len() as f64 - weight);
        }
        self.context.status.decided(
            outcome,
            own.map(|own| disagreement(own, values, outcome.round)),
            published,
        );
        let reduced = self
            .contributed_at
            .take()
            .map(|at| self.publishes_since.since(at));
        self.context
            .metrics
            .round(outcome.spec.kind, reduced, published);
        if applied.drained {
            self.context.status.standing(MemberState::Left);
        }
    }

    /// Records a decided outcome, and the fill levels of the queues.
    fn record_applied(&mut self, applied: &Applied<Buffers>) {
        let context = &self.context;
        if !context.recorder.is_on() {
            return;
        }
        let start = context.start();
        if context.recorder.is_brief() {
            context.recorder.record(recording::in_brief(start, applied));
        } else {
            context
                .recorder
                .record_later(recording::in_full(start, applied, self.part.shards()));
        }
        context.gauge("parked round streams", self.part.fullest(), PARKED_MAX);
        context.gauge(
            "network events in mailboxes",
            MAILBOX_CREDITS_MAX - context.credits.available_permits(),
            MAILBOX_CREDITS_MAX,
        );
        if let Some(QueueUse { waiting, bound }) = context.recorder.queue() {
            context.gauge("recorder queue", waiting, bound);
        }
    }

    /// Keeps the state that the next encoded round needs, and none if it is not encoded.
    fn carry(
        &mut self,
        plan: &Plan,
        movements: Option<&Movements>,
        own: Option<&FrozenContribution>,
        owed: &ChunkedBuffer,
        values: &ChunkedBuffer,
    ) {
        if !plan.spec.carries_parameters() {
            return;
        }
        // The entry that was just applied may have changed it.
        if self.round_wire() == WireType::Float32 {
            self.carried = ErrorFeedback::default();
            return;
        }
        if let Some(movements) = movements
            && let Some(coding) = &movements.coding
        {
            let encoder = own.and_then(|own| own.encoder.as_deref());
            let of_sums = movements.owed.lock();
            self.carried
                .renew(plan, coding, encoder, &[owed, &of_sums], values);
        } else {
            self.carried.begin(values);
        }
    }
}

fn settings(context: &NodeContext) -> Settings {
    let node = &context.settings;
    Settings {
        identity: node.identity,
        replicas: node.replicas,
        keeps_state: node.algorithm.outer.is_some_and(|outer| outer.sharded),
        orders_by_rate: node.algorithm.orders_by_rate(),
        origin: context.store.origin(),
        restores: context.store.restored().is_some(),
        copies_buffers: (node.joiner_buffers == JoinerBuffers::Copy)
            .then_some(node.algorithm.buffers),
        quorum: node.quorum,
        on_quorum_loss: node.on_quorum_loss,
        fork_after: NodeContext::span(node.fork_after),
        on_momentum_loss: node.on_momentum_loss,
        grace: capped_grace(
            NodeContext::span(node.grace),
            NodeContext::span(node.round_timeout),
        ),
        round_timeout: NodeContext::span(node.round_timeout),
        ask_again: ASK_AGAIN_EVERY,
        votes_wait: VOTES_WAIT,
        checkpoints: if node.checkpoint_every > 0 {
            Points::of(&node.algorithm).map(|points| points.every(node.checkpoint_every))
        } else {
            None
        },
    }
}
