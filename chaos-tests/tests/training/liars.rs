//! A member whose values or weights cannot be right, as of a broken machine or a hostile program:
//! the others name it, go on without it, and hold one finite model.

use crate::support::{Training, bits, in_hub, local_sgd, noisy, overlapped, sgp, train, uneven};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime};
use slowmo_chaos::cluster::in_its_half;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::wire::{Bulk, BulkHeader};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const VALUES: usize = 600;
const IDS: [u64; 4] = [1, 2, 3, 4];
const STEPS: u64 = 16;
/// The first round whose streams are falsified.
const LIES_FROM: u64 = 3;
/// A lie costs a few attempts, not a timeout.
const SOON: Duration = Duration::from_secs(15);

/// When the honest nodes end: together, once each has trained for [`STEPS`]. A node that was left
/// out joins again only while others train.
#[derive(Default)]
struct Finish {
    trained: BTreeSet<u64>,
    /// The last step of all; no node is then more than one step ahead.
    last: Option<u64>,
}

impl Finish {
    /// Notes a step of a node; whether it was its last one.
    fn is_over(&mut self, node: u64, step: u64, honest: usize) -> bool {
        if step >= STEPS {
            self.trained.insert(node);
        }
        if self.trained.len() == honest {
            self.last.get_or_insert(step + 2);
        }
        self.last.is_some_and(|last| step >= last)
    }
}

/// The training of an honest node, and the events of its status.
struct Witness {
    training: Training,
    events: Vec<String>,
}

/// The nodes: six where they are in groups of odd and of even ids, so that more than one node sees
/// what a relay does.
fn ids(config: &Config) -> &'static [u64] {
    if config.group.is_some() {
        &[1, 2, 3, 4, 5, 6]
    } else {
        &IDS
    }
}

/// Trains on nodes of which one lies. What the others saw.
fn witnesses(config: &Config, liar: u64, lie: fn(&mut Bulk) -> Vec<u8>) -> Vec<Witness> {
    let hub = MemoryHub::new(None);
    let ids = ids(config);
    let config = Config {
        min_nodes: ids.len(),
        ..config.clone()
    };
    let nodes: Vec<Runtime> = ids
        .iter()
        .map(|id| in_hub(&hub, *id, ids, &in_its_half(&config, *id)))
        .collect();
    let done = AtomicBool::new(false);
    let finish = Mutex::new(Finish::default());
    let together = Barrier::new(ids.len() - 1);
    thread::scope(|scope| {
        let mut honest = Vec::new();
        for (id, node) in ids.iter().zip(&nodes) {
            let mut worker = node.worker(0).unwrap();
            if *id == liar {
                node.faults().unwrap().falsify(Arc::new(move |_, header| {
                    let BulkHeader::V1 { header, content } = header;
                    if header.round.0 < LIES_FROM {
                        return Vec::new();
                    }
                    lie(content)
                }));
                let done = &done;
                scope.spawn(move || {
                    let mut values = uneven(VALUES);
                    worker.synchronize(&mut values).unwrap();
                    while !done.load(Ordering::Relaxed) {
                        // Whatever it is told, it goes on.
                        if worker.step(&mut values, 0.1).is_err() {
                            thread::sleep(Duration::from_millis(5));
                        }
                    }
                });
                continue;
            }
            let done = &done;
            let together = &together;
            let finish = &finish;
            honest.push(scope.spawn(move || {
                let training = train(&mut worker, *id, VALUES, |report| {
                    let mut finish = finish.lock().unwrap();
                    finish.is_over(*id, report.step + 1, ids.len() - 1)
                });
                together.wait();
                done.store(true, Ordering::Relaxed);
                let events = node.status().events.into_iter();
                Witness {
                    training,
                    events: events.map(|event| event.what).collect(),
                }
            }));
        }
        let seen = honest
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        // The liar waits to be admitted again, which nobody does.
        for (_, node) in ids.iter().zip(&nodes).filter(|(id, _)| **id == liar) {
            node.faults().unwrap().crash();
        }
        seen
    })
}

