//! The aggregator actor: one per node. Gathers the workers' requests, hands the node's contribution to the coordinator or
//! the gossip peer, and gives every worker the result.

mod messages;
mod whole;

pub use messages::{AggregatorMessage, Arrival};
pub use whole::WholeState;

use crate::buffers::{Assembled, Frozen};
use crate::compute::compute;
use crate::context::NodeContext;
use crate::coordinator::{Contributed, Decided};
use crate::data::Buffers;
use crate::error::ExchangeError;
use crate::timer::Timer;
use crate::worker::{Basis, Exchanged};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use slowmo_protocol::aggregator::{Aggregator, Effect, In, Request, Task, Values};
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::coordinator::{Outcome, RoundKind, RoundSpec};
use slowmo_protocol::ident::Round;
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::membership;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::node::{self, Contribute, GossipDone, ToAggregator, ToGossip, ToRounds};
use slowmo_protocol::policy::JoinerBuffers;
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::view::Member;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Spare buffers kept for reuse, in models: a frozen contribution, the published parameters, and one round of momentum.
const SPARE_MODELS_MAX: usize = 3;
/// With gossip, one that cycles through it in chunks comes on top.
const SPARE_GOSSIP_MODELS_MAX: usize = 1;

/// The shell of the aggregator.
pub struct AggregatorActor;

/// What a decided round brought.
struct Brought {
    values: Assembled,
    /// What a member gave this node when it joined.
    donated: Option<Arc<Assembled>>,
    /// The members that the round began with.
    members_before: Arc<[Member]>,
}

impl Brought {
    fn into_parts(self) -> (Assembled, Option<Arc<Assembled>>, Arc<[Member]>) {
        (self.values, self.donated, self.members_before)
    }
}

/// The aggregator's machine and what it must not see: buffers and reply channels.
pub struct AggregatorState {
    machine: Aggregator,
    out: Outbox<Effect>,
    context: Arc<NodeContext>,
    replies: BTreeMap<usize, oneshot::Sender<Result<Exchanged, ExchangeError>>>,
    leaving: BTreeMap<usize, oneshot::Sender<()>>,
    request: Option<(Request, ModelSize)>,
    frozen: Option<Frozen>,
    donation: Option<Frozen>,
    /// What was lent to the round under way, for a checkpoint that only this actor can make.
    lent: Option<Frozen>,
    /// The whole slow momentum that the founding goes on from.
    momentum: Option<Frozen>,
    samples: Option<Progress>,
    /// What decided rounds brought, until the workers take it; as many as the machine keeps.
    untaken: BTreeMap<Round, Brought>,
    basis: Basis,
    /// The values of the gossip that is complete, until the workers take them.
    gossiped: Assembled,
    /// If those are a correction of the training threads' model: the part of it that stays.
    correction: Option<f32>,
    /// The values after the node's own slow step, until the workers take them.
    stepped: Assembled,
    whole: Option<Box<WholeState>>,
    members: Arc<[Member]>,
    gone: Option<ExchangeError>,
    failed: bool,
    timer: Timer,
}

impl Actor for AggregatorActor {
    type Msg = AggregatorMessage;
    type State = AggregatorState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(&self, _: ActorRef<Self::Msg>, context: Arc<NodeContext>) -> Result<AggregatorState, ActorProcessingErr> {
        Ok(AggregatorState::new(context))
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: AggregatorMessage,
        state: &mut AggregatorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            AggregatorMessage::Arrive(arrival) => state.arrive(arrival),
            AggregatorMessage::Told(message) => state.take_told(message),
            AggregatorMessage::WholeStepDone(whole, values) => {
                (state.whole, state.stepped) = (Some(whole), values.clone());
                state.context.actors.tell(ToGossip::Stepped(values));
                state.feed(In::WholeStepDone);
            }
            AggregatorMessage::Leave { worker, reply } => state.leave(worker, reply),
            AggregatorMessage::Gone { worker, error } => state.gone(worker, error),
        }
        state.execute(&myself);
        state.timer.arm(state.machine.next_deadline(), state.context.clock.now(), &myself, || AggregatorMessage::Told(ToAggregator::Tick));
        Ok(())
    }
}

