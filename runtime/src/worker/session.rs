//! The work of a worker before and after it waits: freeze, check, send the request; take the
//! result, write it back. The blocking and the async handle wait in their own ways between the two
//! halves.

mod buffers;
mod model;
mod rate;
mod recording;
mod resuming;

use super::report::{Buffers, StepReport, Synchronized};
use crate::error::{GradientError, StepError, SynchronizeError};
use crate::node::Node;
use crate::sampler::{ElasticSampler, Follower, SamplerError};
use crate::tensors::elements;
use buffers::Sizes;
use model::{model_tensors, with_tensors};
use rate::LastRate;
use slowmo_actors::ExchangeError;
use slowmo_actors::buffers::{Buffer, ChunkedBuffer, Frozen};
use slowmo_actors::messages::{AggregatorMessage, Arrival, Exchanged};
use slowmo_actors::ports::device::{
    Device, FreezeError, MixFactors, Mixed, TensorError, Tensors, Written,
};
use slowmo_protocol::aggregator::{Request, Task};
use slowmo_protocol::algorithm::{Algorithm, Base};
use slowmo_protocol::changeable::SettingValues;
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::ident::Step;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::node::{Arrive, ToGossip};
use slowmo_protocol::schedule::{Due, Exchange, due, steps_since_boundary};
use slowmo_protocol::trace::Place;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The answer to an exchange; closed without one if the node has stopped.
pub type Answer = oneshot::Receiver<Result<Exchanged, ExchangeError>>;

/// A worker's own state between calls.
pub struct Session {
    /// The worker's node.
    pub node: Arc<Node>,
    /// The worker's index on the node.
    pub index: usize,
    step: Step,
    sizes: Option<Sizes>,
    averaged_gradients: bool,
    /// Whether this node was excluded. Then the parameters of the round are waiting, and the next
    /// step takes them whichever exchange is due.
    excluded: bool,
    sampler: Option<Follower>,
    /// The last decided outcome whose parameters were written back.
    after: Option<Place>,
    /// Whether an exchange was requested and its result not taken yet.
    waiting: bool,
    /// Time and name of the pending request; only on worker 0.
    asked: Option<(std::time::Instant, &'static str)>,
    /// Whether the result of an exchange was not taken, or only in part.
    broken: bool,
    /// Whether this node has left the cluster in order.
    ended: bool,
    /// The last step at which this node's own values were refused.
    refused_at: Option<Step>,
    /// The settings that changed in the rounds whose parameters this worker took.
    changed: SettingValues,
    rate: LastRate,
    /// The values that worker 0's parameters were written from, as far as they are not float32.
    written: Option<Written>,
}

/// The values that a worker passes to an exchange.
#[derive(Default)]
struct Lent {
    /// The contribution.
    frozen: Option<Frozen>,
    /// The base optimizer's buffers.
    optimizer_transfer: Option<Frozen>,
    /// The whole slow momentum that a bootstrap continues from.
    momentum: Option<Frozen>,
}

/// A step that has begun.
pub enum BegunStep {
    /// It waits for an exchange.
    Waits(Pending),
    /// Nothing was due: it is complete.
    Complete(StepReport),
}

/// An exchange that a step waits for.
pub struct Pending {
    /// The answer.
    pub answer: Answer,
    due: Due,
}

impl Session {
    /// Creates a worker's session before its first call.
    pub fn new(node: Arc<Node>, index: usize) -> Self {
        let averaged_gradients = false;
        let excluded = false;
        let waiting = false;
        let broken = false;
        let ended = false;
        Self {
            node,
            index,
            step: Step(0),
            sizes: None,
            averaged_gradients,
            excluded,
            sampler: None,
            after: None,
            waiting,
            asked: None,
            broken,
            ended,
            refused_at: None,
            changed: SettingValues::default(),
            rate: LastRate::default(),
            written: None,
        }
    }

