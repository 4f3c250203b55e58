//! A node that comes to a running cluster: it is a member after the next round, or told why not, by
//! name; in both cases the model is what one process computes from who contributed.

use crate::support::{
    Training, assert_says, bits, by_the_book, config, in_hub, local_sgd, overlapped, sgp, train,
    uneven, until,
};
use slowmo::BaseName;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Buffers, Config, ExchangeError, Runtime, StepReport, SynchronizeError};
use slowmo_chaos::cluster::in_memory;
use slowmo_protocol::ident::Lineage;
use slowmo_protocol::membership::BootstrapError;
use slowmo_protocol::policy::JoinerBuffers;
use slowmo_protocol::wire::JoinRefusal;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const VALUES: usize = 600;
const TAU: usize = 4;
const BETA: f32 = 0.5;
const FOUNDERS: [u64; 2] = [1, 3];
const LATE: u64 = 2;
/// Far below every time-out of the configuration.
const SOON: Duration = Duration::from_secs(5);
/// Rounds with the node that joined after which all leave.
const TOGETHER: usize = 10;

fn averaging() -> Config {
    Config {
        min_nodes: 2,
        ..local_sgd(1, TAU as u64, 1.0, BETA)
    }
}

/// Trains one node in a hub on a thread of its own until `done`, then leaves.
fn begin(
    hub: &MemoryHub,
    id: u64,
    config: &Config,
    mut done: impl FnMut(&StepReport) -> bool + Send,
) -> impl FnOnce() -> Training + Send {
    let node = in_hub(hub, id, &[1, 2, 3], config);
    move || {
        let mut worker = node.worker(0).unwrap();
        let training = train(&mut worker, id, VALUES, |report| {
            thread::sleep(Duration::from_millis(1));
            done(report)
        });
        worker.leave().unwrap();
        training
    }
}

/// Says when `contributors` contributed to so many rounds.
fn after(rounds: usize, contributors: usize) -> impl FnMut(&StepReport) -> bool + Send {
    let mut seen = 0;
    move |report| {
        seen += usize::from(report.round.is_some() && report.contributors == contributors);
        seen == rounds
    }
}

/// Two founders train; what they saw, and what `visit` made of it meanwhile.
fn visited<R: Send>(
    config: &Config,
    visit: impl FnOnce(&MemoryHub) -> R + Send,
) -> (R, [Training; 2]) {
    let hub = MemoryHub::new(None);
    let begun = &Barrier::new(3);
    let over = &AtomicBool::new(false);
    let last = &AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        let founders = FOUNDERS.map(|id| {
            let founder = begin(&hub, id, config, move |report| {
                if report.step == 5 {
                    begun.wait();
                }
                if over.load(Ordering::SeqCst) {
                    // The other founder is at most a round away: both end at the same step.
                    _ = last.compare_exchange(
                        u64::MAX,
                        report.step + 4,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    );
                }
                report.step == last.load(Ordering::SeqCst)
            });
            scope.spawn(founder)
        });
        begun.wait();
        let result = visit(&hub);
        over.store(true, Ordering::SeqCst);
        (result, founders.map(|founder| founder.join().unwrap()))
    })
}

/// Why a node is not let in; its parameters are as they were.
fn refusal(node: &Runtime, values: usize) -> SynchronizeError {
    let mut parameters = uneven(values);
    let mut worker = node.worker(0).unwrap();
    let error = worker.synchronize(&mut parameters).unwrap_err();
    assert_eq!(
        parameters,
        uneven(values),
        "parameters are unchanged after an error"
    );
    error
}

/// Returns the error of a node that comes to two founders, which notice nothing.
fn told(late: &Config, values: usize) -> String {
    let (told, founders) = visited(
        &Config {
            max_nodes: late.max_nodes,
            ..averaging()
        },
        |hub| {
            let begun = Instant::now();
            let error = refusal(&in_hub(hub, LATE, &[1, 2, 3], late), values);
            assert!(begun.elapsed() < SOON, "{:?}: {error}", begun.elapsed());
            error.to_string()
        },
    );
    assert_unmoved(&founders, &told);
    told
}

/// Rounds went on with the same members, and their model is what it would have been.
fn assert_unmoved(founders: &[Training; 2], told: &str) {
    let expected = by_the_book(
        VALUES,
        TAU,
        BETA,
        &vec![FOUNDERS.to_vec(); founders[0].seen.reports.len()],
    );
    for Training { seen, .. } in founders {
        assert!(
            seen.reports
                .iter()
                .all(|report| (report.contributors, report.nodes) == (2, 2)),
            "{told}"
        );
        assert!(
            seen.values == expected,
            "the founders' model does not notice: {told}"
        );
    }
}

