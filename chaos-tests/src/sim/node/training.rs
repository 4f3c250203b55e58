//! The training thread of a simulated node: takes inner steps and performs at each the exchange
//! that the algorithm's schedule demands, as a worker's session does.

use crate::random::Random;
use crate::sim::config::Config;
use crate::sim::mail::{Arrival, Mail, Output, ToTraining};
use slowmo_protocol::aggregator::{Request, Task};
use slowmo_protocol::algorithm::{Algorithm, Base, BufferStrategy};
use slowmo_protocol::coordinator::{Outcome, RoundError, RoundKind};
use slowmo_protocol::ident::{Incarnation, NodeId, Step};
use slowmo_protocol::membership::BootstrapError;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::node::vectors::{Values, Vectors};
use slowmo_protocol::node::{Arrive, Failure, Released, ToAggregator, ToGossip};
use slowmo_protocol::sampler::{DecidedRound, Progress, samples_until};
use slowmo_protocol::schedule::{Due, Exchange, due};
use slowmo_protocol::view::Member;
use std::sync::Arc;

/// The inner learning rate of every run: a power of two, so that dividing by it is exact.
pub const GAMMA: f32 = 0.125;

/// The activity of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Waits for the bootstrap, or to be admitted.
    Synchronizing,
    /// Computes an inner step.
    Computing,
    /// Waits for a mean of gradients.
    Gradients,
    /// Waits for an exchange of this kind.
    Exchanging(Due),
    /// Waits for permission to leave.
    Leaving,
    /// Ended with an error, or left.
    Ended,
}

/// The thread and its memory.
pub struct TrainingPart {
    me: NodeId,
    incarnation: Incarnation,
    /// As configured.
    configured: Algorithm,
    /// With the settings that changed.
    algorithm: Algorithm,
    copies_buffers: bool,
    /// The model.
    pub model: Vec<f64>,
    buffers: Vec<f64>,
    /// Number of the current inner step.
    pub step: Step,
    /// The current activity.
    pub doing: Doing,
    excluded: bool,
    computing: u64,
    compute: (u64, u64),
    /// Step at which the training is over.
    until: Option<u64>,
    /// Duration of an inner step in hundredths of the usual time.
    pub slowness: u64,
    random: Random,
    progress: Option<Progress>,
    members: Arc<[Member]>,
    used: Vec<(u64, u64)>,
    /// The last decided round whose parameters the thread took.
    pub after: Option<slowmo_protocol::trace::Place>,
    /// Number of inner steps taken.
    pub steps: u64,
}

impl TrainingPart {
    /// A thread that has not called `synchronize`.
    pub fn new(me: NodeId, incarnation: Incarnation, config: &Config) -> Self {
        let model = (0..config.parameters)
            .map(|index| me.0 as f64 + incarnation.0 as f64 / 64.0 + index as f64 / 8.0)
            .collect();
        Self {
            me,
            incarnation,
            configured: config.algorithm,
            algorithm: config.algorithm,
            copies_buffers: config.buffers > 0,
            model,
            buffers: vec![0.0; config.buffers],
            step: Step(0),
            doing: Doing::Synchronizing,
            excluded: false,
            computing: 0,
            compute: config.compute,
            until: config.trains_until,
            slowness: 100,
            random: Random::new(
                config.seed ^ me.0.rotate_left(20) ^ incarnation.0.rotate_left(40),
                2,
            ),
            progress: config
                .samples
                .and_then(|settings| Progress::new(settings).ok()),
            members: Arc::default(),
            used: Vec::new(),
            after: None,
            steps: 0,
        }
    }

    /// Calls `synchronize`.
    pub fn begin(&mut self, outputs: &mut Vec<Output>) {
        let request = Request {
            step: Step(0),
            task: Task::Bootstrap,
            gamma: 0.0,
            elements: self.model.len() as u64,
        };
        self.ask(request, Some(self.model.clone()), outputs);
    }

