//! Nodes that die in the middle of a run: the survivors' next round is decided without them and training goes on; without a
//! quorum they wait until the lost nodes are back.

use crate::support::{IN_ORDER, Seen, Training, assert_close, bits, by_the_book, config, in_hub, local_sgd, sgp, train};
use slowmo::config::BaseName;
use slowmo::transport::memory::MemoryHub;
use slowmo::{Config, StepReport};
use slowmo_chaos::cluster::{Cluster, Link, start};
use slowmo_protocol::policy::Quorum;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const VALUES: usize = 600;
const TAU: usize = 4;
const BETA: f32 = 0.5;
const IDS: [u64; 3] = [1, 2, 3];
/// Steps of the survivors.
const STEPS: u64 = 24;
/// Far above what a round without a lost node takes, far below every time-out of the configuration.
const SOON: Duration = Duration::from_secs(2);

/// Trains on three nodes; `victim` is dropped, as by a program that panics, after `lived` steps. What the survivors saw.
fn survivors(link: Link, config: &Config, victim: u64, lived: u64) -> Vec<Training> {
    let Cluster { nodes, rendezvous: _rendezvous } = start(&IDS, link, config).unwrap();
    let workers: Vec<_> = nodes.iter().map(|node| (node.node_id(), node.worker(0).unwrap())).collect();
    drop(nodes);
    let threads: Vec<_> = workers
        .into_iter()
        .map(|(id, mut worker)| {
            thread::spawn(move || {
                let steps = if id == victim { lived } else { STEPS };
                let training = train(&mut worker, id, VALUES, |report| report.step + 1 == steps);
                if id != victim {
                    worker.leave().unwrap();
                }
                (id, training)
            })
        })
        .collect();
    let trained = threads.into_iter().map(|thread| thread.join().unwrap());
    trained.filter(|(id, _)| *id != victim).map(|(_, training)| training).collect()
}

/// Every node that could die, at steps on both sides of a slow round and in it, over every kind of network.
fn for_each_death(mut check: impl FnMut(Link, u64, u64)) {
    for (victim, lived) in [(2, 7), (1, 6), (3, 8)] {
        for link in [IN_ORDER, Link::Memory(Some(victim)), Link::Quic] {
            let begun = Instant::now();
            check(link, victim, lived);
            assert!(begun.elapsed() < Duration::from_secs(5), "node {victim} over {link:?}: {:?}", begun.elapsed());
        }
    }
}

/// Who contributes to each step when `victim` dies after `lived` of them.
fn contributors(victim: u64, lived: u64) -> Vec<Vec<u64>> {
    (0..STEPS).map(|step| IDS.into_iter().filter(|id| step < lived || *id != victim).collect()).collect()
}

#[test]
fn the_survivors_of_outer_rounds_go_on_and_lose_no_momentum() {
    for_each_death(|link, victim, lived| {
        let expected = by_the_book(VALUES, TAU, BETA, &contributors(victim, lived));
        for Training { seen, .. } in survivors(link, &local_sgd(1, TAU as u64, 1.0, BETA), victim, lived) {
            for (report, expected) in seen.reports.iter().zip(contributors(victim, lived)) {
                assert_eq!(
                    (report.contributors, report.nodes),
                    (expected.len(), expected.len()),
                    "node {victim} over {link:?}: {report:?}"
                );
                assert!(!report.caught_up && !report.drained, "{report:?}");
            }
            for (step, (values, expected)) in seen.values.iter().zip(&expected).enumerate() {
                assert_eq!(bits(values), bits(expected), "step {step}, node {victim} lost over {link:?}");
            }
        }
    });
}

#[test]
fn the_survivors_of_gossip_go_on_and_agree_after_every_slow_step() {
    for_each_death(|link, victim, lived| {
        let seen = survivors(link, &sgp(6, BETA), victim, lived);
        for step in [5, 11, 17, 23] {
            let expected = if step < lived { 3 } else { 2 };
            for Training { seen: Seen { values, reports }, .. } in &seen {
                let report = reports[step as usize];
                assert_eq!((report.step, report.slow_step, report.contributors, report.weight), (step, true, expected, 1.0), "{report:?}");
                assert_eq!(bits(&values[step as usize]), bits(&seen[0].seen.values[step as usize]), "node {victim} lost over {link:?}");
            }
        }
    });
}

