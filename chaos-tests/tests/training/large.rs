//! Models of many chunks, against the same training in a single process.

use crate::support::{ByTheBook, IN_ORDER, PATIENCE_MS, bits, local_sgd, mean, on_nodes};
use slowmo::{Config, WireType, digest};
use slowmo_chaos::cluster::Link;

const NODES: usize = 3;
const VALUES: usize = 5_000_003;
const STEPS: usize = 6;
const RATE: f32 = 0.0625;
const BETA: f32 = 0.5;

/// One local step: every node pulls its values towards its own pattern.
fn pull(node: usize, step: usize, values: &mut [f32]) {
    for (index, value) in values.iter_mut().enumerate() {
        let target =
            ((index as u32).wrapping_mul(2_654_435_761) >> 16) as f32 * (node as f32 + 0.5) * 1e-5
                - step as f32;
        *value -= RATE * (*value - target);
    }
}

fn initial(length: usize) -> Vec<f32> {
    (0..length)
        .map(|index| (index % 1_000) as f32 * 0.001)
        .collect()
}

/// LocalSGD every 2 steps and SlowMo every 4, all replicas in one process.
fn single_process() -> Vec<f32> {
    let mut book = ByTheBook::new(initial(VALUES));
    let mut replicas = vec![initial(VALUES); NODES];
    for step in 0..STEPS {
        replicas
            .iter_mut()
            .enumerate()
            .for_each(|(node, values)| pull(node, step, values));
        if (step + 1) % 2 != 0 {
            continue;
        }
        book.parameters = mean(&replicas);
        if (step + 1) % 4 == 0 {
            book.slow_step(0..VALUES, BETA, RATE);
        }
        replicas = vec![book.parameters.clone(); NODES];
    }
    book.parameters
}

/// Trains on real nodes; every node's final parameters.
fn train(nodes: usize, values: usize, steps: usize, link: Link, config: &Config) -> Vec<Vec<f32>> {
    let ids: Vec<u64> = (0..nodes as u64).map(|node| 5 + 3 * node).collect();
    on_nodes(&ids, link, config, |rank, _, mut worker| {
        let mut values = initial(values);
        worker.synchronize(&mut values).unwrap();
        for step in 0..steps {
            pull(rank, step, &mut values);
            worker.step(&mut values, RATE).unwrap();
        }
        worker.leave().unwrap();
        values
    })
}

#[test]
fn five_million_parameters_with_any_number_of_replicas() {
    let expected = digest(&single_process()).unwrap();
    for (replicas, link) in [(0, IN_ORDER), (1, Link::Quic), (3, IN_ORDER)] {
        // A busy machine must not leave out a node that copies millions of values on one thread: in
        // the last round nobody would let it in again.
        let config = Config {
            replicas,
            suspect_ms: PATIENCE_MS,
            ..local_sgd(2, 4, 1.0, BETA)
        };
        for values in train(NODES, VALUES, STEPS, link, &config) {
            assert_eq!(
                digest(&values).unwrap(),
                expected,
                "{replicas} replicas over {link:?}"
            );
        }
    }
}

/// Each node sends another one more than it takes unread, on two streams: as owner and as relay.
#[test]
fn five_million_parameters_over_two_groups() {
    for wire in [WireType::Float32, WireType::BFloat16] {
        let config = Config {
            suspect_ms: PATIENCE_MS,
            group: Some("half".parse().unwrap()),
            round_wire: wire,
            ..local_sgd(2, 4, 1.0, BETA)
        };
        let config = config.with("same_host", "off").unwrap();
        let seen = train(4, VALUES, STEPS, Link::Quic, &config);
        for values in &seen {
            assert_eq!(digest(values), digest(&seen[0]), "{wire:?}");
        }
    }
}

#[test]
fn shards_of_several_chunks() {
    // More than 512 shards of 65,536 values: each shard has a whole chunk and a part of one.
    const LARGE: usize = 512 * 65_536 + 100_001;
    let seen = train(2, LARGE, 1, IN_ORDER, &local_sgd(1, 1, 1.0, BETA));
    let [mut first, mut second] = [initial(LARGE), initial(LARGE)];
    pull(0, 0, &mut first);
    pull(1, 0, &mut second);
    let anchor = initial(LARGE);
    let expected = anchor
        .iter()
        .zip(first.iter().zip(&second))
        .map(|(anchor, (first, second))| {
            let average = (first + second) / 2.0;
            anchor - RATE * ((anchor - average) / RATE)
        });
    let expected: Vec<f32> = expected.collect();
    assert!(seen.iter().all(|values| bits(values) == bits(&expected)));
}