    /// Sends the bootstrap request.
    pub fn begin_synchronize(
        &mut self,
        parameters: &mut dyn Tensors,
        buffers: &mut Buffers<'_>,
    ) -> Result<Answer, SynchronizeError> {
        if self.waiting {
            return Err(SynchronizeError::Abandoned);
        }
        if self.broken {
            return Err(SynchronizeError::Broken);
        }
        if self.sizes.is_some() || self.ended {
            return Err(SynchronizeError::Again);
        }
        let sizes = self.sizes_of(parameters, buffers)?;
        let total = sizes.parameters + sizes.model + sizes.optimizer;
        let mut frozen = self.freeze(parameters, buffers, sizes, total)?;
        let tensors = model_tensors(parameters, &*buffers.model)?;
        self.describe(&tensors, sizes.model());
        let momentum = self.resume(&tensors, sizes, &mut frozen)?;
        let request = Request {
            step: self.step,
            task: Task::Bootstrap,
            gamma: 0.0,
            elements: total as u64,
        };
        let lent = Lent {
            frozen: Some(frozen),
            momentum,
            ..Lent::default()
        };
        Ok(self.ask(request, sizes.model(), lent))
    }

    /// Writes the bootstrap's parameters.
    pub fn finish_synchronize(
        &mut self,
        exchanged: Option<Result<Exchanged, ExchangeError>>,
        parameters: &mut dyn Tensors,
        buffers: &mut Buffers<'_>,
    ) -> Result<Synchronized, SynchronizeError> {
        self.answered();
        let exchanged = match exchanged.unwrap_or(Err(ExchangeError::Stopped)) {
            Err(ExchangeError::Drained) => return Ok(self.ended_before_it_began()),
            Err(error) => {
                let Ok(tensors) = model_tensors(parameters, &*buffers.model) else {
                    return Err(error.into());
                };
                return Err(with_tensors(error, &tensors));
            }
            Ok(exchanged) => exchanged,
        };
        self.follow(&exchanged)?;
        let sizes = self.sizes_of(parameters, buffers)?;
        self.broken = true;
        self.write_parameters(&exchanged.values, 1.0, parameters)
            .map_err(SynchronizeError::NotWritten)?;
        self.device()
            .write_back(&exchanged.values, sizes.parameters, 1.0, buffers.model)
            .map_err(SynchronizeError::NotWritten)?;
        self.begin_optimizer(&exchanged, sizes, buffers)
            .map_err(SynchronizeError::NotWritten)?;
        self.restore_optimizer(&exchanged, buffers)?;
        self.broken = false;
        self.sizes = Some(sizes);
        self.go_to(exchanged.next_step);
        if let Some(outcome) = &exchanged.outcome {
            self.node.joined(outcome.lineage);
        }
        let round = exchanged
            .outcome
            .as_ref()
            .map_or(0, |outcome| outcome.round.next().0);
        let nodes = exchanged.members.len();
        let workers = self.node.workers();
        let worker = self.index;
        self.tell_memory(sizes, elements(&*buffers.optimizer)?, nodes);
        Ok(Synchronized {
            nodes,
            node_rank: self.rank(&exchanged),
            workers,
            worker,
            round,
            step: self.step.0,
        })
    }

    /// Returns the report of `synchronize` for a node that left before it was a member.
    fn ended_before_it_began(&mut self) -> Synchronized {
        self.ended = true;
        Synchronized {
            nodes: 1,
            node_rank: 0,
            workers: self.node.workers(),
            worker: self.index,
            round: 0,
            step: self.step.0,
        }
    }

    /// Whether the training goes on: this node has not left the cluster in order.
    pub fn is_running(&self) -> bool {
        !self.ended
    }

    /// The algorithm by the settings in force at the next step.
    fn algorithm(&self) -> Algorithm {
        self.changed.applied_to(self.node.settings().algorithm)
    }

    /// Whether the next step exchanges anything.
    pub fn is_due(&self) -> bool {
        self.excluded || due(&self.algorithm(), self.step) != Due::NOTHING
    }

    /// Completes a step at which nothing is due.
    pub fn step_alone(&mut self, learning_rate: f32) -> Result<StepReport, StepError> {
        self.check_usable()?;
        self.sizes.ok_or(StepError::NotSynchronized)?;
        self.warn_if_gradients_were_not_averaged();
        if self.is_due() {
            return Err(StepError::Due { step: self.step.0 });
        }
        self.rate.given(learning_rate);
        Ok(self.completed(Due::NOTHING))
    }

    fn check_usable(&self) -> Result<(), StepError> {
        if self.waiting {
            return Err(StepError::Abandoned);
        }
        if self.broken {
            return Err(StepError::Broken);
        }
        if self.ended {
            return Err(StepError::Exchange {
                step: self.step.0,
                error: ExchangeError::Drained,
            });
        }
        Ok(())
    }

