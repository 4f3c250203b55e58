//! A node that leaves in order while the others train on: it hands over, it is out of the next view and stays out, and nothing
//! of the slow momentum is lost.

use crate::support::{IN_ORDER, Training, bits, by_the_book, local_sgd, train};
use slowmo::Runtime;
use slowmo_chaos::cluster::{Cluster, Link, start};
use std::thread;
use std::time::{Duration, Instant};

const VALUES: usize = 600;
const TAU: usize = 4;
const BETA: f32 = 0.5;
const IDS: [u64; 3] = [1, 2, 3];
/// Steps of the nodes that stay.
const STEPS: u64 = 30;
/// The step after which a node begins to leave: before, in and after a slow round.
const LEAVES_AT: [u64; 3] = [6, 7, 8];
/// Far below the time for which a leaving node waits for others that do not notice.
const SOON: Duration = Duration::from_secs(2);

/// Trains on three nodes without replicas of the momentum; `end` begins the leaver's end after a step and says whether that
/// was its last one. What each node saw.
fn trained(link: Link, leaver: u64, end: impl Fn(&Runtime, u64, bool) -> bool + Sync) -> Vec<(u64, Training)> {
    let config = slowmo::Config { replicas: 0, ..local_sgd(1, TAU as u64, 1.0, BETA) };
    let Cluster { nodes, rendezvous: _rendezvous } = start(&IDS, link, &config).unwrap();
    thread::scope(|scope| {
        let nodes = nodes.into_iter().map(|node| {
            let end = &end;
            scope.spawn(move || {
                let (id, mut worker) = (node.node_id(), node.worker(0).unwrap());
                let training = train(&mut worker, id, VALUES, |report| {
                    if id == leaver { end(&node, report.step, report.drained) } else { report.step + 1 == STEPS }
                });
                let leaving = Instant::now();
                worker.leave().unwrap();
                assert!(leaving.elapsed() < SOON, "node {id} over {link:?} waited {:?} to leave", leaving.elapsed());
                (id, training)
            })
        });
        let nodes: Vec<_> = nodes.collect();
        nodes.into_iter().map(|node| node.join().unwrap()).collect()
    })
}

/// The leaver contributed to its last step and to none after it, and is no member from then on.
fn assert_handed_over(link: Link, leaver: u64, nodes: &[(u64, Training)]) {
    let last = nodes.iter().find(|(id, _)| *id == leaver).and_then(|(_, training)| training.seen.reports.last()).unwrap();
    let contributors: Vec<Vec<u64>> =
        (0..STEPS).map(|step| IDS.into_iter().filter(|id| step <= last.step || *id != leaver).collect()).collect();
    let expected = by_the_book(VALUES, TAU, BETA, &contributors);
    for (id, Training { seen, .. }) in nodes {
        for (report, contributors) in seen.reports.iter().zip(&contributors) {
            assert_eq!(report.contributors, contributors.len(), "node {id} while node {leaver} leaves over {link:?}: {report:?}");
            assert!(report.step <= last.step || report.nodes == 2, "node {leaver} stays out: {report:?}");
        }
        for (step, (values, expected)) in seen.values.iter().zip(&expected).enumerate() {
            assert_eq!(bits(values), bits(expected), "node {id}, step {step}, while node {leaver} leaves over {link:?}");
        }
    }
}

/// Every node leaves once, over every kind of network.
fn for_each_leaver(mut check: impl FnMut(Link, u64, u64)) {
    for (leaver, at) in IDS.into_iter().zip(LEAVES_AT) {
        for link in [IN_ORDER, Link::Memory(Some(leaver)), Link::Quic] {
            check(link, leaver, at);
        }
    }
}

#[test]
fn a_drained_node_contributes_once_more_and_hands_over() {
    for_each_leaver(|link, leaver, at| {
        let nodes = trained(link, leaver, |node, step, drained| {
            if step == at {
                node.drain();
            }
            drained
        });
        assert_handed_over(link, leaver, &nodes);
        for (id, Training { seen, .. }) in &nodes {
            let drained = seen.reports.iter().filter(|report| report.drained).count();
            assert_eq!(drained, usize::from(*id == leaver), "node {id} of leaver {leaver}");
        }
    });
}

#[test]
fn a_node_whose_training_ends_earlier_hands_over() {
    for_each_leaver(|link, leaver, at| {
        let nodes = trained(link, leaver, |_, step, _| step == at);
        assert_handed_over(link, leaver, &nodes);
    });
}
