//! The mean over threads: every length, every way in which a worker can fail.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::tensors::{Half, NamedTensors};
use proptest::prelude::*;
use std::sync::Barrier;

/// Runs `work` on every rank at once; what each returned, by rank.
fn on_all<R: Send>(size: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                scope.spawn({
                    let work = &work;
                    move || work(rank)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Values that are summed with rounding, so that another order would show.
fn sample(rank: usize, length: usize) -> Vec<f32> {
    (0..length)
        .map(|index| 1.0 / (1.0 + index as f32 + 7.3 * rank as f32))
        .collect()
}

/// The definition, on one thread.
fn mean_of(lists: &[Vec<f32>]) -> Vec<u32> {
    let sum = |index: usize| {
        lists
            .iter()
            .map(|list| list[index])
            .reduce(|sum, value| sum + value)
            .unwrap()
    };
    (0..lists[0].len())
        .map(|index| (sum(index) / lists.len() as f32).to_bits())
        .collect()
}

fn bits(values: &[Vec<f32>]) -> Vec<u32> {
    values
        .concat()
        .iter()
        .map(|value| value.to_bits())
        .collect()
}

#[test]
fn the_mean_is_exact_for_every_size_and_length() {
    for size in 1..=5 {
        let collective = SharedMemory::new(size);
        assert_eq!(collective.size(), size);
        for length in [
            0,
            1,
            2,
            3,
            4,
            5,
            17,
            BLOCK_ELEMENTS * size - 1,
            3 * BLOCK_ELEMENTS * size + 11,
        ] {
            let lists: Vec<_> = (0..size).map(|rank| sample(rank, length)).collect();
            let results = on_all(size, |rank| {
                // Every worker cuts its values into other tensors.
                let (left, right) = lists[rank].split_at(length * rank / size);
                let mut tensors = vec![left.to_vec(), right.to_vec()];
                collective.mean(rank, &mut tensors).unwrap();
                bits(&tensors)
            });
            assert!(
                results.iter().all(|result| *result == mean_of(&lists)),
                "{size} workers, {length} values"
            );
        }
    }
}

#[test]
fn many_calls_in_a_row_with_growing_and_shrinking_values() {
    let collective = SharedMemory::new(3);
    on_all(3, |rank| {
        for call in 0..2000 {
            let mut values = vec![(rank * 3 + call) as f32; call * 7 % 40];
            collective.mean(rank, &mut values).unwrap();
            assert!(values.iter().all(|value| *value == (3 + call) as f32));
        }
    });
}

#[test]
fn different_lengths_fail_everywhere_and_the_next_call_works() {
    let collective = SharedMemory::new(3);
    for _ in 0..200 {
        let results = on_all(3, |rank| {
            let mut values = vec![rank as f32; if rank == 2 { 5 } else { 4 }];
            let error = collective.mean(rank, &mut values).unwrap_err();
            assert!(
                values.iter().all(|value| *value == rank as f32),
                "values must stay"
            );
            let mut next = [rank as f32];
            collective.mean(rank, &mut next).unwrap();
            (error, next)
        });
        let error = CollectiveError::Length {
            rank: 2,
            found: 5,
            expected: 4,
        };
        assert!(
            results
                .iter()
                .all(|result| *result == (error.clone(), [1.0]))
        );
    }
}

#[test]
fn abort_releases_those_who_wait_and_those_who_come() {
    let collective = SharedMemory::new(3);
    let results = on_all(3, |rank| {
        let mut values = [rank as f32];
        let result = if rank == 1 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            collective.abort(1);
            collective.abort(0);
            collective.mean(1, &mut values)
        } else {
            collective.mean(rank, &mut values)
        };
        (result, values == [rank as f32])
    });
    assert!(
        results
            .iter()
            .all(|result| *result == (Err(CollectiveError::WorkerGone(1)), true))
    );
    let alone = SharedMemory::new(1);
    alone.mean(0, &mut [1.0]).unwrap();
    alone.abort(0);
    assert_eq!(
        alone.mean(0, &mut [1.0]),
        Err(CollectiveError::WorkerGone(0))
    );
}

#[test]
fn an_abort_at_any_moment_is_all_or_nothing() {
    for spin in 0..300 {
        let collective = SharedMemory::new(2);
        let start = Barrier::new(3);
        let results = on_all(3, |rank| {
            start.wait();
            if rank == 2 {
                (0..spin * 20).for_each(|_| std::hint::spin_loop());
                collective.abort(0);
                return None;
            }
            let mut values = vec![rank as f32; 100];
            let result = collective.mean(rank, &mut values);
            let expected = if result.is_ok() { 0.5 } else { rank as f32 };
            assert!(values.iter().all(|value| *value == expected));
            Some(result)
        });
        assert_eq!(results[0], results[1]);
    }
}

/// Tensors that fail when they are read.
struct Broken {
    panics: bool,
}

impl Tensors for Broken {
    fn read(&self, _visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        assert!(!self.panics, "a planted panic");
        Err(TensorError::NotContiguous {
            name: "weight".to_owned(),
        })
    }
    fn write(&mut self, _visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        Ok(())
    }
}

#[test]
fn unreadable_tensors_fail_everywhere_and_the_next_call_works() {
    let collective = SharedMemory::new(2);
    let results = on_all(2, |rank| {
        let mut values = [rank as f32];
        let result = if rank == 1 {
            collective.mean(1, &mut Broken { panics: false })
        } else {
            collective.mean(0, &mut values)
        };
        collective.mean(rank, &mut [1.0]).unwrap();
        result
    });
    let error = CollectiveError::Tensor(TensorError::NotContiguous {
        name: "weight".to_owned(),
    });
    assert_eq!(results, [Err(error.clone()), Err(error)]);
}

#[test]
fn a_panicking_worker_counts_as_gone() {
    let collective = SharedMemory::new(2);
    std::thread::scope(|scope| {
        let panics = scope.spawn(|| collective.mean(1, &mut Broken { panics: true }));
        assert_eq!(
            collective.mean(0, &mut [1.0]),
            Err(CollectiveError::WorkerGone(1))
        );
        assert!(panics.join().is_err());
    });
}

#[test]
fn gradients_of_all_types_become_their_mean() {
    const VALUES: usize = 3000;
    let collective = SharedMemory::new(2);
    let results = on_all(2, |rank| {
        let value = [0.5, 2.0][rank];
        let mut brain = vec![Half::BFloat16.round(value); VALUES];
        let mut single = vec![value; 5];
        let mut ieee = vec![Half::Float16.round(value); VALUES];
        let mut gradients = NamedTensors::new()
            .with_half("brain", Half::BFloat16, &mut brain)
            .with("single", &mut single)
            .with_half("ieee", Half::Float16, &mut ieee);
        collective.mean(rank, &mut gradients).unwrap();
        (brain, single, ieee)
    });
    let expected = (
        vec![Half::BFloat16.round(1.25); VALUES],
        vec![1.25; 5],
        vec![Half::Float16.round(1.25); VALUES],
    );
    assert_eq!(results, [expected.clone(), expected]);
}

#[test]
fn strangers_are_refused() {
    let error = CollectiveError::NoSuchWorker { rank: 2, size: 2 };
    assert_eq!(SharedMemory::new(2).mean(2, &mut [1.0]), Err(error));
}

proptest! {
    #[test]
    fn parts_cover_everything_once(length in 0usize..200, size in 1usize..12) {
        let parts: Vec<usize> = (0..size).flat_map(|rank| part(length, rank, size)).collect();
        prop_assert_eq!(parts, (0..length).collect::<Vec<_>>());
    }
}