    /// Checks a step and sends its request; complete already if nothing is due.
    pub fn begin_step(
        &mut self,
        parameters: &mut dyn Tensors,
        buffers: &mut Buffers<'_>,
        learning_rate: f32,
    ) -> Result<BegunStep, StepError> {
        self.check_usable()?;
        let sizes = self.sizes.ok_or(StepError::NotSynchronized)?;
        self.warn_if_gradients_were_not_averaged();
        self.rate.given(learning_rate);
        let due = due(&self.algorithm(), self.step);
        if !self.is_due() {
            // Nothing is read, because reading may cost a copy of the model.
            return Ok(BegunStep::Complete(self.completed(due)));
        }
        self.check_length("parameters", elements(parameters)?, sizes.parameters)?;
        let total = self.total(due, sizes);
        self.check_buffers(due, sizes, buffers)?;
        let gamma = self.gamma(due, learning_rate)?;
        let step = self.step.0;
        // Overlapped gossip delivers a correction; the values are taken when it is added.
        let frozen = if self.is_overlapped(due) {
            None
        } else {
            let frozen = self.freeze(parameters, buffers, sizes, total);
            Some(frozen.map_err(|error| {
                self.show_refused(&error);
                StepError::Freeze { step, error }
            })?)
        };
        let optimizer_transfer = self.optimizer_transfer(due, sizes, buffers)?;
        let request = Request {
            step: self.step,
            task: Task::Due(due),
            gamma,
            elements: total as u64,
        };
        let lent = Lent {
            frozen,
            optimizer_transfer,
            momentum: None,
        };
        Ok(BegunStep::Waits(Pending {
            answer: self.ask(request, sizes.model(), lent),
            due,
        }))
    }

    /// Writes the result of a step's exchange.
    pub fn finish_step(
        &mut self,
        due: Due,
        exchanged: Option<Result<Exchanged, ExchangeError>>,
        parameters: &mut dyn Tensors,
        buffers: &mut Buffers<'_>,
    ) -> Result<StepReport, StepError> {
        let step = self.step.0;
        self.answered();
        let exchanged = match exchanged.unwrap_or(Err(ExchangeError::Stopped)) {
            // The node left without a last round: its parameters are its own.
            Err(ExchangeError::Drained) => return Ok(self.left()),
            exchanged => exchanged.map_err(|error| StepError::Exchange { step, error })?,
        };
        let sizes = self.sizes.ok_or(StepError::NotSynchronized)?;
        // The other nodes rely on this node taking all of it.
        self.broken = true;
        self.follow(&exchanged)?;
        let unwritten = |error| StepError::NotWritten { step, error };
        let Exchanged {
            weight, correction, ..
        } = exchanged;
        let not_finite = if let Some(stays) = correction {
            self.mix(&exchanged.values, MixFactors { stays, weight }, parameters)
                .map_err(unwritten)?
        } else {
            self.write_parameters(&exchanged.values, weight, parameters)
                .map_err(unwritten)?;
            None
        };
        // Averaged buffers travel with the parameters of every decided round, also of one from
        // which this node was excluded.
        if exchanged.outcome.is_some() {
            self.device()
                .write_back(&exchanged.values, sizes.parameters, 1.0, buffers.model)
                .map_err(unwritten)?;
        }
        if let Some(donated) = &exchanged.donated {
            self.device()
                .write_back(donated, 0, 1.0, buffers.optimizer)
                .map_err(unwritten)?;
        }
        let due = exchanged
            .outcome
            .as_ref()
            .map_or(due, |outcome| taken(due, outcome.spec.kind));
        self.write_optimizer(due, sizes, &exchanged.values, buffers)
            .map_err(unwritten)?;
        self.broken = false;
        match not_finite {
            None => Ok(self.exchanged(due, &exchanged)),
            Some(error) => {
                self.show_refused(&error);
                Err(StepError::NotSent { step, error })
            }
        }
    }

    /// The report of an exchange; the step counter continues where the outcome says.
    fn exchanged(&mut self, due: Due, exchanged: &Exchanged) -> StepReport {
        self.excluded = false;
        if exchanged.drained {
            self.end();
        }
        let step = exchanged.next_step.0.saturating_sub(1);
        let caught_up = step != self.step.0;
        self.go_to(exchanged.next_step);
        StepReport {
            step,
            exchange: due.exchange,
            slow_step: due.takes_slow_step(),
            round: exchanged.outcome.as_ref().map(|outcome| outcome.round.0),
            contributors: exchanged.contributors,
            weight: exchanged.weight,
            nodes: exchanged.members.len(),
            node_rank: self.rank(exchanged),
            caught_up,
            drained: exchanged.drained,
        }
    }