impl AggregatorState {
    fn new(context: Arc<NodeContext>) -> Self {
        let timeout = NodeContext::span(context.settings.round_timeout);
        Self {
            machine: Aggregator::new(context.settings.workers, matches!(context.settings.algorithm.base, Base::Sgp(_)), timeout),
            out: Outbox::default(),
            context,
            replies: BTreeMap::new(),
            leaving: BTreeMap::new(),
            request: None,
            frozen: None,
            donation: None,
            lent: None,
            momentum: None,
            samples: None,
            untaken: BTreeMap::new(),
            basis: Basis::default(),
            gossiped: Assembled::default(),
            correction: None,
            stepped: Assembled::default(),
            whole: None,
            members: Arc::default(),
            gone: None,
            failed: false,
            timer: Timer::default(),
        }
    }

    fn take_told(&mut self, message: ToAggregator<Buffers>) {
        match message {
            ToAggregator::Decided(decided) => {
                let node::Decided { outcome, members, values, donated, drained } = *decided;
                let brought = Brought { values, donated: donated.map(Arc::new), members_before: members };
                self.round_decided(outcome, brought, drained);
            }
            ToAggregator::GossipDone(done) if self.machine.awaits_gossip(done.step) => {
                let GossipDone { step, weight, contributors, next_step, values, stays } = *done;
                self.gossiped = values;
                self.correction = stays.map(|stays| stays as f32);
                self.feed(In::GossipDone { step, weight, contributors, next_step });
            }
            ToAggregator::Settled(step, weight, frozen) if self.machine.awaits_settling(step) => {
                self.frozen = Some(frozen);
                self.feed(In::Settled { step, weight });
            }
            // A round that was decided meanwhile has released the workers.
            ToAggregator::GossipDone(_) | ToAggregator::Settled(..) => {}
            ToAggregator::Failed(failure) => self.fail(&failure.into()),
            ToAggregator::Drained => self.feed(In::Drained),
            ToAggregator::Left => self.left(),
            ToAggregator::Tick => {
                self.timer.disarm();
                self.feed(In::Tick);
            }
        }
    }

    fn feed(&mut self, event: In) {
        let now = self.context.clock.now();
        self.machine.handle(event, now, &mut self.out);
    }

    fn arrive(&mut self, arrival: Arrival) {
        let Arrival { worker, request, model, frozen, donation, momentum, samples, basis, reply } = arrival;
        if let Some(error) = &self.gone {
            // A handle that stopped waiting needs no answer, here and below.
            _ = reply.send(Err(error.clone()));
            return;
        }
        self.replies.insert(worker, reply);
        self.request = Some((request, model));
        self.frozen = frozen.or(self.frozen.take());
        self.donation = donation.or(self.donation.take());
        self.momentum = momentum.or(self.momentum.take());
        self.samples = samples.or(self.samples.take());
        self.basis.merge(worker, basis);
        self.feed(In::Arrive { worker, request });
    }

    fn round_decided(&mut self, outcome: Arc<Outcome>, mut brought: Brought, drained: bool) {
        // A joiner's whole state starts from the parameters that it joined with.
        if self.whole.is_none() && self.request.is_some_and(|(request, _)| request.task == Task::Found) {
            self.found(&brought.values, outcome.spec.kind);
        }
        self.members = outcome.view.members().into();
        if outcome.spec.carries_parameters() {
            // They replace all that was before them, but not what a joiner was given.
            let before = std::mem::take(&mut self.untaken);
            brought.donated = brought.donated.or_else(|| before.into_values().find_map(|before| before.donated));
        }
        self.untaken.insert(outcome.round, brought);
        self.feed(In::RoundDecided { outcome, drained });
    }