/// All honest nodes hold one finite model, and at least `by` of them name the liar.
fn assert_named(config: &Config, liar: u64, by: usize, lie: fn(&mut Bulk) -> Vec<u8>) {
    let begun = Instant::now();
    let seen = witnesses(config, liar, lie);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for witness in &seen {
        let values = witness.training.seen.values.last().unwrap();
        assert!(values.iter().all(|value| value.abs() < 1e3), "{values:?}");
        let first = seen[0].training.seen.values.last().unwrap();
        assert_eq!(bits(values), bits(first));
    }
    let names = |witness: &&Witness| {
        let named = |event: &&String| event.contains(&format!("node {liar} sent"));
        witness.events.iter().any(|event| named(&event))
    };
    let named = seen.iter().filter(names).count();
    let events: Vec<_> = seen.iter().map(|witness| &witness.events).collect();
    assert!(named >= by, "{events:#?}");
    let accused = |id: u64| {
        let name = format!("node {id} sent");
        seen.iter()
            .any(|witness| witness.events.iter().any(|event| event.contains(&name)))
    };
    for honest in ids(config).iter().copied().filter(|id| *id != liar) {
        assert!(!accused(honest), "{events:#?}");
    }
}

fn not_a_number() -> Vec<u8> {
    f32::NAN.to_le_bytes().to_vec()
}

fn contributes_nan(content: &mut Bulk) -> Vec<u8> {
    match content {
        Bulk::Contribution(_) | Bulk::Relayed(_) => not_a_number(),
        _ => Vec::new(),
    }
}

fn contributes_too_much(content: &mut Bulk) -> Vec<u8> {
    match content {
        Bulk::Contribution(_) => f32::MAX.to_le_bytes().to_vec(),
        _ => Vec::new(),
    }
}

fn weighs_more_than_float32(content: &mut Bulk) -> Vec<u8> {
    if let Bulk::Contribution(contribution) = content {
        contribution.weight = 1e39;
    }
    Vec::new()
}

fn weighs_less_than_float32(content: &mut Bulk) -> Vec<u8> {
    if let Bulk::Contribution(contribution) = content {
        contribution.weight = 1e-300;
    }
    Vec::new()
}

fn publishes_infinity(content: &mut Bulk) -> Vec<u8> {
    match content {
        Bulk::Parameters => f32::INFINITY.to_le_bytes().to_vec(),
        Bulk::Update(_) => not_a_number(),
        _ => Vec::new(),
    }
}

fn gossips_nan(content: &mut Bulk) -> Vec<u8> {
    match content {
        Bulk::Gossip { .. } => not_a_number(),
        _ => Vec::new(),
    }
}

fn gossips_too_much(content: &mut Bulk) -> Vec<u8> {
    match content {
        Bulk::Gossip { .. } => 3e38f32.to_le_bytes().to_vec(),
        _ => Vec::new(),
    }
}

/// Values that could be right.
fn passes_on_other_values(content: &mut Bulk) -> Vec<u8> {
    match content {
        Bulk::Forwarded { .. } => 0.25f32.to_le_bytes().to_vec(),
        _ => Vec::new(),
    }
}

#[test]
fn who_lies_in_a_round_over_groups_is_left_out() {
    // A sum is seen by its owner alone. There word stands against word, until another owner sees
    // one in a later attempt or round.
    let lies = [contributes_nan, publishes_infinity, passes_on_other_values];
    for wire in [WireType::Float32, WireType::Int8] {
        let config = Config {
            group: Some("halves".parse().unwrap()),
            round_wire: wire,
            ..local_sgd(1, 4, 1.0, 0.5)
        };
        for lie in lies {
            assert_named(&config, 2, 1, lie);
        }
    }
}

#[test]
fn who_contributes_what_is_not_finite_is_left_out() {
    assert_named(&local_sgd(1, 4, 1.0, 0.5), 4, 1, contributes_nan);
}

#[test]
fn a_leader_that_contributes_what_is_not_finite_is_left_out() {
    assert_named(&local_sgd(1, 4, 1.0, 0.5), 1, 1, contributes_nan);
}

