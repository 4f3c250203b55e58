//! The elastic sampler: which samples a worker trains on, whatever nodes join, leave or are lost.
//! Follows the worker that it is attached to; every decision is `slowmo_protocol::sampler`'s.

use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::{NodeId, Step};
pub use slowmo_protocol::sampler::SamplerError;
use slowmo_protocol::sampler::{DecidedRound, Progress, Settings, samples_until};
use slowmo_protocol::view::Member;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ranges of positions that are remembered for a record of one round, about one a step; steps
/// beyond go unrecorded.
const HANDED_OUT_MAX: usize = 1 << 20;

/// Hands each worker the batches of its inner steps so that every sample of an epoch is used
/// exactly once in the decided rounds of the cluster. What a node trained on in a round that was
/// decided without it is handed out again, to whoever is there then.
///
/// Make one a worker, with the same samples, batch and seed on every node, and attach it before the
/// worker synchronizes. All else follows: the worker's steps move it on, and its state travels with
/// the rounds.
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
/// while sampler.epochs_completed() < 10 {
///     train(sampler.next_batch());
///     worker.step(&mut parameters, 0.1)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// A batch belongs to an inner step, so asking twice in one step gives the same batch.
#[derive(Debug)]
pub struct ElasticSampler {
    shared: Arc<Mutex<State>>,
    batch: Vec<usize>,
}

#[derive(Debug)]
struct State {
    /// As of the last decided round.
    progress: Progress,
    /// The view that the current round began with, ascending by id; empty until the worker
    /// synchronized.
    members: Arc<[Member]>,
    node: NodeId,
    index: u16,
    /// The worker's inner step.
    step: Step,
    /// Where that is recorded: what was handed out since the last decided round.
    handed_out: Option<HandedOut>,
    /// Positions used up in decided rounds and not taken yet; `None` if nobody wants them.
    used: Option<Vec<(u64, Vec<Range<u64>>)>>,
}

/// Positions of the sample stream that a worker asked for, each step's once.
#[derive(Debug, Default)]
struct HandedOut {
    ranges: Vec<(u64, u64)>,
    /// The step that comes next.
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
    /// Epochs and sample indices, in the order of the stream.
    pub samples: Vec<(u64, usize)>,
}

impl ElasticSampler {
    /// Batches of `batch` out of `samples` samples; `seed` drives the order of every epoch.
    ///
    /// # Errors
    /// No samples or an empty batch.
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
    /// they pile up until taken.
    #[must_use]
    pub fn recording(self) -> Self {
        lock(&self.shared).used = Some(Vec::new());
        self
    }

    /// The indices of the samples for the worker's current inner step, always `batch` of them.
    /// Empty while the sampler is attached to no worker that has synchronized, and once the
    /// worker's node has left the view.
    pub fn next_batch(&mut self) -> &[usize] {
        let state = &mut *lock(&self.shared);
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

    /// How many epochs are used up whole in decided rounds; the same on every node after the same
    /// round.
    #[must_use]
    pub fn epochs_completed(&self) -> u64 {
        lock(&self.shared).progress.epochs_completed()
    }

    /// The samples that this node used in decided rounds since the last call, one entry a round; of
    /// a node with several workers each sampler tells the whole node's. Empty without
    /// [`ElasticSampler::recording`].
    #[must_use]
    pub fn take_used(&mut self) -> Vec<UsedSamples> {
        let mut state = lock(&self.shared);
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

/// The worker's side of an attached sampler.
#[derive(Clone, Debug)]
pub(crate) struct Follower(Arc<Mutex<State>>);

impl Follower {
    /// Says whose batches the sampler hands out.
    pub fn attach(&self, node: NodeId, index: usize, recorded: bool) {
        let mut state = lock(&self.0);
        state.handed_out = recorded.then(HandedOut::default);
        state.node = node;
        state.index = u16::try_from(index).unwrap_or(u16::MAX);
    }

    /// What travels with a contribution: what was left when the current round began.
    pub fn progress(&self) -> Progress {
        lock(&self.0).progress.clone()
    }

    /// Goes on behind what a checkpoint says is left.
    ///
    /// # Errors
    /// The checkpoint's sampler had other settings. The sampler is unchanged.
    pub fn resume(&self, left: &Progress) -> Result<(), SamplerError> {
        let mut state = lock(&self.0);
        let cluster = left.settings();
        let own = state.progress.settings();
        if cluster != own {
            return Err(SamplerError::Differs { cluster, own });
        }
        state.progress = left.clone();
        Ok(())
    }

    /// The positions that were handed out since the last decided round, ascending by step; nothing
    /// where that is not recorded.
    pub fn handed_out(&self) -> Vec<(u64, u64)> {
        let state = lock(&self.0);
        state
            .handed_out
            .iter()
            .flat_map(|handed_out| handed_out.ranges.iter().copied())
            .collect()
    }

    /// A round was decided, between members `before` and `after`, both ascending by id.
    ///
    /// # Errors
    /// The cluster's sampler has other settings. The sampler is unchanged.
    pub fn decided(
        &self,
        outcome: &Outcome,
        before: &[Member],
        after: &Arc<[Member]>,
    ) -> Result<(), SamplerError> {
        let mut state = lock(&self.0);
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

    /// The worker works on this inner step now.
    pub fn go_to(&self, step: Step) {
        lock(&self.0).step = step;
    }
}

fn index(progress: &Progress, position: u64) -> (u64, usize) {
    let (epoch, sample) = progress.sample(position);
    // A sample is an index of the user's data set, which is a `usize`.
    (epoch, sample as usize)
}

/// A poisoned lock is only a panic elsewhere between two assignments of whole values.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