/// Three nodes, one of which comes later and knows nothing of `min_nodes`; each with its id.
fn one_comes_later(config: &Config, late: &Config) -> [Training; 3] {
    let hub = MemoryHub::new(None);
    let (begun, told) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let founders = FOUNDERS.map(|id| {
            let mut enough = after(TOGETHER, 3);
            let begun = begun.clone();
            let founder = begin(&hub, id, config, move |report| {
                // Nobody listens any more once some rounds are decided.
                _ = begun.send(report.step);
                enough(report)
            });
            scope.spawn(founder)
        });
        while told.recv().unwrap() < 5 {}
        let late = scope.spawn(begin(&hub, LATE, late, after(TOGETHER, 3)));
        let [first, third] = founders.map(|founder| founder.join().unwrap());
        [first, late.join().unwrap(), third]
    })
}

#[test]
fn a_node_that_comes_later_is_a_member_after_the_next_round() {
    for late in [
        averaging(),
        Config {
            join: true,
            ..averaging()
        },
    ] {
        let [founder, late, other] = one_comes_later(&averaging(), &late);
        let contributors = |report: &StepReport| {
            if report.contributors == 2 {
                FOUNDERS.to_vec()
            } else {
                vec![1, 2, 3]
            }
        };
        let recorded: Vec<_> = founder.seen.reports.iter().map(contributors).collect();
        let expected = by_the_book(VALUES, TAU, BETA, &recorded);
        assert!(
            founder.seen.values == expected,
            "the momentum is what one process computes"
        );
        assert!(other.seen.values == expected);
        assert!(
            late.seen.values == expected[late.first as usize..],
            "from its first step {} on it is the same",
            late.first
        );
        assert_eq!(
            late.seen.reports.len(),
            TOGETHER,
            "it contributes to every round from its first one on"
        );
        let ranks = |training: &Training| {
            training
                .seen
                .reports
                .last()
                .map(|report| (report.nodes, report.node_rank))
        };
        assert_eq!(
            [ranks(&founder), ranks(&late), ranks(&other)],
            [Some((3, 0)), Some((3, 1)), Some((3, 2))]
        );
    }
}

#[test]
fn a_node_that_comes_later_gossips() {
    for gossip in [sgp(6, BETA), overlapped(6, BETA)] {
        let gossip = Config {
            min_nodes: 2,
            ..gossip
        };
        let trained = one_comes_later(&gossip, &gossip);
        let last = |training: &Training| bits(training.seen.values.last().unwrap());
        for training in &trained {
            assert_eq!(
                last(training),
                last(&trained[0]),
                "all agree after a slow step of three"
            );
        }
    }
}

#[test]
fn a_node_with_other_settings_is_told_which() {
    let told = told(
        &Config {
            beta: 0.25,
            ..averaging()
        },
        VALUES,
    );
    assert_says(
        &told,
        &[
            "of the running cluster refused this node",
            "its settings differ",
            "beta is 0.25 here, 0.5 there",
        ],
    );
}

#[test]
fn a_node_with_another_model_is_told_both_sizes() {
    let told = told(&averaging(), VALUES + 1);
    assert_says(
        &told,
        &[
            "of the running cluster refused this node",
            "600 parameters",
            "this node has 601",
            "train the same model",
        ],
    );
}

#[test]
fn a_node_with_other_optimizer_buffers_is_told_both_sizes_where_they_are_copied() {
    let copying = Config {
        joiner_buffers: JoinerBuffers::Copy,
        ..averaging()
    };
    let (told, founders) = visited(&copying, |hub| {
        let node = in_hub(hub, LATE, &[1, 2, 3], &copying);
        let mut parameters = uneven(VALUES);
        let mut optimizer = [3.0; 5];
        let buffers = Buffers {
            optimizer: &mut optimizer,
            model: &mut (),
        };
        let error = node
            .worker(0)
            .unwrap()
            .synchronize_with(&mut parameters, buffers)
            .unwrap_err();
        assert_eq!(
            (parameters, optimizer),
            (uneven(VALUES), [3.0; 5]),
            "both are unchanged after an error"
        );
        error.to_string()
    });
    assert_says(
        &told,
        &[
            "of the running cluster refused this node",
            "0 optimizer",
            "this node has",
            "5 optimizer",
            "train the same model",
        ],
    );
    assert_unmoved(&founders, &told);
}

#[test]
fn a_node_without_optimizer_buffers_joins_where_they_are_copied() {
    let copying = Config {
        joiner_buffers: JoinerBuffers::Copy,
        ..averaging()
    };
    let [_, late, _] = one_comes_later(&copying, &copying);
    assert_eq!(late.seen.reports.len(), TOGETHER);
}

