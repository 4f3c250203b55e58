//! The same run gives the same bits on every node, whatever the order of arrival, of starting, and
//! over which transport.

use crate::support::{IN_ORDER, Job, Seen, bits, local_sgd, noise, on_nodes, sgp, uneven};
use slowmo_chaos::cluster::Link;

/// Values of a model that is cut into many shards of uneven length.
const VALUES: usize = 1_777;

fn gossip_job() -> Job {
    Job {
        ids: vec![41, 3, 900, 17, 1 << 40],
        initial: uneven(VALUES),
        steps: 14,
        ..Job::new(5, sgp(6, 0.4), noise())
    }
}

fn local_job() -> Job {
    let mut config = local_sgd(2, 6, 0.9, 0.5);
    config.devices = 2;
    Job {
        ids: vec![77, 5, 21],
        initial: uneven(VALUES),
        steps: 14,
        ..Job::new(3, config, noise())
    }
}

/// Every bit of every worker after every step, and the push-sum weights.
fn all_bits(run: &[Seen]) -> Vec<(Vec<u32>, u64)> {
    let steps = run
        .iter()
        .flat_map(|seen| seen.values.iter().zip(&seen.reports));
    steps
        .map(|(values, report)| (bits(values), report.weight.to_bits()))
        .collect()
}

/// Runs the job in other orders of arrival and starting and over QUIC; each must be the same run.
pub fn assert_same_bits_in_any_order(job: &Job) {
    let first = all_bits(&job.run());
    let shuffled = |turn: usize| {
        job.ids
            .iter()
            .cycle()
            .skip(turn)
            .take(job.ids.len())
            .copied()
            .collect::<Vec<_>>()
    };
    let others = [
        (IN_ORDER, shuffled(0)),
        (IN_ORDER, shuffled(2)),
        (Link::Memory(Some(1)), shuffled(0)),
        (Link::Memory(Some(2)), shuffled(1)),
        (
            Link::Memory(Some(0x5eed)),
            job.ids.iter().rev().copied().collect(),
        ),
        (Link::Quic, shuffled(0)),
        (Link::Quic, shuffled(1)),
    ];
    for (link, ids) in others {
        let other = Job {
            link,
            ids,
            ..job.clone()
        };
        assert!(
            all_bits(&other.run()) == first,
            "another run over {link:?} with nodes started as {:?}",
            other.ids
        );
    }
}

fn assert_all_nodes_agree_after(run: &[Seen], step: usize) {
    for seen in run {
        assert_eq!(
            bits(&seen.values[step]),
            bits(&run[0].values[step]),
            "step {step}"
        );
    }
}

#[test]
fn gossip_with_slowmo_on_five_nodes() {
    let job = gossip_job();
    assert_same_bits_in_any_order(&job);
    let run = job.run();
    for step in [5, 11] {
        assert_all_nodes_agree_after(&run, step);
        assert!(
            run.iter()
                .all(|seen| seen.reports[step].contributors == 5 && seen.reports[step].slow_step)
        );
    }
    assert_ne!(
        run[0].values[4], run[1].values[4],
        "between rounds the nodes differ"
    );
}

#[test]
fn local_sgd_with_slowmo_on_nodes_of_two_workers() {
    let job = local_job();
    assert_same_bits_in_any_order(&job);
    let run = job.run();
    for step in [1, 3, 5, 7, 9, 11, 13] {
        assert_all_nodes_agree_after(&run, step);
    }
    for pair in run.chunks(2) {
        assert_eq!(
            all_bits(&pair[..1]),
            all_bits(&pair[1..]),
            "the workers of a node never differ"
        );
    }
}

#[test]
fn the_lowest_id_s_parameters_found_the_model() {
    for link in [IN_ORDER, Link::Memory(Some(3)), Link::Quic] {
        let ids = [12, 7, 30];
        let config = local_sgd(1, 2, 1.0, 0.5);
        let seen = on_nodes(&ids, link, &config, |_, node, mut worker| {
            let mut parameters = vec![node.node_id() as f32; 700];
            let found = worker.synchronize(&mut parameters).unwrap();
            worker.leave().unwrap();
            (found, parameters)
        });
        for ((found, parameters), rank) in seen.into_iter().zip([1, 0, 2]) {
            assert_eq!(parameters, vec![7.0; 700]);
            assert_eq!(
                (found.nodes, found.node_rank, found.workers, found.worker),
                (3, rank, 1, 0)
            );
            assert_eq!((found.round, found.step), (1, 0));
        }
    }
}
