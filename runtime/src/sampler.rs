//! The elastic sampler: decides which samples a worker trains on while nodes join, leave or are
//! lost. It follows the worker that it is attached to; `slowmo_protocol::sampler` makes every
//! decision.

use parking_lot::Mutex;
use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::{NodeId, Step};
pub use slowmo_protocol::sampler::SamplerError;
use slowmo_protocol::sampler::{DecidedRound, Progress, Settings, samples_until};
use slowmo_protocol::view::Member;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of position ranges that are remembered for the record of one round, about one for
/// each step; further steps are not recorded.
const HANDED_OUT_MAX: usize = 1 << 20;

/// Gives each worker the batches of its inner steps so that every sample of an epoch is used
/// exactly once in the decided rounds of the cluster. Samples that a node trained on in a round
/// that was decided without it are handed out again, to the nodes present then.
///
/// Create one for each worker, with the same samples, batch and seed on every node, and attach it
/// before the worker synchronizes. The rest is automatic: the worker's steps advance it, and its
/// state travels with the rounds.
///
/// ```no_run
/// # fn train(_: &[usize]) {}
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = slowmo::Runtime::builder().config(slowmo::Config::load()?).spawn()?;
/// # let mut parameters = vec![0.0f32; 4];
/// let mut worker = runtime.worker(0)?;
/// let mut sampler = slowmo::ElasticSampler::new(1437, 16, 0)?;
/// worker.attach_sampler(&sampler);
/// worker.synchronize(&mut parameters)?;
/// while worker.is_running() && sampler.epochs_completed() < 10 {
///     train(sampler.next_batch());
///     worker.step(&mut parameters, 0.1)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// A batch belongs to an inner step, so two requests in one step give the same batch.
#[derive(Debug)]
pub struct ElasticSampler {
    shared: Arc<Mutex<State>>,
    batch: Vec<usize>,
}

#[derive(Debug)]
struct State {
    /// The progress as of the last decided round.
    progress: Progress,
    /// The view at the beginning of the current round, ascending by id; empty until the worker has
    /// synchronized.
    members: Arc<[Member]>,
    node: NodeId,
    index: u16,
    /// The worker's inner step.
    step: Step,
    /// The positions handed out since the last decided round, if that is recorded.
    handed_out: Option<HandedOut>,
    /// Positions used in decided rounds and not taken yet; `None` unless the sampler records them.
    used: Option<Vec<(u64, Vec<Range<u64>>)>>,
}

/// Positions of the sample stream that a worker requested, once for each step.
#[derive(Debug, Default)]
struct HandedOut {
    ranges: Vec<(u64, u64)>,
    /// The next step.
    next: Step,
}

impl HandedOut {
    fn note(&mut self, step: Step, positions: &[Range<u64>]) {
        if step >= self.next && self.ranges.len() < HANDED_OUT_MAX {
            self.next = Step(step.0.saturating_add(1));
            self.ranges
                .extend(positions.iter().map(|range| (range.start, range.end)));
        }
    }
}

/// Samples that this worker's node used in one decided round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedSamples {
    /// The round.
    pub round: u64,
    /// Pairs of epoch and sample index, in the order of the stream.
    pub samples: Vec<(u64, usize)>,
}

impl ElasticSampler {
    /// Creates a sampler of batches of `batch` out of `samples` samples; `seed` determines the
    /// order of every epoch.
    ///
    /// # Errors
    /// There are no samples, or the batch is empty.
    pub fn new(samples: usize, batch: usize, seed: u64) -> Result<Self, SamplerError> {
        let progress = Progress::new(Settings {
            samples: samples as u64,
            batch: batch as u64,
            seed,
        })?;
        let members = Vec::new().into();
        let state = State {
            progress,
            members,
            node: NodeId(0),
            index: 0,
            step: Step(0),
            handed_out: None,
            used: None,
        };
        Ok(Self {
            shared: Arc::new(Mutex::new(state)),
            batch: Vec::new(),
        })
    }

    /// Keeps which samples this node used in decided rounds, for [`ElasticSampler::take_used`];
    /// they accumulate until taken.
    #[must_use]
    pub fn recording(self) -> Self {
        self.shared.lock().used = Some(Vec::new());
        self
    }