    /// Notes that this node has left the cluster in order, and trains no further.
    fn end(&mut self) {
        self.ended = true;
        self.node.drained();
    }

    /// The report of the step at which this node is told that it has left the cluster.
    fn left(&mut self) -> StepReport {
        self.end();
        StepReport {
            drained: true,
            ..self.completed(Due::NOTHING)
        }
    }

    fn rank(&self, exchanged: &Exchanged) -> usize {
        exchanged
            .members
            .binary_search_by_key(&self.node.id(), |member| member.id)
            .unwrap_or(0)
    }

    /// Attaches `sampler` to this worker.
    pub fn attach(&mut self, sampler: &ElasticSampler) {
        let follower = sampler.follower();
        follower.attach(self.node.id(), self.index, self.node.is_recorded());
        follower.go_to(self.step);
        self.sampler = Some(follower);
    }

    fn go_to(&mut self, step: Step) {
        self.step = step;
        if self.index == 0 {
            self.node.trains(step);
        }
        if let Some(sampler) = &self.sampler {
            sampler.go_to(step);
        }
    }

    /// Passes a decided round to the sampler.
    fn follow(&mut self, exchanged: &Exchanged) -> Result<(), SamplerError> {
        if let Some(outcome) = &exchanged.outcome {
            self.rate.given(outcome.spec.gamma);
        }
        if let Some(outcome) = exchanged
            .outcome
            .as_ref()
            .filter(|outcome| outcome.spec.carries_parameters())
        {
            self.changed = outcome.changed.values;
            self.after = Some(Place {
                lineage: outcome.lineage,
                round: outcome.round,
            });
        }
        match (&self.sampler, &exchanged.outcome) {
            (Some(sampler), Some(outcome)) => {
                sampler.decided(outcome, &exchanged.members_before, &exchanged.members)
            }
            _ => Ok(()),
        }
    }

    /// Takes the node's mean over its workers; then, with base `all_reduce`, sends the request for
    /// the mean over all nodes.
    pub fn begin_gradients(
        &mut self,
        gradients: &mut dyn Tensors,
    ) -> Result<Option<Answer>, GradientError> {
        if self.waiting {
            return Err(GradientError::Abandoned);
        }
        if self.broken {
            return Err(GradientError::Broken);
        }
        if self.ended {
            return Err(ExchangeError::Drained.into());
        }
        let sizes = self.sizes.ok_or(GradientError::NotSynchronized)?;
        self.averaged_gradients = true;
        self.node.collective().mean(self.index, gradients)?;
        if self.node.settings().algorithm.base != Base::AllReduce {
            return Ok(None);
        }
        let total = elements(gradients)?;
        let mut buffer = self.node.pool().take(total);
        self.device().copy(gradients, buffer.values_mut())?;
        let request = Request {
            step: self.step,
            task: Task::Gradients,
            gamma: 0.0,
            elements: total as u64,
        };
        let model = ModelSize {
            parameters: total as u64,
            ..sizes.model()
        };
        let lent = Lent {
            frozen: Some(buffer.freeze()),
            ..Lent::default()
        };
        Ok(Some(self.ask(request, model, lent)))
    }

    /// Writes the mean over all nodes.
    pub fn finish_gradients(
        &mut self,
        exchanged: Option<Result<Exchanged, ExchangeError>>,
        gradients: &mut dyn Tensors,
    ) -> Result<(), GradientError> {
        self.answered();
        let exchanged = match exchanged.unwrap_or(Err(ExchangeError::Stopped)) {
            // The next step asks at once, and is told.
            Err(ExchangeError::Excluded | ExchangeError::Drained) => {
                // The gradients stay the node's own mean: the parameters that they would change are
                // about to be replaced, or this node has left.
                self.excluded = true;
                return Ok(());
            }
            exchanged => exchanged?,
        };
        self.follow(&exchanged)?;
        self.device()
            .write_back(&exchanged.values, 0, 1.0, gradients)?;
        Ok(())
    }

