//! Model checking: every reachable state of small clusters is right, and every planted bug is found.
//!
//! `SLOWMO_MODEL=long cargo test --release -p slowmo-chaos --test model -- --nocapture` explores larger ones, which takes hours.
#![allow(clippy::panic)]

use slowmo_chaos::model::{Config, Report, Subject, ballots, check, rounds};
use slowmo_protocol::coordinator::RoundKind;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

/// Runs searches beside each other, one a core.
fn all(configs: Vec<Config>) -> Vec<Report> {
    let (queue, reports) = (Mutex::new(VecDeque::from(configs)), Mutex::new(Vec::new()));
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(config) = next() {
                    let report = check(&config);
                    println!("{report}");
                    reports.lock().into_iter().for_each(|mut reports| reports.push(report.clone()));
                }
            });
        }
    });
    reports.into_inner().unwrap_or_default()
}

#[test]
fn every_state_of_small_clusters_is_right() {
    let long = std::env::var("SLOWMO_MODEL").is_ok_and(|which| which == "long");
    let configs = if long { Config::long(1) } else { Config::short(1) };
    let expected = configs.len();
    let reports = all(configs);
    assert_eq!(reports.len(), expected);
    let wrong: Vec<String> = reports.iter().filter(|report| !report.holds()).map(Report::to_string).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn planted_ballots() -> Vec<(Config, &'static [&'static str])> {
    use ballots::Planted;
    let planted = |name, bug, take_overs, found: &'static [&'static str]| {
        let setup = ballots::Setup { planted: Some(bug), ..ballots::Setup::new(3, take_overs, 0) };
        (planted(name, Subject::Ballots(setup)), found)
    };
    let two: &[&str] = &["at most one value is decided", "what is proposed above a decided ballot is what was decided"];
    vec![
        planted("proposes without a quorum", Planted::ProposesWithoutQuorum, 1, &["who decides is a quorum"]),
        planted("inherits nothing", Planted::InheritsNothing, 1, two),
        planted("counts after its promise", Planted::CountsAfterPromise, 1, two),
        planted("shares a ballot", Planted::SharesBallot, 2, &["a ballot has one motion"]),
        planted("forgets its promise", Planted::ForgetsPromise, 1, two),
    ]
}

fn planted_rounds() -> Vec<(Config, &'static [&'static str])> {
    use rounds::{Planted, Setup};
    let planted = |name, setup, found: &'static [&'static str]| (planted(name, Subject::Rounds(setup)), found);
    let calm = || Setup::calm(&[RoundKind::Average]);
    const QUORUM: &str = "a quorum of the members of the round before decides, and no joiner";
    let without = Setup { wrong_verdicts: 2, planted: Some(Planted::DecidesWithoutQuorum), ..calm() };
    let nothing = Setup { planted: Some(Planted::HoldsNothing), ..calm() };
    let forgets = Setup { wrong_verdicts: 1, planted: Some(Planted::ForgetsVotes), ..calm() };
    vec![
        planted("decides without a quorum", without, &[QUORUM, "what is applied was decided"]),
        planted("holds nothing", nothing, &["all who must hold what is decided", "who applies holds all it must"]),
        planted("forgets its votes", forgets, &["a round has one outcome", "all who must hold what is decided"]),
    ]
}

fn planted(name: &'static str, subject: Subject) -> Config {
    Config { name, subject, threads: 1, limit: Duration::from_secs(120) }
}

#[test]
fn every_planted_bug_is_found() {
    let planted: Vec<_> = planted_ballots().into_iter().chain(planted_rounds()).collect();
    let reports = all(planted.iter().map(|(config, _)| config.clone()).collect());
    for (config, properties) in planted {
        let report = reports.iter().find(|report| report.name == config.name).unwrap_or_else(|| panic!("{}: no report", config.name));
        let found = report.violations.iter().any(|finding| properties.contains(&finding.property));
        assert!(found && !report.holds(), "not found: {report}");
    }
}
