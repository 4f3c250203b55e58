//! The aggregator actor: one per node. Collects the workers' requests, hands the node's
//! contribution to the coordinator or the gossip peer, and gives every worker the result.
//!
//! A mean of gradients stays inside the node (`Collective::mean`), except under `base =
//! all_reduce`.

use crate::buffers::{ChunkedBuffer, Frozen};
use crate::compute::compute;
use crate::context::NodeContext;
use crate::coordinator::AppliedRound;
use crate::data::{Basis, Buffers, FrozenContribution, WholeState};
use crate::error::{EachNeedsAThread, ExchangeError, Workers};
use crate::messages::{AggregatorMessage, Arrival, Exchanged};
use crate::timer::Timer;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use slowmo_protocol::aggregator::Task;
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::machine::Outbox;
use slowmo_protocol::node::{
    AggregatorEffect, AggregatorPart, ContributionDraft, ContributionMail, Released, Source,
    ToAggregator, ToRounds,
};
use slowmo_protocol::policy::JoinerBuffers;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Spare buffers kept for reuse, in units of one model: a frozen contribution, the published
/// parameters, and one round of momentum.
const SPARE_MODELS_MAX: usize = 3;
/// Additional spare models with gossip, which cycles through one model in chunks.
const SPARE_GOSSIP_MODELS_MAX: usize = 1;

/// Actor shell of the aggregator.
pub struct AggregatorActor;

/// The aggregator's part of the node, reply channels, and data passed by the workers.
pub struct AggregatorState {
    part: AggregatorPart<Buffers>,
    context: Arc<NodeContext>,
    myself: ActorRef<AggregatorMessage>,
    replies: BTreeMap<usize, oneshot::Sender<Result<Exchanged, ExchangeError>>>,
    leaving: BTreeMap<usize, oneshot::Sender<()>>,
    optimizer_transfer: Option<Frozen>,
    /// Optimizer buffers passed to the current round, for a checkpoint that only this actor can
    /// make.
    lent: Option<Frozen>,
    /// The whole slow momentum from which bootstrap continues.
    momentum: Option<Frozen>,
    basis: Basis,
    whole: Option<Box<WholeState>>,
    /// Number of values in the current exchange, and how many of them are parameters.
    elements: usize,
    parameters: usize,
    gone: Option<ExchangeError>,
    failed: bool,
    /// Whether the status names workers that are late.
    names_late: bool,
    timer: Timer,
}

impl Actor for AggregatorActor {
    type Msg = AggregatorMessage;
    type State = AggregatorState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        context: Arc<NodeContext>,
    ) -> Result<AggregatorState, ActorProcessingErr> {
        Ok(AggregatorState::new(context, myself))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: AggregatorMessage,
        state: &mut AggregatorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            AggregatorMessage::Arrive(arrival) => state.arrive(*arrival),
            AggregatorMessage::Told(message) => state.tell(message),
            AggregatorMessage::WholeStepDone(whole, values) => {
                state.whole = Some(whole);
                state.tell(ToAggregator::Stepped(values));
            }
            AggregatorMessage::Leave { worker, reply } => state.leave(worker, reply),
            AggregatorMessage::Gone { worker, error } => state.gone(worker, error),
        }
        state.show_late_workers();
        let tick = || AggregatorMessage::Told(ToAggregator::Tick);
        state.timer.arm(
            state.part.next_deadline(),
            state.context.clock.now(),
            &state.myself,
            tick,
        );
        Ok(())
    }
}