    /// Warns if the training ends with steps that no other node and no checkpoint has.
    fn warn_of_steps_alone(&self) {
        let algorithm = self.algorithm();
        if self.index > 0 || !self.is_running() || algorithm.base == Base::AllReduce {
            return;
        }
        if let Some(steps @ 1..) = steps_since_boundary(&algorithm, self.step.0) {
            tracing::warn!(
                steps,
                "the training's last steps follow no round: they are in no checkpoint, and the \
                 nodes end with different parameters; end after a multiple of tau steps (of \
                 frequency, without an outer optimizer)"
            );
        }
    }

    /// Sends the request to leave; it is answered when the node may go.
    pub fn begin_leave(&self) -> oneshot::Receiver<()> {
        self.warn_of_steps_alone();
        let (reply, answer) = oneshot::channel();
        self.node.collective().abort(self.index);
        self.node
            .actors()
            .tell_aggregator(AggregatorMessage::Leave {
                worker: self.index,
                reply,
            });
        answer
    }

    /// Tells the other workers of the node that this one is gone.
    pub fn gone(&self) {
        self.node.collective().abort(self.index);
        self.node.actors().tell_aggregator(AggregatorMessage::Gone {
            worker: self.index,
            error: ExchangeError::WorkerLeft(self.index),
        });
    }

    fn ask(&mut self, request: Request, model: ModelSize, lent: Lent) -> Answer {
        let Lent {
            frozen,
            optimizer_transfer,
            momentum,
        } = lent;
        self.waiting = true;
        self.asked =
            (self.index == 0).then(|| (std::time::Instant::now(), exchange_name(request.task)));
        let (reply, answer) = oneshot::channel();
        // Worker 0's values count for the node: the workers of a node hold the same parameters.
        let frozen = if self.index == 0 { frozen } else { None };
        let samples = match &self.sampler {
            Some(sampler) if self.index == 0 => Some(sampler.progress()),
            _ => None,
        };
        let basis = self.basis();
        let arrive = Arrive {
            worker: self.index,
            request,
            model,
            frozen,
            samples,
        };
        let arrival = Arrival {
            arrive,
            optimizer_transfer,
            momentum,
            basis,
            reply,
        };
        self.node
            .actors()
            .tell_aggregator(AggregatorMessage::Arrive(Box::new(arrival)));
        answer
    }

    /// Records that the answer has arrived.
    fn answered(&mut self) {
        self.waiting = false;
        if let Some((since, exchange)) = self.asked.take() {
            self.node.waited(exchange, since);
        }
    }

    /// Number of values that travel: parameters; with exact averages also the model's buffers; with
    /// averaged slow steps also the optimizer's.
    fn total(&self, due: Due, sizes: Sizes) -> usize {
        match due.exchange {
            Exchange::Gossip | Exchange::Nothing => sizes.parameters,
            Exchange::Average if !due.takes_slow_step() => sizes.parameters + sizes.model,
            Exchange::Average | Exchange::SlowRound => {
                sizes.parameters + sizes.model + sizes.optimizer
            }
        }
    }

    fn check_length(
        &self,
        what: &'static str,
        found: usize,
        expected: usize,
    ) -> Result<(), StepError> {
        if found != expected {
            return Err(StepError::Length {
                step: self.step.0,
                what,
                found,
                expected,
            });
        }
        Ok(())
    }

    /// Copies the values that travel into one flat buffer; for workers other than 0 the values are
    /// only checked, by their own optimizer.
    fn freeze(
        &self,
        parameters: &dyn Tensors,
        buffers: &Buffers<'_>,
        sizes: Sizes,
        total: usize,
    ) -> Result<Frozen, FreezeError> {
        if self.index != 0 {
            return Ok(self.node.pool().take(0).freeze());
        }
        let mut buffer: Buffer = self.node.pool().take(total);
        let (numerators, rest) = buffer.values_mut().split_at_mut(sizes.parameters);
        self.device()
            .freeze(parameters, self.written.as_ref(), numerators)?;
        let (model, optimizer) = rest.split_at_mut(sizes.model.min(rest.len()));
        if !model.is_empty() {
            self.device().freeze(&*buffers.model, None, model)?;
        }
        if !optimizer.is_empty() {
            self.device().freeze(&*buffers.optimizer, None, optimizer)?;
        }
        Ok(buffer.freeze())
    }

