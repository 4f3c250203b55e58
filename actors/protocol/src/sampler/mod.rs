//! The elastic sampler: the samples that a worker trains on, as a function of seed, view and
//! decided rounds. Pure.
//!
//! The epochs, each in its own seeded order, form one endless **stream of positions**: position `p`
//! is place `p mod samples` of epoch `p / samples`. Decided rounds use positions up; [`Progress`]
//! holds those that are left. From one decided round to the next, inner step `s` (counted from the
//! round's first) of worker `j` of `G` gets the `batch` positions from `(s·G + j)·batch` on among
//! those left, oldest first. Workers are counted over the members of the view in ascending id and,
//! on a node, by index. So every batch has the same size, and a batch may extend over the end of an
//! epoch into the next.
//!
//! [`Progress::after`] follows from information that every node has, at any step that the round
//! closes at: the positions of its steps are used up if they belong to contributors; positions of
//! members that did not contribute are handed out first in the next round. A joiner continues from
//! the outcome, which carries the progress at the round's start.

mod order;
#[cfg(test)]
mod tests;

use crate::coordinator::{RoundKind, RoundSpec};
use crate::ident::{NodeId, Step};
use crate::planted::{self, Bug};
use crate::view::Member;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Maximum number of pending ranges, which are left out of order; bounds every frame that carries a
/// progress. A round of `n` steps that loses one node leaves `n` of them, and the next round uses
/// them first.
pub const PENDING_MAX: usize = 4096;
/// Upper bound of positions, so that sums of them cannot overflow.
const POSITIONS_MAX: u64 = 1 << 62;

/// The positions of the sample stream that are not used up by decided rounds; a joiner needs this
/// to continue from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct Progress {
    settings: Settings,
    /// The first inner step whose batches are not decided.
    step: Step,
    /// Ranges below `front` that are left, ascending, neither overlapping nor adjacent, none empty.
    pending: Vec<Range<u64>>,
    /// Every position from this one on is left.
    front: u64,
    skipped: u64,
}

/// Settings that all workers must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settings {
    /// Number of samples in the data set, at least 1.
    pub samples: u64,
    /// Number of samples in one batch, at least 1.
    pub batch: u64,
    /// Seed of the order of every epoch.
    pub seed: u64,
}

impl std::fmt::Display for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            samples,
            batch,
            seed,
        } = self;
        write!(
            f,
            "batches of {batch} out of {samples} samples with seed {seed}"
        )
    }
}

/// A decided round that follows a [`Progress`]: the facts that determine which samples are used up.
#[derive(Clone, Copy, Debug)]
pub struct DecidedRound<'a> {
    /// The first inner step whose batch the round does not decide; see [`samples_until`].
    pub until: Step,
    /// Nodes whose batches are used up.
    pub contributors: &'a [NodeId],
    /// The members of the view that the round began with, ascending by id.
    pub members: &'a [Member],
}

/// The first inner step whose batch a round with this spec does not decide. A mean of gradients
/// decides the batch of its own step, although the step is not over.
#[must_use]
pub fn samples_until(spec: &RoundSpec) -> Step {
    match spec.kind {
        RoundKind::Bootstrap => spec.step,
        RoundKind::Gradients | RoundKind::Average | RoundKind::Slow => {
            Step(spec.step.0.saturating_add(1))
        }
    }
}

/// Reason why samples cannot be handed out. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// No samples, an empty batch, or more than `2^32` of either.
    #[error(
        "a sampler needs 1 to 2^32 samples and batches of 1 to 2^32, not {samples} and {batch}"
    )]
    Size {
        /// Samples of the data set.
        samples: u64,
        /// Samples of one batch.
        batch: u64,
    },
    /// A received progress is malformed: its ranges are not ascending, lie beyond its front, or are
    /// too many.
    #[error("a received sampler progress is malformed")]
    Malformed,
    /// The cluster's sampler has other settings: start this node with the same.
    #[error(
        "the samplers of this cluster hand out {cluster}, this node's {own}: give it the same data \
         set, batch and seed"
    )]
    Differs {
        /// The cluster's.
        cluster: Settings,
        /// This node's.
        own: Settings,
    },
}

#[derive(Serialize, Deserialize)]
struct Unchecked {
    settings: Settings,
    step: Step,
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, PENDING_MAX>")]
    pending: Vec<(u64, u64)>,
    front: u64,
    skipped: u64,
}

impl From<Progress> for Unchecked {
    fn from(progress: Progress) -> Self {
        let Progress {
            settings,
            step,
            pending,
            front,
            skipped,
        } = progress;
        Self {
            settings,
            step,
            pending: pending
                .into_iter()
                .map(|range| (range.start, range.end))
                .collect(),
            front,
            skipped,
        }
    }
}