    fn size(&self) -> ModelSize {
        let optimizer = if self.copies_buffers {
            self.buffers.len() as u64
        } else {
            0
        };
        ModelSize {
            optimizer,
            ..ModelSize::of(self.model.len() as u64)
        }
    }

    fn ask(&mut self, request: Request, values: Option<Vec<f64>>, outputs: &mut Vec<Output>) {
        let mut model = self.size();
        if request.task == Task::Gradients {
            model.parameters = request.elements;
        }
        let arrive = Arrive {
            worker: 0,
            request,
            model,
            frozen: values.map(Arc::new),
            samples: self.progress.clone(),
        };
        let arrival = Arrival {
            arrive,
            buffers: Arc::new(self.buffers.clone()),
            used: self.used.clone(),
        };
        outputs.push(Output::Tell(Mail::Arrive(Box::new(arrival))));
    }

    /// Handles a message.
    pub fn take(&mut self, message: ToTraining, outputs: &mut Vec<Output>) {
        match message {
            ToTraining::Computed(computing)
                if computing == self.computing && self.doing == Doing::Computing =>
            {
                self.computed(outputs)
            }
            ToTraining::Computed(_) => {}
            ToTraining::Exchanged(exchanged) => self.exchanged(&exchanged, outputs),
            ToTraining::Excluded => {
                self.excluded = true;
                self.exchange(outputs);
            }
            ToTraining::Drained => self.leave(outputs),
            ToTraining::Failed(failure) => self.fail(failure, outputs),
            ToTraining::Left => {
                self.doing = Doing::Ended;
                outputs.push(Output::Exit);
            }
        }
    }

    fn fail(&mut self, failure: Failure, outputs: &mut Vec<Output>) {
        if self.doing == Doing::Leaving {
            return;
        }
        let over = says_it_is_over(&failure);
        outputs.push(Output::Fail(failure));
        if over {
            self.leave(outputs);
        } else {
            self.doing = Doing::Ended;
        }
    }

    /// Begins an inner step, or leaves after the last one.
    fn compute(&mut self, outputs: &mut Vec<Output>) {
        if self.until.is_some_and(|until| self.step.0 >= until) {
            return self.leave(outputs);
        }
        self.doing = Doing::Computing;
        self.computing += 1;
        let (base, more) = self.compute;
        let takes = (base + self.random.below(more)) * self.slowness / 100;
        outputs.push(Output::Later(
            takes,
            Mail::Training(ToTraining::Computed(self.computing)),
        ));
    }

    /// Completes the step: every node drifts in its own way, by eighths, so that sums are exact.
    fn computed(&mut self, outputs: &mut Vec<Output>) {
        self.steps += 1;
        if self.algorithm.base == Base::AllReduce {
            self.doing = Doing::Gradients;
            let gradients: Vec<f64> = (0..self.model.len()).map(|_| self.drift()).collect();
            let request = Request {
                step: self.step,
                task: Task::Gradients,
                gamma: 0.0,
                elements: gradients.len() as u64,
            };
            self.use_samples();
            return self.ask(request, Some(gradients), outputs);
        }
        for index in 0..self.model.len() {
            self.model[index] += self.drift();
        }
        for index in 0..self.buffers.len() {
            self.buffers[index] = self.buffers[index] / 2.0 + self.drift();
        }
        self.use_samples();
        self.exchange(outputs);
    }

    fn drift(&mut self) -> f64 {
        self.random.below(17) as f64 / 64.0 - 0.125
    }

    fn use_samples(&mut self) {
        let Some(progress) = &self.progress else {
            return;
        };
        let batch = progress.batch(&self.members, self.me, 0, self.step);
        self.used
            .extend(batch.into_iter().map(|range| (range.start, range.end)));
    }