    /// Writes the parameters, and remembers on worker 0, whose values are sent, what rounding took
    /// of those that are not float32. The mixes of overlapped gossip remember nothing: what they
    /// round counts as movement of the training, as its own rounding does.
    fn write_parameters(
        &mut self,
        values: &ChunkedBuffer,
        weight: f64,
        parameters: &mut dyn Tensors,
    ) -> Result<(), TensorError> {
        self.written = None;
        let rounded = self.device().write_back(values, 0, weight, parameters)?;
        if self.index == 0 && !rounded.is_empty() {
            self.written = Some(Written::of(values, weight, &rounded));
        }
        Ok(())
    }

    /// Shows in the node's status, once a step, that this node's own values are refused: whoever
    /// watches the cluster sees there which node diverges, and that it sent nothing.
    fn show_refused(&mut self, error: &FreezeError) {
        let is_refused = matches!(error, FreezeError::NotFinite { .. });
        if is_refused && self.refused_at.replace(self.step) != Some(self.step) {
            let step = self.step.0;
            self.node.show(format!(
                "step {step}: nothing was sent: values of this node are not finite or too large: \
                 {error}"
            ));
        }
    }

    /// Whether this step's gossip overlaps the next computation.
    fn is_overlapped(&self, due: Due) -> bool {
        let overlaps = matches!(
            self.node.settings().algorithm.base,
            Base::Sgp(gossip) if gossip.staleness > 0
        );
        overlaps && due.exchange == Exchange::Gossip
    }

    /// Mixes a gossip's correction into the model. On worker 0 the values from before the mix tell
    /// the gossip peer what to send. The gossip peer is notified in any case: it has split the
    /// weight already, and the receivers wait. Returns a value that is not finite.
    fn mix(
        &self,
        correction: &ChunkedBuffer,
        factors: MixFactors,
        parameters: &mut dyn Tensors,
    ) -> Result<Option<FreezeError>, TensorError> {
        let keep = (self.index == 0).then(|| self.node.pool());
        let (before, mixed) = match self.device().mix(correction, factors, parameters, keep) {
            Ok(Mixed { before, not_finite }) => (before, Ok(not_finite)),
            Err(error) => (ChunkedBuffer::default(), Err(error)),
        };
        if self.index == 0 {
            let withheld = !matches!(mixed, Ok(None));
            self.node.actors().tell(ToGossip::Moved {
                step: self.step,
                before,
                withheld,
            });
        }
        mixed
    }

    /// The report of a step after which nothing was due.
    fn completed(&mut self, due: Due) -> StepReport {
        let step = self.step.0;
        self.go_to(Step(step + 1));
        StepReport {
            step,
            exchange: due.exchange,
            slow_step: false,
            round: None,
            contributors: 0,
            weight: 1.0,
            nodes: 0,
            node_rank: 0,
            caught_up: false,
            drained: false,
        }
    }

    /// The GPU of this worker, if its device is one.
    pub fn gpu(&self) -> Option<usize> {
        self.device().gpu()
    }

    fn device(&self) -> &dyn Device {
        self.node.device(self.index)
    }

    /// Warns of a missing gradient mean, which would otherwise go unnoticed: only worker 0's
    /// progress would count, or nothing be exchanged at all.
    fn warn_if_gradients_were_not_averaged(&self) {
        let expected =
            self.node.workers() > 1 || self.node.settings().algorithm.base == Base::AllReduce;
        if expected && !self.averaged_gradients && self.step.0 < 2 {
            tracing::warn!(
                worker = self.index,
                "average_gradients was not called before step: the workers' models diverge"
            );
        }
    }
}

/// The name of an exchange in the metrics.
fn exchange_name(task: Task) -> &'static str {
    match task {
        Task::Bootstrap => "bootstrap",
        Task::Gradients => "gradients",
        Task::Due(due) => match due.exchange {
            Exchange::Gossip => "gossip",
            Exchange::Average => "average",
            Exchange::SlowRound => "slow_round",
            Exchange::Nothing => "nothing",
        },
    }
}

/// The exchange that was done: it differs from the one due here if the node was excluded and got
/// another round.
fn taken(due: Due, kind: RoundKind) -> Due {
    match kind {
        RoundKind::Slow => Due {
            exchange: Exchange::SlowRound,
            whole_slow_step: false,
        },
        RoundKind::Average if due.exchange != Exchange::Average => Due {
            exchange: Exchange::Average,
            whole_slow_step: false,
        },
        _ => due,
    }
}

impl Pending {
    /// The exchange that was due.
    pub fn due(&self) -> Due {
        self.due
    }
}