impl TryFrom<Unchecked> for Progress {
    type Error = SamplerError;
    fn try_from(value: Unchecked) -> Result<Self, SamplerError> {
        let ordered = value.pending.windows(2).all(|pair| pair[0].1 < pair[1].0);
        let filled = value
            .pending
            .iter()
            .all(|(start, end)| start < end && *end <= value.front);
        if !(ordered
            && filled
            && value.pending.len() <= PENDING_MAX
            && value.front <= POSITIONS_MAX)
        {
            return Err(SamplerError::Malformed);
        }
        let pending = value
            .pending
            .into_iter()
            .map(|(start, end)| start..end)
            .collect();
        Ok(Self {
            step: value.step,
            pending,
            front: value.front,
            skipped: value.skipped,
            ..Self::new(value.settings)?
        })
    }
}

impl Progress {
    /// The progress before any sample is used.
    ///
    /// # Errors
    /// No samples, an empty batch, too many of either.
    pub fn new(settings: Settings) -> Result<Self, SamplerError> {
        let Settings { samples, batch, .. } = settings;
        let bounded = |count: u64| (1..=1 << 32).contains(&count);
        if !(bounded(samples) && bounded(batch)) {
            return Err(SamplerError::Size { samples, batch });
        }
        Ok(Self {
            settings,
            step: Step(0),
            pending: Vec::new(),
            front: 0,
            skipped: 0,
        })
    }

    /// The progress of a training whose samples begin anew at `step`.
    #[must_use]
    pub fn anew_at(&self, step: Step) -> Self {
        Self {
            settings: self.settings,
            step,
            pending: Vec::new(),
            front: 0,
            skipped: 0,
        }
    }

    /// The settings that all workers share.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The first inner step whose batches are not decided.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Number of epochs that are used up completely.
    #[must_use]
    pub fn epochs_completed(&self) -> u64 {
        self.pending.first().map_or(self.front, |range| range.start) / self.settings.samples
    }

    /// Number of positions that were given up because more than [`PENDING_MAX`] ranges would have
    /// been left; 0 unless many nodes were lost in rounds of thousands of steps.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The epoch and the index of the sample at a position.
    #[must_use]
    pub fn sample(&self, position: u64) -> (u64, u64) {
        let epoch = position / self.settings.samples;
        let place = position % self.settings.samples;
        (
            epoch,
            order::place(self.settings.seed, epoch, self.settings.samples, place),
        )
    }

    /// The positions of inner step `step` for worker `index` of `node`; empty if `members` have no
    /// such worker or the step is decided.
    #[must_use]
    pub fn batch(
        &self,
        members: &[Member],
        node: NodeId,
        index: u16,
        step: Step,
    ) -> Vec<Range<u64>> {
        let lanes = Lanes::new(members, self.settings.batch);
        let (Some(own), Some(step)) = (lanes.of(members, node), step.0.checked_sub(self.step.0))
        else {
            return Vec::new();
        };
        let start = own
            .start
            .saturating_add(u64::from(index).saturating_mul(self.settings.batch));
        if start >= own.end {
            return Vec::new();
        }
        let mut cursor = Cursor::new(self);
        cursor.skip(step.saturating_mul(lanes.width).saturating_add(start));
        let mut taken = Vec::new();
        cursor.take(self.settings.batch, &mut taken);
        taken
    }

    /// The positions that `node` used up in a decided round, ascending; empty if it did not
    /// contribute.
    #[must_use]
    pub fn used(&self, round: &DecidedRound<'_>, node: NodeId) -> Vec<Range<u64>> {
        let lanes = Lanes::new(round.members, self.settings.batch);
        if !round.contributors.contains(&node) {
            return Vec::new();
        }
        let Some(own) = lanes.of(round.members, node) else {
            return Vec::new();
        };
        let mut cursor = Cursor::new(self);
        let mut used = Vec::new();
        for _ in self.step.0..round.until.0 {
            if cursor.front == POSITIONS_MAX {
                break;
            }
            cursor.skip(own.start);
            cursor.take(own.end - own.start, &mut used);
            cursor.skip(lanes.width - own.end);
        }
        used
    }