    fn execute(&mut self, myself: &ActorRef<AggregatorMessage>) {
        for effect in self.out.take() {
            match effect {
                Effect::Round { round, spec, weight } => self.start_round(round, spec, weight),
                Effect::Gossip { step, round } => {
                    let frozen = self.frozen.take();
                    self.context.actors.tell(ToGossip::Gossip(step, round, frozen));
                }
                Effect::Settle { step, round } => {
                    if let Some(frozen) = self.frozen.take() {
                        self.context.actors.tell(ToGossip::Settle(step, round, frozen));
                    }
                }
                Effect::WholeStep { values, gamma } => self.start_whole_step(values, gamma, myself),
                Effect::Release { values, weight, outcome, contributors, next_step, drained } => {
                    let values_are_stepped = values == Values::Stepped;
                    let correction = self.correction.filter(|_| values == Values::Gossiped);
                    let brought = outcome.as_ref().and_then(|outcome| self.take_brought(outcome.round));
                    let (decided, donated, members_before) = brought.map_or_else(Default::default, Brought::into_parts);
                    let values = if values == Values::Decided { decided } else { self.take(values) };
                    // Gradients do not go with it.
                    if let Some(outcome) = outcome.as_ref().filter(|outcome| outcome.spec.carries_parameters()) {
                        self.tell_decided(outcome, &values);
                    }
                    if let Some(outcome) = outcome.as_ref().filter(|_| values_are_stepped) {
                        self.keep(outcome, &members_before, &values);
                    }
                    let members = outcome.as_ref().map_or_else(|| Arc::clone(&self.members), |outcome| outcome.view.members().into());
                    let values = Arc::new(values);
                    self.answer(Ok(Exchanged {
                        values,
                        correction,
                        donated,
                        weight,
                        outcome,
                        contributors,
                        members,
                        members_before,
                        next_step,
                        drained,
                    }));
                }
                Effect::Behind => {
                    tracing::warn!("this node missed too many means of gradients: it joins again");
                    self.untaken.clear();
                    self.context.actors.tell(membership::In::Stranded);
                }
                Effect::Unchanged => self.answer(Err(ExchangeError::PassedOver)),
                Effect::Drained => self.answer(Err(ExchangeError::Drained)),
                Effect::Missing { workers, waited } => self.answer(Err(ExchangeError::WorkersMissing { workers, waited })),
                Effect::Disagree { worker, asked, before } => {
                    let (asked, before) = (Box::new(asked), Box::new(before));
                    self.answer(Err(ExchangeError::WorkersDisagree { worker, asked, before }));
                }
            }
        }
    }

    /// Where the workers go on, before they can. Only gossip needs it, and only then are the values kept for longer.
    fn tell_decided(&self, outcome: &Outcome, values: &Assembled) {
        if self.gossips() {
            self.context.actors.tell(ToGossip::Decided(outcome.round.next(), values.clone()));
        }
    }

    fn gossips(&self) -> bool {
        matches!(self.context.settings.algorithm.base, Base::Sgp(_))
    }

    fn start_round(&mut self, round: Round, spec: RoundSpec, weight: f64) {
        let (Some(frozen), Some((request, model))) = (self.frozen.take(), self.request) else { return };
        let (samples, donation, basis) = (self.samples.take(), self.donation.take(), std::mem::take(&mut self.basis));
        self.lent = donation.clone().filter(|_| self.whole.is_some());
        let parameters = usize::try_from(model.parameters).unwrap_or(usize::MAX);
        if request.task == Task::Found {
            let gossip = if self.gossips() { SPARE_GOSSIP_MODELS_MAX } else { 0 };
            self.context.pool.keep_at_most((SPARE_MODELS_MAX + gossip) * frozen.values().len());
            self.context.actors.tell(ToGossip::Model(parameters));
            self.context.actors.tell(membership::In::Synchronize(model));
        }
        let settings = &self.context.settings;
        let rates = if settings.algorithm.orders_by_rate() { self.context.rates.read() } else { Vec::new() };
        let buffers = if settings.joiner_buffers == JoinerBuffers::Copy { model.optimizer } else { 0 };
        let contribution = Contributed { weight, parameters, frozen, donation, basis, encoder: None };
        let contribute = Contribute { round, spec, samples, rates, buffers, parameters, contribution };
        self.context.actors.tell(ToRounds::Contribute(Box::new(contribute)));
    }

