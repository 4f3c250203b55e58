//! A node that leaves in order while the others train on: it hands over, it is out of the next view
//! and stays out, and nothing of the slow momentum is lost.

use crate::support::{
    ByTheBook, IN_ORDER, RATE, Training, bits, by_the_book, config, descend, local_sgd, mean,
    noisy, on_nodes, train, uneven,
};
use slowmo::BaseName;
use slowmo::Runtime;
use slowmo_chaos::cluster::Link;
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

/// Trains on three nodes without replicas of the momentum; `end` begins the leaver's end after a
/// step and says whether that was its last one. What each node saw.
fn trained(
    link: Link,
    leaver: u64,
    end: impl Fn(&Runtime, u64, bool) -> bool + Sync,
) -> Vec<(u64, Training)> {
    let config = slowmo::Config {
        replicas: 0,
        ..local_sgd(1, TAU as u64, 1.0, BETA)
    };
    on_nodes(&IDS, link, &config, |_, node, mut worker| {
        let id = node.node_id();
        let training = train(&mut worker, id, VALUES, |report| {
            if id == leaver {
                end(node, report.step, report.drained)
            } else {
                report.step + 1 == STEPS
            }
        });
        let leaving = Instant::now();
        worker.leave().unwrap();
        assert!(
            leaving.elapsed() < SOON,
            "node {id} over {link:?} waited {:?} to leave",
            leaving.elapsed()
        );
        (id, training)
    })
}

/// The leaver contributed to its last step and to none after it, and is no member from then on.
fn assert_handed_over(link: Link, leaver: u64, nodes: &[(u64, Training)]) {
    let last = nodes
        .iter()
        .find(|(id, _)| *id == leaver)
        .and_then(|(_, training)| training.seen.reports.last())
        .unwrap();
    let contributors: Vec<Vec<u64>> = (0..STEPS)
        .map(|step| {
            IDS.into_iter()
                .filter(|id| step <= last.step || *id != leaver)
                .collect()
        })
        .collect();
    let expected = by_the_book(VALUES, TAU, BETA, &contributors);
    for (id, Training { seen, .. }) in nodes {
        for (report, contributors) in seen.reports.iter().zip(&contributors) {
            assert_eq!(
                report.contributors,
                contributors.len(),
                "node {id} while node {leaver} leaves over {link:?}: {report:?}"
            );
            assert!(
                report.step <= last.step || report.nodes == 2,
                "node {leaver} stays out: {report:?}"
            );
        }
        for (step, (values, expected)) in seen.values.iter().zip(&expected).enumerate() {
            assert_eq!(
                bits(values),
                bits(expected),
                "node {id}, step {step}, while node {leaver} leaves over {link:?}"
            );
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
            assert_eq!(
                drained,
                usize::from(*id == leaver),
                "node {id} of leaver {leaver}"
            );
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

/// [`by_the_book`] where only the mean of the first half's gradients is taken, at every step.
fn half_by_the_book(contributors: &[Vec<u64>]) -> Vec<Vec<f32>> {
    let mut book = ByTheBook::new(uneven(VALUES));
    let round = |(step, nodes): (usize, &Vec<u64>)| {
        let gradients: Vec<_> = nodes
            .iter()
            .map(|node| noisy(*node as usize, step, &book.parameters)[..VALUES / 2].to_vec())
            .collect();
        descend(&mut book.parameters, &mean(&gradients), RATE);
        if (step + 1) % TAU == 0 {
            book.parameters = mean(&vec![book.parameters.clone(); nodes.len()]);
            book.slow_step(0..VALUES, BETA, RATE);
        }
        book.parameters.clone()
    };
    contributors.iter().enumerate().map(round).collect()
}

#[test]
fn state_is_handed_over_with_a_mean_of_fewer_gradients_than_parameters() {
    let config = slowmo::Config {
        replicas: 0,
        base: BaseName::AllReduce,
        tau: TAU as u64,
        beta: BETA,
        ..config()
    };
    let leaver = IDS[1];
    let last = 5;
    let seen = on_nodes(&IDS, IN_ORDER, &config, |_, node, mut worker| {
        let id = node.node_id();
        let mut parameters = uneven(VALUES);
        let mut seen = Vec::new();
        worker.synchronize(&mut parameters).unwrap();
        for step in 0..=if id == leaver { last } else { STEPS } {
            let mut gradients =
                noisy(id as usize, step as usize, &parameters)[..VALUES / 2].to_vec();
            worker.average_gradients(&mut gradients).unwrap();
            descend(&mut parameters, &gradients, RATE);
            worker.step(&mut parameters, RATE).unwrap();
            seen.push(parameters.clone());
        }
        worker.leave().unwrap();
        seen
    });
    let contributors: Vec<Vec<u64>> = (0..=STEPS)
        .map(|step| {
            IDS.into_iter()
                .filter(|id| step <= last || *id != leaver)
                .collect()
        })
        .collect();
    let expected = half_by_the_book(&contributors);
    for seen in &seen {
        for (step, (values, expected)) in seen.iter().zip(&expected).enumerate() {
            assert_eq!(bits(values), bits(expected), "step {step}");
        }
    }
}