    /// The progress after a decided round.
    #[must_use]
    pub fn after(&self, round: &DecidedRound<'_>) -> Self {
        if planted::has(Bug::SamplerRepeats) {
            return Self {
                step: Step(self.step.0.max(round.until.0)),
                ..self.clone()
            };
        }
        let lanes = Lanes::new(round.members, self.settings.batch);
        let steps = round.until.0.saturating_sub(self.step.0);
        let mut cursor = Cursor::new(self);
        let mut left = Vec::new();
        let missing = lanes.missing(round);
        let whole = steps.saturating_mul(lanes.width);
        if missing
            .iter()
            .map(|lane| lane.end - lane.start)
            .sum::<u64>()
            == lanes.width
        {
            // No member contributed: all positions are left.
            return Self {
                step: Step(self.step.0.max(round.until.0)),
                ..self.clone()
            };
        }
        // Every pass leaves at least one range more, so there are few of them.
        for _ in (0..steps).take_while(|_| !missing.is_empty()) {
            if left.len() > PENDING_MAX || cursor.front == POSITIONS_MAX {
                break;
            }
            let mut at = 0;
            for lane in &missing {
                cursor.skip(lane.start - at);
                cursor.take(lane.end - lane.start, &mut left);
                at = lane.end;
            }
            cursor.skip(lanes.width - at);
        }
        let mut next = Self {
            step: Step(self.step.0.max(round.until.0)),
            ..self.clone()
        };
        let returned: u64 = left.iter().map(|range| range.end - range.start).sum();
        let missed = missing
            .iter()
            .map(|lane| lane.end - lane.start)
            .sum::<u64>()
            .saturating_mul(steps);
        let mut rest = Cursor::new(self);
        rest.skip(whole);
        left.extend(rest.pending());
        next.front = rest.front;
        next.skipped = self.skipped.saturating_add(missed.saturating_sub(returned));
        next.pending = merged(left);
        next.give_up_beyond_the_bound();
        next
    }

    fn give_up_beyond_the_bound(&mut self) {
        let given_up = self
            .pending
            .drain(PENDING_MAX.min(self.pending.len())..)
            .map(|range| range.end - range.start)
            .sum();
        self.skipped = self.skipped.saturating_add(given_up);
    }
}

/// Merges adjacent ranges.
fn merged(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => merged.push(range),
        }
    }
    merged
}

/// Assignment of one step's positions to members.
struct Lanes {
    batch: u64,
    /// Number of positions of one step.
    width: u64,
}

impl Lanes {
    fn new(members: &[Member], batch: u64) -> Self {
        let workers: u64 = members.iter().map(|member| u64::from(member.devices)).sum();
        Self {
            batch,
            width: workers.saturating_mul(batch),
        }
    }

    fn of(&self, members: &[Member], node: NodeId) -> Option<Range<u64>> {
        let rank = members.iter().position(|member| member.id == node)?;
        let before: u64 = members[..rank]
            .iter()
            .map(|member| u64::from(member.devices))
            .sum();
        Some(before * self.batch..(before + u64::from(members[rank].devices)) * self.batch)
    }

    /// The lanes of members that did not contribute, ascending; adjacent ones are merged.
    fn missing(&self, round: &DecidedRound<'_>) -> Vec<Range<u64>> {
        let missing = round
            .members
            .iter()
            .filter(|member| !round.contributors.contains(&member.id));
        merged(
            missing
                .filter_map(|member| self.of(round.members, member.id))
                .filter(|lane| !lane.is_empty())
                .collect(),
        )
    }
}

/// Iterates over the positions that are left, oldest first.
struct Cursor<'a> {
    /// The rest of the current range.
    current: Range<u64>,
    rest: &'a [Range<u64>],
    front: u64,
}

impl<'a> Cursor<'a> {
    fn new(progress: &'a Progress) -> Self {
        Self {
            current: 0..0,
            rest: &progress.pending,
            front: progress.front,
        }
    }

    /// The next contiguous positions, at most `count`.
    fn next(&mut self, count: u64) -> Range<u64> {
        if self.current.is_empty() {
            if let Some((first, rest)) = self.rest.split_first() {
                self.current = first.clone();
                self.rest = rest;
            } else {
                let start = self.front;
                // Beyond the bound there is nothing to hand out; no run gets there.
                self.front = start.saturating_add(count).min(POSITIONS_MAX);
                return start..self.front;
            }
        }
        let end = self
            .current
            .end
            .min(self.current.start.saturating_add(count));
        let next = self.current.start..end;
        self.current.start = end;
        next
    }

    fn take(&mut self, mut count: u64, taken: &mut Vec<Range<u64>>) {
        while count > 0 {
            let range = self.next(count);
            if range.is_empty() {
                return;
            }
            count -= range.end - range.start;
            match taken.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => taken.push(range),
            }
        }
    }

    fn skip(&mut self, mut count: u64) {
        while count > 0 {
            let range = self.next(count);
            if range.is_empty() {
                return;
            }
            count -= range.end - range.start;
        }
    }

    /// The ranges below the front that were not visited.
    fn pending(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        std::iter::once(self.current.clone())
            .filter(|range| !range.is_empty())
            .chain(self.rest.iter().cloned())
    }
}