    /// Performs the exchange that the algorithm's schedule demands at this step.
    fn exchange(&mut self, outputs: &mut Vec<Output>) {
        let due = due(&self.algorithm, self.step);
        if due == Due::NOTHING && !self.excluded {
            self.step = Step(self.step.0 + 1);
            return self.compute(outputs);
        }
        self.doing = Doing::Exchanging(due);
        let overlapped = matches!(self.algorithm.base, Base::Sgp(gossip) if gossip.staleness > 0)
            && due.exchange == Exchange::Gossip;
        let gamma = if due.takes_slow_step() { GAMMA } else { 0.0 };
        let request = Request {
            step: self.step,
            task: Task::Due(due),
            gamma,
            elements: self.model.len() as u64,
        };
        let values = (!overlapped).then(|| self.model.clone());
        self.ask(request, values, outputs);
    }

    fn exchanged(&mut self, exchanged: &Released<Vectors>, outputs: &mut Vec<Output>) {
        if let Some(outcome) = &exchanged.outcome {
            self.follow(outcome, &exchanged.members_before);
        }
        let gradients = self.doing == Doing::Gradients;
        if let Some(values) = &exchanged.values {
            match exchanged.stays {
                _ if gradients => self
                    .model
                    .iter_mut()
                    .zip(values.iter())
                    .for_each(|(model, gradient)| *model += gradient),
                Some(stays) => self.mix(values, stays, exchanged.weight, outputs),
                None => {
                    self.model = values
                        .iter()
                        .take(self.model.len())
                        .map(|value| value / exchanged.weight)
                        .collect()
                }
            }
        }
        let kind = exchanged.outcome.as_ref().map(|outcome| outcome.spec.kind);
        self.take_buffers(exchanged.donated.as_ref(), kind);
        if exchanged.drained {
            return self.leave(outputs);
        }
        if gradients {
            return self.exchange(outputs);
        }
        self.excluded = false;
        self.step = exchanged.next_step;
        self.compute(outputs);
    }

    fn take_buffers(&mut self, donated: Option<&Values>, kind: Option<RoundKind>) {
        if let Some(donated) = donated {
            self.buffers.clone_from(donated);
        }
        if kind == Some(RoundKind::Slow) && self.algorithm.buffers == BufferStrategy::Reset {
            self.buffers.fill(0.0);
        }
    }

    /// Overlapped gossip: `x = stays·m + c`. The gossip peer is told the previous model.
    fn mix(&mut self, correction: &Values, stays: f64, weight: f64, outputs: &mut Vec<Output>) {
        let before = Arc::new(self.model.clone());
        let mixed = self.model.iter().zip(correction.iter());
        self.model = mixed
            .map(|(model, correction)| (stays * model + correction) / weight)
            .collect();
        outputs.push(Output::tell(ToGossip::Moved {
            step: self.step,
            before,
            withheld: false,
        }));
    }

    /// Passes a decided round to the sampler.
    fn follow(&mut self, outcome: &Outcome, members: &Arc<[Member]>) {
        if outcome.spec.carries_parameters() {
            self.algorithm = outcome.changed.values.applied_to(self.configured);
            self.after = Some(slowmo_protocol::trace::Place {
                lineage: outcome.lineage,
                round: outcome.round,
            });
        }
        if let Some(progress) = &self.progress {
            let start = outcome.samples.as_ref().unwrap_or(progress);
            let round = DecidedRound {
                until: samples_until(&outcome.spec),
                contributors: &outcome.contributors,
                members,
            };
            self.progress = Some(start.after(&round));
            self.used.clear();
        }
        self.members = outcome.view.members().into();
    }

    fn leave(&mut self, outputs: &mut Vec<Output>) {
        if !matches!(self.doing, Doing::Leaving | Doing::Ended) {
            self.doing = Doing::Leaving;
            outputs.push(Output::tell(ToAggregator::Leave(0)));
        }
    }

    /// The incarnation of the node.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Progress through the samples.
    pub fn progress(&self) -> Option<&Progress> {
        self.progress.as_ref()
    }
}

/// Whether a training failed because the others' is over: the node then leaves like them.
pub fn says_it_is_over(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Bootstrapping(BootstrapError::Over { .. })
            | Failure::Round(RoundError::Over { .. })
    )
}
