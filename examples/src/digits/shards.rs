//! Assignment and order of each worker's samples. Pure: the same seed gives the same batches
//! everywhere.

use crate::random::{self, Purpose};

/// In skewed shards, one of this many samples is dealt at random, the others by class.
const UNIFORM_ONE_IN: usize = 10;

/// Method of dealing the samples to the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shards {
    /// Shuffled, then dealt one after the other: every worker sees all classes equally.
    #[default]
    Even,
    /// 90 % of the samples sorted by class and dealt in contiguous blocks, the rest at random: each
    /// worker sees mostly a few classes.
    Skewed,
}

/// Deals the samples with these labels to `workers`: returns one list of sample indices per worker.
/// Each sample is in exactly one list, and the lists' lengths differ by at most two.
#[must_use]
pub fn deal(labels: &[u8], workers: usize, shards: Shards, seed: u64) -> Vec<Vec<usize>> {
    let mut samples: Vec<usize> = (0..labels.len()).collect();
    random::shuffle(&mut samples, &mut random::generator(seed, Purpose::Shards));
    let uniform = match shards {
        Shards::Even => samples.len(),
        Shards::Skewed => samples.len() / UNIFORM_ONE_IN,
    };
    let mut by_class = samples.split_off(uniform);
    by_class.sort_by_key(|sample| labels[*sample]);
    let mut dealt = vec![Vec::new(); workers];
    for (position, sample) in samples.into_iter().enumerate() {
        dealt[position % workers].push(sample);
    }
    for (position, sample) in by_class.iter().enumerate() {
        dealt[position * workers / by_class.len()].push(*sample);
    }
    dealt
}

/// The batches of one worker: a new order every epoch, which omits the samples that do not fill a
/// batch.
///
/// A batch is a function of the inner step alone, so a worker that joins at step 300 continues
/// where its predecessor was.
#[derive(Clone, Debug)]
pub struct Batches {
    samples: Vec<usize>,
    /// The sample order of `epoch`, if one was drawn.
    order: Vec<usize>,
    epoch: Option<u64>,
    batch: usize,
    seed: u64,
    worker: u32,
}

impl Batches {
    /// Batches of `batch` samples (fewer if there are fewer) for the worker with this rank over all
    /// nodes.
    #[must_use]
    pub fn new(samples: Vec<usize>, batch: usize, seed: u64, worker: u32) -> Self {
        let batch = batch.clamp(1, samples.len().max(1));
        Self {
            samples,
            order: Vec::new(),
            epoch: None,
            batch,
            seed,
            worker,
        }
    }

    /// The samples of inner step `step`; empty only if the worker has none.
    pub fn at(&mut self, step: u64) -> &[usize] {
        let per_epoch = (self.samples.len() / self.batch).max(1) as u64;
        self.draw_order(step / per_epoch);
        // The cast is safe: the value is below the number of batches.
        let start = (step % per_epoch) as usize * self.batch;
        self.order
            .get(start..start + self.batch)
            .unwrap_or_default()
    }

    fn draw_order(&mut self, epoch: u64) {
        if self.epoch == Some(epoch) {
            return;
        }
        self.order.clone_from(&self.samples);
        random::shuffle(
            &mut self.order,
            &mut random::generator(
                self.seed,
                Purpose::Order {
                    worker: self.worker,
                    epoch,
                },
            ),
        );
        self.epoch = Some(epoch);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::digits::Dataset;

    fn histogram(samples: &[usize], labels: &[u8]) -> [usize; 10] {
        let mut counts = [0; 10];
        for sample in samples {
            counts[usize::from(labels[*sample])] += 1;
        }
        counts
    }

    #[test]
    fn every_sample_is_dealt_exactly_once() {
        let train = Dataset::train().unwrap();
        for shards in [Shards::Even, Shards::Skewed] {
            for workers in [1, 2, 3, 4, 7, 32] {
                let dealt = deal(train.labels(), workers, shards, 3);
                assert_eq!(dealt, deal(train.labels(), workers, shards, 3));
                let mut all: Vec<usize> = dealt.concat();
                all.sort_unstable();
                assert_eq!(
                    all,
                    (0..1437).collect::<Vec<_>>(),
                    "{shards:?} over {workers}"
                );
                let lengths = dealt.iter().map(Vec::len);
                assert!(
                    lengths.clone().max().unwrap() - lengths.min().unwrap() <= 2,
                    "{shards:?} over {workers}"
                );
            }
        }
    }

    #[test]
    fn even_shards_hold_every_class_alike() {
        let train = Dataset::train().unwrap();
        for shard in deal(train.labels(), 4, Shards::Even, 0) {
            for count in histogram(&shard, train.labels()) {
                assert!((20..=55).contains(&count), "{count} of about 36");
            }
        }
    }

    #[test]
    fn skewed_shards_hold_nine_tenths_of_few_classes() {
        let train = Dataset::train().unwrap();
        for (worker, shard) in deal(train.labels(), 4, Shards::Skewed, 0)
            .iter()
            .enumerate()
        {
            let counts = histogram(shard, train.labels());
            // A quarter of ten sorted classes touches at most four of them, next to one another.
            let most = counts
                .windows(4)
                .map(|four| four.iter().sum::<usize>())
                .max()
                .unwrap();
            let share = most as f64 / shard.len() as f64;
            assert!(
                (0.9..0.99).contains(&share),
                "worker {worker}: {share} {counts:?}"
            );
        }
    }

    #[test]
    fn an_epoch_uses_each_sample_once_and_every_step_can_be_asked_for_directly() {
        let mut batches = Batches::new((100..133).collect(), 16, 5, 2);
        let first = batches.at(0).to_vec();
        let second = batches.at(1).to_vec();
        let mut both = [first.clone(), second.clone()].concat();
        both.sort_unstable();
        both.dedup();
        assert_eq!(both.len(), 32);
        let third = batches.at(2).to_vec();
        assert_ne!(third, first);
        assert_eq!(Batches::new((100..133).collect(), 16, 5, 2).at(2), third);
        assert_eq!(batches.at(1), second);
        assert_ne!(Batches::new((100..133).collect(), 16, 5, 3).at(0), first);
    }

    #[test]
    fn few_samples_make_one_small_batch() {
        assert_eq!(Batches::new(vec![9], 16, 0, 0).at(77), [9]);
        assert!(Batches::new(Vec::new(), 16, 0, 0).at(77).is_empty());
    }
}