impl AggregatorState {
    fn new(context: Arc<NodeContext>, myself: ActorRef<AggregatorMessage>) -> Self {
        let settings = &context.settings;
        let gossips = matches!(settings.algorithm.base, Base::Sgp(_));
        Self {
            part: AggregatorPart::new(
                settings.workers,
                gossips,
                NodeContext::span(settings.round_timeout),
            ),
            context,
            myself,
            replies: BTreeMap::new(),
            leaving: BTreeMap::new(),
            optimizer_transfer: None,
            lent: None,
            momentum: None,
            basis: Basis::default(),
            whole: None,
            elements: 0,
            parameters: 0,
            gone: None,
            failed: false,
            names_late: false,
            timer: Timer::default(),
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        let Arrival {
            arrive,
            optimizer_transfer,
            momentum,
            basis,
            reply,
        } = arrival;
        if let Some(error) = &self.gone {
            // A handle that stopped waiting needs no answer, here and below.
            _ = reply.send(Err(error.clone()));
            return;
        }
        self.replies.insert(arrive.worker, reply);
        self.optimizer_transfer = optimizer_transfer.or(self.optimizer_transfer.take());
        self.momentum = momentum.or(self.momentum.take());
        self.basis.merge(arrive.worker, basis);
        self.elements = usize::try_from(arrive.request.elements).unwrap_or(usize::MAX);
        self.parameters = usize::try_from(arrive.model.parameters).unwrap_or(usize::MAX);
        self.tell(ToAggregator::Arrive(Box::new(arrive)));
    }

    fn tell(&mut self, message: ToAggregator<Buffers>) {
        let is_bootstrap = self
            .part
            .request()
            .is_some_and(|(request, _)| request.task == Task::Bootstrap);
        match &message {
            // A joiner's whole state starts from the parameters with which it joined.
            ToAggregator::Decided(decided) if self.whole.is_none() && is_bootstrap => {
                self.begin_whole_state(&decided.values, decided.outcome.spec.kind);
            }
            ToAggregator::Tick => self.timer.disarm(),
            _ => {}
        }
        let mut out = Outbox::default();
        self.part
            .handle(message, self.context.clock.now(), &mut out);
        for effect in out.take() {
            self.execute(effect);
        }
    }

    fn execute(&mut self, effect: AggregatorEffect<Buffers>) {
        match effect {
            AggregatorEffect::Tell(mail) => self.context.actors.tell(mail),
            AggregatorEffect::Contribute(contributing) => self.contribute(*contributing),
            AggregatorEffect::WholeStep { from, gamma } => self.start_whole_step(from, gamma),
            AggregatorEffect::Release(released) => self.release(*released),
            AggregatorEffect::Behind => {
                tracing::warn!("this node missed too many means of gradients: it rejoins")
            }
            AggregatorEffect::Unchanged => self.answer(Err(ExchangeError::Excluded)),
            AggregatorEffect::Drained => self.answer(Err(ExchangeError::Drained)),
            AggregatorEffect::Missing {
                workers,
                call,
                waited,
            } => self.answer(Err(ExchangeError::WorkersMissing {
                workers,
                devices: self.context.settings.workers,
                call,
                waited,
            })),
            AggregatorEffect::Disagree {
                worker,
                asked,
                before,
            } => {
                let asked = Box::new(asked);
                let before = Box::new(before);
                self.answer(Err(ExchangeError::WorkersDisagree {
                    worker,
                    asked,
                    before,
                }));
            }
            AggregatorEffect::Failed(failure) => {
                let error = ExchangeError::from(failure);
                if matches!(error, ExchangeError::Bootstrapping(_)) {
                    // The node is no member and does not want to be one any more. Workers that come
                    // later must not wait.
                    self.gone.get_or_insert(error.clone());
                }
                self.answer(Err(error));
            }
            AggregatorEffect::Left => {
                for (_, reply) in std::mem::take(&mut self.leaving) {
                    _ = reply.send(());
                }
            }
        }
    }

    /// Names the workers for which the others wait, in the status and in the log. Before the first
    /// step they may never come, which is worth a warning.
    fn show_late_workers(&mut self) {
        let (workers, call) = self.part.late_workers();
        let is_late = !workers.is_empty();
        let named_before = std::mem::replace(&mut self.names_late, is_late);
        if !is_late {
            if named_before {
                self.context.status.waiting_for_workers(None);
            }
            return;
        }
        let settings = &self.context.settings;
        let what = format!(
            "{} of this node has not called {call}: {}; the others wait {} s (round_timeout_ms) \
             and then fail",
            Workers(&workers),
            EachNeedsAThread(settings.workers),
            settings.round_timeout.as_secs()
        );
        if !named_before && call == Task::Bootstrap.call() {
            tracing::warn!("{what}");
            self.context.status.event(what.clone());
        } else if !named_before {
            tracing::info!("{what}");
        }
        self.context.status.waiting_for_workers(Some(what));
    }

    fn contribute(&mut self, contributing: ContributionDraft<Buffers>) {
        let ContributionDraft {
            round,
            spec,
            weight,
            model,
            frozen,
            samples,
        } = contributing;
        let optimizer_transfer = self.optimizer_transfer.take();
        let basis = std::mem::take(&mut self.basis);
        self.lent = if self.whole.is_some() {
            optimizer_transfer.clone()
        } else {
            None
        };
        let settings = &self.context.settings;
        // At every contribution: a node that joins contributes to no bootstrap.
        let gossip = if matches!(settings.algorithm.base, Base::Sgp(_)) {
            SPARE_GOSSIP_MODELS_MAX
        } else {
            0
        };
        self.context
            .pool
            .keep_at_most((SPARE_MODELS_MAX + gossip) * frozen.values().len());
        let rates = if settings.algorithm.orders_by_rate() {
            self.context.rates.read()
        } else {
            Vec::new()
        };
        let buffers = if settings.joiner_buffers == JoinerBuffers::Copy {
            model.optimizer
        } else {
            0
        };
        let parameters = usize::try_from(model.parameters).unwrap_or(usize::MAX);
        let contribution = FrozenContribution {
            weight,
            parameters,
            frozen,
            optimizer_transfer,
            basis,
            encoder: None,
        };
        let contribute = ContributionMail {
            round,
            spec,
            samples,
            rates,
            buffers,
            parameters,
            contribution,
        };
        self.context
            .actors
            .tell(ToRounds::Contribute(Box::new(contribute)));
    }

    /// Starts the whole slow state from the bootstrap parameters, if the outer optimizer is not
    /// sharded.
    fn begin_whole_state(&mut self, values: &ChunkedBuffer, kind: RoundKind) {
        let outer = self
            .context
            .settings
            .algorithm
            .outer
            .filter(|outer| !outer.sharded);
        // A joiner's momentum begins at zero, even if it passed momentum for a bootstrap.
        let restored = self.momentum.take();
        let restored = if kind == RoundKind::Bootstrap {
            restored
        } else {
            None
        };
        let momentum = restored.as_ref().map(Frozen::values);
        self.whole = outer.map(|outer| {
            Box::new(WholeState::new(outer.optimizer, values, self.parameters).going_on(momentum))
        });
    }

    fn release(&mut self, released: Released<Buffers>) {
        if released.stepped {
            self.keep(&released);
        }
        let Released {
            values,
            stays,
            weight,
            outcome,
            donated,
            contributors,
            members,
            members_before,
            next_step,
            drained,
            ..
        } = released;
        self.answer(Ok(Exchanged {
            values: Arc::new(values.unwrap_or_default()),
            correction: stays.map(|stays| stays as f32),
            donated: donated.map(Arc::new),
            weight,
            outcome,
            contributors,
            members,
            members_before,
            next_step,
            drained,
        }));
    }

    /// Stores the state after the node's own slow step, if a checkpoint is due.
    fn keep(&self, released: &Released<Buffers>) {
        let (Some(whole), Some(outcome), Some(values), context) = (
            &self.whole,
            &released.outcome,
            &released.values,
            &self.context,
        ) else {
            return;
        };
        let members = &released.members_before;
        let optimizer = self.lent.as_ref();
        let decided = AppliedRound {
            outcome,
            members,
            values,
            parameters: self.parameters,
            optimizer,
        };
        if let Some(part) = decided.part(context) {
            decided.keep(
                context,
                part,
                Some(|_, range| whole.momentum(range, &context.pool)),
            );
        }
    }

    fn start_whole_step(&mut self, from: Source<Buffers>, gamma: f32) {
        let Some(mut whole) = self.whole.take() else {
            return self.fail(&ExchangeError::Stopped);
        };
        let values = match from {
            Source::Made(values) => values.unwrap_or_default(),
            Source::Own(frozen) => {
                let mut own = ChunkedBuffer::default();
                frozen.into_iter().for_each(|frozen| own.insert(0, frozen));
                own
            }
        };
        let pool = Arc::clone(&self.context.pool);
        let weight = self.part.weight();
        let myself = self.myself.clone();
        let elements = self.elements;
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
        self.tell(ToAggregator::GivenUp);
        self.answer(Err(error.clone()));
    }

    fn answer(&mut self, result: Result<Exchanged, ExchangeError>) {
        let excluded = matches!(result, Err(ExchangeError::Excluded));
        self.failed |= result.is_err() && !excluded;
        self.optimizer_transfer = None;
        self.lent = None;
        self.basis = Basis::default();
        for (_, reply) in std::mem::take(&mut self.replies) {
            _ = reply.send(result.clone());
        }
    }

    /// The node leaves when all of its workers do; workers that are waiting get an error if another
    /// one leaves.
    fn leave(&mut self, worker: usize, reply: oneshot::Sender<()>) {
        self.leaving.insert(worker, reply);
        self.gone.get_or_insert(ExchangeError::WorkerLeft(worker));
        if !self.replies.is_empty() {
            self.fail(&ExchangeError::WorkerLeft(worker));
        }
        self.tell(ToAggregator::Leave(worker));
    }

    fn gone(&mut self, worker: usize, error: ExchangeError) {
        let (reply, _) = oneshot::channel();
        if !self.failed {
            tracing::warn!(
                worker,
                "a worker's handle was dropped without leave(): its training counts as unfinished; \
                 one that is over calls leave()"
            );
        }
        self.fail(&error);
        self.leave(worker, reply);
    }
}