    /// The indices of the samples for the worker's current inner step, always `batch` of them.
    /// Empty until the sampler is attached to a worker that has synchronized, and after the
    /// worker's node has left the view.
    pub fn next_batch(&mut self) -> &[usize] {
        let state = &mut *self.shared.lock();
        let positions = state
            .progress
            .batch(&state.members, state.node, state.index, state.step);
        self.batch.clear();
        if let Some(handed_out) = &mut state.handed_out {
            handed_out.note(state.step, &positions);
        }
        self.batch.extend(
            positions
                .into_iter()
                .flatten()
                .map(|position| index(&state.progress, position).1),
        );
        &self.batch
    }

    /// Number of epochs used completely in decided rounds; the same on every node after the same
    /// round.
    #[must_use]
    pub fn epochs_completed(&self) -> u64 {
        self.shared.lock().progress.epochs_completed()
    }

    /// The samples that this node used in decided rounds since the last call, one entry for each
    /// round; on a node with several workers each sampler reports the whole node's. Empty without
    /// [`ElasticSampler::recording`].
    #[must_use]
    pub fn take_used(&mut self) -> Vec<UsedSamples> {
        let mut state = self.shared.lock();
        let used = state.used.as_mut().map(std::mem::take).unwrap_or_default();
        let samples = |positions: Vec<Range<u64>>| {
            positions
                .into_iter()
                .flatten()
                .map(|at| index(&state.progress, at))
                .collect()
        };
        used.into_iter()
            .map(|(round, positions)| UsedSamples {
                round,
                samples: samples(positions),
            })
            .collect()
    }

    pub(crate) fn follower(&self) -> Follower {
        Follower(Arc::clone(&self.shared))
    }
}

/// The worker's handle to an attached sampler.
#[derive(Clone, Debug)]
pub(crate) struct Follower(Arc<Mutex<State>>);

impl Follower {
    /// Sets the worker whose batches the sampler hands out.
    pub fn attach(&self, node: NodeId, index: usize, recorded: bool) {
        let mut state = self.0.lock();
        state.handed_out = recorded.then(HandedOut::default);
        state.node = node;
        state.index = u16::try_from(index).unwrap_or(u16::MAX);
    }

    /// The progress that travels with a contribution: as of the beginning of the current round.
    pub fn progress(&self) -> Progress {
        self.0.lock().progress.clone()
    }

    /// Continues with the samples that a checkpoint says are left.
    ///
    /// # Errors
    /// The checkpoint's sampler had different settings. The sampler is unchanged.
    pub fn resume(&self, left: &Progress) -> Result<(), SamplerError> {
        let mut state = self.0.lock();
        let cluster = left.settings();
        let own = state.progress.settings();
        if cluster != own {
            return Err(SamplerError::Differs { cluster, own });
        }
        state.progress = left.clone();
        Ok(())
    }

    /// Begins the samples anew at `step`, where a training is resumed without its samples.
    pub fn begin_anew(&self, step: Step) {
        let mut state = self.0.lock();
        state.progress = state.progress.anew_at(step);
    }

    /// The positions handed out since the last decided round, ascending by step; empty if they are
    /// not recorded.
    pub fn handed_out(&self) -> Vec<(u64, u64)> {
        let state = self.0.lock();
        state
            .handed_out
            .iter()
            .flat_map(|handed_out| handed_out.ranges.iter().copied())
            .collect()
    }

    /// Applies a decided round, with the members `before` and `after` it, both ascending by id.
    ///
    /// # Errors
    /// The cluster's sampler has different settings. The sampler is unchanged.
    pub fn decided(
        &self,
        outcome: &Outcome,
        before: &[Member],
        after: &Arc<[Member]>,
    ) -> Result<(), SamplerError> {
        let mut state = self.0.lock();
        let start = outcome.samples.as_ref().unwrap_or(&state.progress);
        let cluster = start.settings();
        let own = state.progress.settings();
        if cluster != own {
            return Err(SamplerError::Differs { cluster, own });
        }
        let round = DecidedRound {
            until: samples_until(&outcome.spec),
            contributors: &outcome.contributors,
            members: before,
        };
        let used = start.used(&round, state.node);
        let next = start.after(&round);
        if let Some(kept) = state.used.as_mut()
            && !used.is_empty()
        {
            kept.push((outcome.round.0, used));
        }
        state.handed_out = state.handed_out.take().map(|_| HandedOut::default());
        state.progress = next;
        state.members = Arc::clone(after);
        Ok(())
    }

    /// Moves the sampler to the worker's current inner step.
    pub fn go_to(&self, step: Step) {
        self.0.lock().step = step;
    }
}

fn index(progress: &Progress, position: u64) -> (u64, usize) {
    let (epoch, sample) = progress.sample(position);
    // A sample is an index of the user's data set, which is a `usize`.
    (epoch, sample as usize)
}