#[test]
fn who_contributes_what_overflows_in_sums_is_left_out() {
    assert_named(&local_sgd(1, 4, 1.0, 0.5), 2, 1, contributes_too_much);
}

#[test]
fn a_weight_that_is_infinite_or_nothing_as_float32_is_refused() {
    for lie in [weighs_more_than_float32, weighs_less_than_float32] {
        assert_named(&local_sgd(1, 4, 1.0, 0.5), 3, 1, lie);
    }
}

#[test]
fn an_owner_that_publishes_what_is_not_finite_is_left_out() {
    assert_named(&local_sgd(1, 4, 1.0, 0.5), 4, 1, publishes_infinity);
}

#[test]
fn who_lies_in_an_encoded_round_is_left_out() {
    for wire in [WireType::Int8, WireType::BFloat16] {
        let config = Config {
            round_wire: wire,
            ..local_sgd(1, 4, 1.0, 0.5)
        };
        assert_named(&config, 4, 1, contributes_nan);
        assert_named(&config, 4, 1, publishes_infinity);
    }
}

#[test]
fn who_gossips_what_is_not_finite_is_named_and_left_out_of_rounds() {
    for lie in [gossips_nan, gossips_too_much] {
        for config in [sgp(4, 0.5), overlapped(4, 0.5)] {
            assert_gossip_named(&config, 4, lie);
        }
    }
}

/// Models of gossip differ between nodes until they are averaged.
fn assert_gossip_named(config: &Config, liar: u64, lie: fn(&mut Bulk) -> Vec<u8>) {
    let begun = Instant::now();
    let seen = witnesses(config, liar, lie);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for witness in &seen {
        let values = witness.training.seen.values.last().unwrap();
        assert!(values.iter().all(|value| value.abs() < 1e3), "{values:?}");
    }
    let named = format!("node {liar} sent");
    let events: Vec<_> = seen.iter().map(|witness| &witness.events).collect();
    assert!(
        events
            .iter()
            .any(|events| events.iter().any(|event| event.contains(&named))),
        "{events:#?}"
    );
}

/// Every node's training diverges: each is told on its own node, and nobody is left out.
#[test]
fn a_training_that_diverges_everywhere_is_told_so_and_nobody_is_left_out() {
    for (value, config) in [
        (f32::NAN, local_sgd(1, 4, 1.0, 0.5)),
        (f32::INFINITY, sgp(4, 0.5)),
        (1e30, local_sgd(1, 4, 1.0, 0.5)),
        (1e30, overlapped(4, 0.5)),
    ] {
        let hub = MemoryHub::new(None);
        let config = Config {
            min_nodes: IDS.len(),
            ..config
        };
        let nodes: Vec<Runtime> = IDS
            .iter()
            .map(|id| in_hub(&hub, *id, &IDS, &config))
            .collect();
        let told = Barrier::new(IDS.len());
        thread::scope(|scope| {
            for (id, node) in IDS.iter().zip(&nodes) {
                let mut worker = node.worker(0).unwrap();
                let told = &told;
                scope.spawn(move || {
                    let mut values = uneven(VALUES);
                    worker.synchronize(&mut values).unwrap();
                    for step in 0..3 {
                        let gradients = noisy(*id as usize, step, &values);
                        crate::support::descend(&mut values, &gradients, 0.1);
                        worker.step(&mut values, 0.1).unwrap();
                    }
                    values[17] = value;
                    let error = worker.step(&mut values, 0.1).unwrap_err().to_string();
                    told.wait();
                    assert!(error.contains("[17] = "), "{error}");
                    let status = node.status();
                    let what: Vec<_> = status.events.iter().map(|event| &event.what).collect();
                    assert!(!what.iter().any(|what| what.contains(" sent ")), "{what:?}");
                    assert!(
                        what.iter()
                            .any(|what| what.contains("not finite") && what.contains("[17]")),
                        "{what:?}"
                    );
                });
            }
        });
    }
}