#[test]
fn a_node_too_many_is_told_the_bound() {
    let told = told(
        &Config {
            max_nodes: 2,
            ..averaging()
        },
        VALUES,
    );
    assert_says(
        &told,
        &[
            "of the running cluster refused this node",
            "full",
            "max_nodes = 2",
            "drain a node first",
        ],
    );
}

#[test]
fn a_second_node_of_a_live_id_is_told_so() {
    let (told, founders) = visited(&averaging(), |hub| {
        // At another address, but with the id of a founder.
        let network = in_memory(hub, 9, &FOUNDERS);
        let second = Runtime::builder()
            .config(Config {
                node_id: Some(FOUNDERS[1]),
                ..averaging()
            })
            .network(network)
            .spawn()
            .unwrap();
        refusal(&second, VALUES).to_string()
    });
    assert_says(&told, &["node 3", "own node_id"]);
    assert_unmoved(&founders, &told);
}

/// Why a running cluster refuses a node that brings the state of a history.
fn refused_with(hub: &MemoryHub, lineage: Lineage) -> JoinRefusal {
    let node = in_hub(
        hub,
        LATE,
        &[1, 2, 3],
        &Config {
            lineage: Some(lineage),
            ..averaging()
        },
    );
    match refusal(&node, VALUES) {
        SynchronizeError::Exchange(ExchangeError::Bootstrapping(BootstrapError::Refused {
            reason,
            ..
        })) => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn a_node_that_brings_another_history_s_state_is_told_both() {
    let (reason, founders) = visited(&averaging(), |hub| refused_with(hub, Lineage(7)));
    let told = reason.to_string();
    let JoinRefusal::OtherLineage {
        cluster,
        joiner: Lineage(7),
    } = reason
    else {
        panic!("{told}")
    };
    assert_says(
        &told,
        &[
            &cluster.to_string(),
            &Lineage(7).to_string(),
            "unchanged",
            "leave lineage out",
            "or join the cluster",
        ],
    );
    assert_unmoved(&founders, &told);
}

#[test]
fn a_node_that_brings_the_cluster_s_own_history_joins_it() {
    let (joined, _) = visited(&averaging(), |hub| {
        let JoinRefusal::OtherLineage { cluster, .. } = refused_with(hub, Lineage(7)) else {
            panic!("no lineage was named")
        };
        let node = in_hub(
            hub,
            4,
            &[1, 2, 3, 4],
            &Config {
                lineage: Some(cluster),
                min_nodes: 2,
                ..averaging()
            },
        );
        let mut worker = node.worker(0).unwrap();
        let joined = worker.synchronize(&mut uneven(VALUES)).unwrap();
        assert_eq!(node.status().lineage, format!("{:032x}", cluster.0));
        worker.leave().unwrap();
        joined
    });
    assert_eq!((joined.nodes, joined.node_rank), (3, 2));
}

#[test]
fn a_node_that_waits_to_be_admitted_says_what_for() {
    let node = in_hub(
        &MemoryHub::new(None),
        LATE,
        &[1, 2, 3],
        &Config {
            join: true,
            meet_timeout_ms: Some(2_000),
            ..averaging()
        },
    );
    thread::scope(|scope| {
        let waiting = scope.spawn(|| refusal(&node, VALUES).to_string());
        until("it waits", || node.status().waiting_for.is_some());
        assert_says(
            &node.status().waiting_for.unwrap_or_default(),
            &[
                "no running cluster was met",
                "check peers, rendezvous or discover",
            ],
        );
        assert_says(
            &waiting.join().unwrap(),
            &[
                "not admitted to a running cluster within 2000 ms",
                "no running cluster was met",
            ],
        );
    });
    assert_eq!(node.status().waiting_for, None, "it waits no more");
}

#[test]
fn a_cluster_whose_rounds_carry_no_parameters_admits_nobody() {
    let means = Config {
        min_nodes: 2,
        base: BaseName::AllReduce,
        beta: 0.0,
        ..config()
    };
    let (told, _) = visited(&means, |hub| {
        let node = in_hub(hub, LATE, &[1, 2, 3], &means);
        refusal(&node, VALUES).to_string()
    });
    assert_says(
        &told,
        &["do not carry the complete state", "set average_every"],
    );
}

#[test]
fn a_node_that_may_bootstrap_agrees_on_min_nodes_also_when_it_comes_late() {
    let late = Config {
        min_nodes: 3,
        ..averaging()
    };
    assert_says(
        &told(&late, VALUES),
        &["refused", "min_nodes is 3 here, 2 there"],
    );
    // Who only joins never bootstraps: its value does not matter.
    let [founder, late, _] = one_comes_later(
        &averaging(),
        &Config {
            join: true,
            min_nodes: 1,
            ..averaging()
        },
    );
    assert_eq!(
        founder.seen.values.last().map(|values| bits(values)),
        late.seen.values.last().map(|values| bits(values))
    );
}
