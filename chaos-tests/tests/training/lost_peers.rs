//! A node that is dropped in the middle of a run, as by a program that panics: the others' next
//! round is decided without it and training goes on. Nodes that have no time to say goodbye are in
//! `killed`, those of outer rounds at every phase of one in `phases`.

use crate::support::{
    IN_ORDER, RATE, Seen, Training, assert_close, bits, by_the_book, config, descend, in_hub,
    local_sgd, noisy, overlapped, sgp, train, uneven,
};
use slowmo::BaseName;
use slowmo::internal::config::OnMomentumLoss;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime, Worker};
use slowmo_chaos::cluster::{Cluster, Link, start};
use std::thread;
use std::time::{Duration, Instant};

const VALUES: usize = 600;
const TAU: usize = 4;
const BETA: f32 = 0.5;
const IDS: [u64; 3] = [1, 2, 3];
/// Steps of the survivors.
const STEPS: u64 = 24;

/// Trains on three nodes; `victim` is dropped, as by a program that panics, after `lived` steps.
/// Returns the survivors' trainings.
fn survivors(link: Link, config: &Config, victim: u64, lived: u64) -> Vec<Training> {
    let Cluster {
        nodes,
        rendezvous: _rendezvous,
    } = start(&IDS, link, config).unwrap();
    let workers: Vec<_> = nodes
        .iter()
        .map(|node| (node.node_id(), node.worker(0).unwrap()))
        .collect();
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
    trained
        .filter(|(id, _)| *id != victim)
        .map(|(_, training)| training)
        .collect()
}

/// Every node that could die, at steps on both sides of a slow round and in it, over every kind of
/// network.
fn for_each_death(mut check: impl FnMut(Link, u64, u64)) {
    for (victim, lived) in [(2, 7), (1, 6), (3, 8)] {
        for link in [IN_ORDER, Link::Memory(Some(victim)), Link::Quic] {
            let begun = Instant::now();
            check(link, victim, lived);
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "node {victim} over {link:?}: {:?}",
                begun.elapsed()
            );
        }
    }
}

/// Lists the contributors of each step when `victim` dies after `lived` of them.
fn contributors(victim: u64, lived: u64) -> Vec<Vec<u64>> {
    (0..STEPS)
        .map(|step| {
            IDS.into_iter()
                .filter(|id| step < lived || *id != victim)
                .collect()
        })
        .collect()
}

#[test]
fn the_survivors_of_gossip_go_on_and_agree_after_every_slow_step() {
    for config in [sgp(6, BETA), overlapped(6, BETA)] {
        for_each_death(|link, victim, lived| {
            let seen = survivors(link, &config, victim, lived);
            for step in [5, 11, 17, 23] {
                let expected = if step < lived { 3 } else { 2 };
                for Training {
                    seen: Seen { values, reports },
                    ..
                } in &seen
                {
                    let report = reports[step as usize];
                    let found = (
                        report.step,
                        report.slow_step,
                        report.contributors,
                        report.weight,
                    );
                    assert_eq!(found, (step, true, expected, 1.0), "{report:?}");
                    let first = &seen[0].seen.values[step as usize];
                    assert_eq!(
                        bits(&values[step as usize]),
                        bits(first),
                        "node {victim} lost over {link:?}"
                    );
                }
            }
        });
    }
}

#[test]
fn the_survivors_of_gradient_means_go_on_with_their_own_mean() {
    for_each_death(|link, victim, lived| {
        let all_reduce = Config {
            base: BaseName::AllReduce,
            beta: 0.0,
            ..config()
        };
        let seen = survivors(link, &all_reduce, victim, lived);
        // The mean of gradients at one point is not, bit for bit, the mean of the points that they
        // lead to.
        let expected = by_the_book(VALUES, usize::MAX, BETA, &contributors(victim, lived));
        for Training {
            seen: Seen { values, .. },
            ..
        } in &seen
        {
            assert!(
                *values == seen[0].seen.values,
                "node {victim} lost over {link:?}"
            );
            assert_close(
                &values[STEPS as usize - 1],
                &expected[STEPS as usize - 1],
                1e-4,
            );
        }
    });
}

/// Steps a worker until a step fails: the error, and whether the parameters were as before it.
fn until_it_fails(worker: &mut Worker, node: u64) -> (String, bool) {
    let mut parameters = uneven(VALUES);
    let mut step = worker.synchronize(&mut parameters).unwrap().step;
    loop {
        let gradients = noisy(node as usize, step as usize, &parameters);
        descend(&mut parameters, &gradients, RATE);
        let before = parameters.clone();
        match worker.step(&mut parameters, RATE) {
            Ok(report) if report.step < STEPS => step = report.step + 1,
            Ok(report) => return (format!("it went on to {report:?}"), false),
            Err(error) => return (error.to_string(), bits(&before) == bits(&parameters)),
        }
    }
}

#[test]
fn a_run_that_may_lose_no_momentum_stops_where_the_only_holder_of_a_shard_is_lost() {
    let config = Config {
        replicas: 0,
        on_momentum_loss: OnMomentumLoss::Stop,
        min_nodes: 3,
        ..local_sgd(1, TAU as u64, 1.0, BETA)
    };
    let hub = MemoryHub::new(None);
    let nodes: Vec<Runtime> = IDS
        .iter()
        .map(|id| in_hub(&hub, *id, &IDS, &config))
        .collect();
    let threads: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            thread::spawn(move || {
                let id = node.node_id();
                let mut worker = node.worker(0).unwrap();
                if id == 1 {
                    // The model is one shard, and it is this node's. After a slow step, so that
                    // there is momentum to lose.
                    train(&mut worker, id, VALUES, |report| {
                        report.step + 1 == TAU as u64 + 2
                    });
                    node.faults().unwrap().crash();
                    return None;
                }
                Some(until_it_fails(&mut worker, id))
            })
        })
        .collect();
    for (error, unchanged) in threads
        .into_iter()
        .filter_map(|thread| thread.join().unwrap())
    {
        assert!(
            error.contains("all holders of") && error.contains("on_momentum_loss = reset"),
            "{error}"
        );
        assert!(unchanged, "the parameters are those of before the step");
    }
}