    /// The whole slow state starts from the founding parameters where the outer optimizer is not sharded.
    fn found(&mut self, values: &Assembled, kind: RoundKind) {
        let outer = self.context.settings.algorithm.outer.filter(|outer| !outer.sharded);
        let parameters = self.request.map_or(0, |(_, model)| model.parameters as usize);
        // A joiner's momentum begins at zero, whatever it could have founded with.
        let momentum = self.momentum.take().filter(|_| kind == RoundKind::Found);
        let momentum = momentum.as_ref().map(Frozen::values);
        self.whole = outer.map(|outer| Box::new(WholeState::new(outer.optimizer, values, parameters).going_on(momentum)));
    }

    /// Keeps for good what the node's own slow step left, where that is due.
    fn keep(&mut self, outcome: &Outcome, members: &Arc<[Member]>, values: &Assembled) {
        let (Some(whole), Some((_, model)), context) = (&self.whole, self.request, &self.context) else { return };
        let (parameters, optimizer) = (model.parameters as usize, self.lent.as_ref());
        let decided = Decided { outcome, members, values, parameters, optimizer };
        let shards = decided.shards(context);
        if !shards.is_empty() {
            decided.keep(context, shards, Some(|_, range| whole.momentum(range, &context.pool)));
        }
    }

    fn take(&mut self, values: Values) -> Assembled {
        match values {
            // Its whole step comes first; the rest of what the round brought waits for that.
            Values::Decided => self.untaken.values_mut().next().map(|brought| std::mem::take(&mut brought.values)).unwrap_or_default(),
            Values::Gossiped => std::mem::take(&mut self.gossiped),
            Values::Stepped => std::mem::take(&mut self.stepped),
            Values::Own => {
                let mut own = Assembled::default();
                self.frozen.take().into_iter().for_each(|frozen| own.insert(0, frozen));
                own
            }
        }
    }

    /// What a round brought. What the machine forgot, as no exchange took it, is older and goes as well.
    fn take_brought(&mut self, round: Round) -> Option<Brought> {
        self.untaken = self.untaken.split_off(&round);
        self.untaken.remove(&round)
    }

    fn start_whole_step(&mut self, values: Values, gamma: f32, myself: &ActorRef<AggregatorMessage>) {
        let Some(mut whole) = self.whole.take() else { return self.fail(&ExchangeError::Stopped) };
        let values = self.take(values);
        let elements = self.request.map_or(0, |(request, _)| request.elements as usize);
        let (pool, weight, myself) = (Arc::clone(&self.context.pool), self.machine.weight(), myself.clone());
        let step = compute(move || {
            let result = whole.step(&values, elements, weight, gamma, &pool);
            (whole, result)
        });
        tokio::spawn(async move {
            if let Some((whole, result)) = step.await {
                // A stopped aggregator needs no result.
                _ = myself.cast(AggregatorMessage::WholeStepDone(whole, result));
            }
        });
    }

    fn fail(&mut self, error: &ExchangeError) {
        self.feed(In::Failed);
        self.answer(Err(error.clone()));
    }

    fn answer(&mut self, result: Result<Exchanged, ExchangeError>) {
        let passed_over = matches!(result, Err(ExchangeError::PassedOver));
        self.failed |= result.is_err() && !passed_over;
        (self.request, self.frozen, self.donation, self.samples) = (None, None, None, None);
        (self.gossiped, self.stepped, self.basis, self.lent) = Default::default();
        for (_, reply) in std::mem::take(&mut self.replies) {
            _ = reply.send(result.clone());
        }
    }

    /// The node leaves when all of its workers do; the others are told if one leaves while they wait.
    fn leave(&mut self, worker: usize, reply: oneshot::Sender<()>) {
        self.leaving.insert(worker, reply);
        self.gone.get_or_insert(ExchangeError::WorkerLeft(worker));
        if !self.replies.is_empty() {
            self.fail(&ExchangeError::WorkerLeft(worker));
        }
        if self.leaving.len() == self.context.settings.workers {
            self.context.actors.tell(ToGossip::Leave(self.machine.round()));
        }
    }

    fn left(&mut self) {
        for (_, reply) in std::mem::take(&mut self.leaving) {
            _ = reply.send(());
        }
    }

    fn gone(&mut self, worker: usize, error: ExchangeError) {
        let (reply, _) = oneshot::channel();
        if !self.failed {
            tracing::warn!(worker, "a worker's handle was dropped without leave()");
        }
        self.fail(&error);
        self.leave(worker, reply);
    }
}
