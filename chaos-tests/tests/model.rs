//! Model checking: every reachable state of small clusters is right, and (feature `planted`) every
//! planted bug is found.
//!
//! `SLOWMO_MODEL=long cargo test --release -p slowmo-chaos --test model -- --nocapture` explores
//! larger ones, which takes hours.
#![allow(clippy::panic)]

use slowmo_chaos::model::{Config, Report, check};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Runs searches beside each other, one a core.
fn all(configs: Vec<Config>) -> Vec<Report> {
    let queue = Mutex::new(VecDeque::from(configs));
    let reports = Mutex::new(Vec::new());
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(config) = next() {
                    let report = check(&config);
                    // The path to what was found was taken again, on this thread.
                    #[cfg(feature = "planted")]
                    slowmo_protocol::planted::plant(None);
                    println!("{report}");
                    reports
                        .lock()
                        .into_iter()
                        .for_each(|mut reports| reports.push(report.clone()));
                }
            });
        }
    });
    reports.into_inner().unwrap_or_default()
}

#[test]
fn every_state_of_small_clusters_is_right() {
    let long = std::env::var("SLOWMO_MODEL").is_ok_and(|which| which == "long");
    let configs = if long {
        Config::long()
    } else {
        Config::short()
    };
    let expected = configs.len();
    let reports = all(configs);
    assert_eq!(reports.len(), expected);
    let wrong: Vec<String> = reports
        .iter()
        .filter(|report| !report.proves())
        .map(Report::to_string)
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[cfg(feature = "planted")]
mod planted {
    use super::all;
    use slowmo_chaos::model::Config;
    use slowmo_chaos::model::rounds::{Planted, Setup};
    use slowmo_protocol::coordinator::RoundKind;
    use slowmo_protocol::ident::NodeId;
    use slowmo_protocol::planted::{Bug, plant};
    use std::time::Duration;

    /// A bug, within which bounds it is looked for, and which property must find it.
    struct Case {
        name: &'static str,
        setup: Setup,
        planted: Planted,
        property: &'static str,
    }

    fn calm() -> Setup {
        Setup::calm(&[RoundKind::Average])
    }

    /// One member may crash, and one may wrongly take the leader for dead.
    fn crash() -> Setup {
        Setup {
            crashes: 1,
            ..calm()
        }
    }

    /// Two members, of which each may be wrong about the other.
    fn two() -> Setup {
        Setup {
            members: 2,
            wrong_verdicts: 2,
            ..calm()
        }
    }

    const DOUBT: [(NodeId, NodeId); 1] = [(NodeId(2), NodeId(1))];

    fn doubt() -> Setup {
        Setup {
            wrong_verdicts: 1,
            doubts: &DOUBT,
            ..calm()
        }
    }

    fn cases() -> Vec<Case> {
        let case = |name, setup, planted, property| Case {
            name,
            setup,
            planted,
            property,
        };
        let machine = Planted::Machine;
        vec![
            case(
                "decides without a quorum",
                two(),
                machine(|| plant(Some(Bug::DecideWithoutQuorum))),
                "a quorum of the voters that the entry before names decides",
            ),
            case(
                "holds nothing",
                calm(),
                Planted::HoldsNothing,
                "who is ready holds all it must",
            ),
            case(
                "forgets its votes",
                doubt(),
                Planted::ForgetsVotes,
                "members of a decided view hold what was decided",
            ),
            case(
                "attempts after it asked for votes",
                crash(),
                machine(|| plant(Some(Bug::AttemptAfterAccept))),
                "nothing is attempted after votes were asked for under the same term",
            ),
            case(
                "asks for votes before all are ready",
                calm(),
                machine(|| plant(Some(Bug::AcceptBeforeReady))),
                "votes are asked for once everybody is ready",
            ),
            case(
                "drops its data for a later attempt",
                crash(),
                machine(|| plant(Some(Bug::DroppedForLaterAttempt))),
                "who is ready keeps its data while it may be decided",
            ),
            case(
                "closes its term too early",
                crash(),
                machine(|| plant(Some(Bug::ClosedTooEarly))),
                "who is ready keeps its data while it may be decided",
            ),
        ]
    }

    /// That the same bounds without the bug hold no wrong state is what the other test shows.
    #[test]
    fn every_planted_bug_is_found() {
        let config = |case: &Case| {
            let setup = Setup {
                planted: Some(case.planted),
                ..case.setup.clone()
            };
            Config {
                name: case.name,
                setup,
                limit: Duration::from_secs(120),
            }
        };
        let cases = cases();
        let reports = all(cases.iter().map(config).collect());
        for case in cases {
            let report = reports
                .iter()
                .find(|report| report.name == case.name)
                .unwrap_or_else(|| panic!("{}: no report", case.name));
            assert!(report.violates(case.property), "not found: {report}");
        }
    }
}