#[test]
fn the_survivors_of_gradient_means_go_on_with_their_own_mean() {
    for_each_death(|link, victim, lived| {
        let all_reduce = Config { base: BaseName::AllReduce, beta: 0.0, ..config() };
        let seen = survivors(link, &all_reduce, victim, lived);
        // The mean of gradients at one point is not, bit for bit, the mean of the points that they lead to.
        let expected = by_the_book(VALUES, usize::MAX, BETA, &contributors(victim, lived));
        for Training { seen: Seen { values, .. }, .. } in &seen {
            assert!(*values == seen[0].seen.values, "node {victim} lost over {link:?}");
            assert_close(&values[STEPS as usize - 1], &expected[STEPS as usize - 1], 1e-4);
        }
    });
}

/// Three nodes of a hub, two of which are dropped after 5 steps while the third trains on; its training, the hub, and what it
/// tells of each step. It ends after `more` steps with `contributors` contributors.
fn last_of_three(
    config: &Config,
    contributors: usize,
    more: usize,
) -> (MemoryHub, mpsc::Receiver<StepReport>, thread::JoinHandle<Training>) {
    let hub = MemoryHub::new(None);
    let config = Config { min_nodes: 3, ..config.clone() };
    let nodes = IDS.map(|id| in_hub(&hub, id, &IDS, &config));
    let lost = [0, 1].map(|index| {
        let mut worker = nodes[index].worker(0).unwrap();
        thread::spawn(move || _ = train(&mut worker, IDS[index], VALUES, |report| report.step == 4))
    });
    let mut worker = nodes[2].worker(0).unwrap();
    let (tell, told) = mpsc::channel();
    let survivor = thread::spawn(move || {
        let mut left = more;
        let training = train(&mut worker, IDS[2], VALUES, |report| {
            tell.send(*report).unwrap();
            left -= usize::from(report.step > 4 && report.contributors == contributors);
            left == 0
        });
        worker.leave().unwrap();
        training
    });
    drop(nodes);
    lost.into_iter().for_each(|thread| thread.join().unwrap());
    (hub, told, survivor)
}

/// Which nodes contributed to each step: all but where a report says one, which was node 3 alone.
fn recorded(reports: &[StepReport]) -> Vec<Vec<u64>> {
    reports.iter().map(|report| if report.contributors == 1 { vec![3] } else { IDS.into() }).collect()
}

#[test]
fn the_last_of_three_goes_on_alone_where_survivors_decide() {
    // With two replicas the last node has everybody's momentum.
    let config = Config { quorum: Quorum::Survivors, replicas: 2, ..local_sgd(1, TAU as u64, 1.0, BETA) };
    let begun = Instant::now();
    let (_hub, _told, survivor) = last_of_three(&config, 1, 20);
    let Training { seen, .. } = survivor.join().unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!((seen.reports.len(), seen.reports[5].nodes), (25, 1));
    let expected = by_the_book(VALUES, TAU, BETA, &recorded(&seen.reports));
    assert_eq!(bits(&seen.values[24]), bits(&expected[24]));
}

#[test]
fn the_last_of_three_waits_without_a_majority_and_goes_on_when_all_are_back() {
    let config = Config { replicas: 2, ..local_sgd(1, TAU as u64, 1.0, BETA) };
    let (hub, told, survivor) = last_of_three(&config, 3, 20);
    for step in 0..5 {
        let report = told.recv_timeout(SOON).unwrap();
        assert_eq!((report.step, report.contributors), (step, 3));
    }
    let silence = told.recv_timeout(Duration::from_secs(1));
    assert_eq!(silence, Err(mpsc::RecvTimeoutError::Timeout), "one of three decides nothing");
    let back = |id: u64| {
        let node = in_hub(&hub, id, &IDS, &Config { min_nodes: 3, ..config.clone() });
        thread::spawn(move || {
            let mut worker = node.worker(0).unwrap();
            let mut left = 20;
            let training = train(&mut worker, id, VALUES, |report| {
                left -= usize::from(report.contributors == 3);
                left == 0
            });
            worker.leave().unwrap();
            training
        })
    };
    let first = back(1);
    let silence = told.recv_timeout(Duration::from_secs(1));
    assert_eq!(silence, Err(mpsc::RecvTimeoutError::Timeout), "node 2 may live elsewhere");
    let second = back(2);
    let returned = [first, second].map(|thread| thread.join().unwrap());
    let Training { seen, .. } = survivor.join().unwrap();
    let expected = by_the_book(VALUES, TAU, BETA, &recorded(&seen.reports));
    for (step, (values, expected)) in seen.values.iter().zip(&expected).enumerate() {
        assert_eq!(bits(values), bits(expected), "step {step}");
    }
    for Training { first, seen: of_returned } in &returned {
        assert!(seen.values[*first as usize..] == of_returned.values, "a node that is back is the same from step {first} on");
        assert!(of_returned.reports.iter().all(|report| report.nodes == 3), "both came back in one round");
    }
}
