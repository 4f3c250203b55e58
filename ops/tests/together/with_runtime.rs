//! Commands that train: the demo and the benches, with small figures, over real processes and QUIC
//! on loopback.

use serde_json::Value;
use std::process::Command;

/// Runs a command with `--json`; its only object.
fn report(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(arguments)
        .arg("--json")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_demo_learns_and_its_nodes_agree() {
    let report = report(&["demo", "--nodes", "2", "--steps", "360"]);
    assert_eq!(report["succeeded"], true);
    assert_eq!(report["rounds_bit_identical"], 30);
    assert!(
        report["test_accuracy_min"].as_f64().unwrap() >= 0.95,
        "{report}"
    );
    let nodes = report["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    assert_eq!(
        nodes[0]["digest"], nodes[1]["digest"],
        "the last step closed a round"
    );
}

#[test]
fn the_demo_kills_one_node_and_a_new_one_joins() {
    let report = report(&["demo", "--nodes", "3", "--steps", "960"]);
    assert_eq!(
        (&report["succeeded"], &report["rounds_bit_identical"]),
        (&true.into(), &80.into()),
        "{report}"
    );
    let fates: Vec<_> = report["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["fate"].as_str().unwrap())
        .collect();
    assert_eq!(fates, ["killed", "bootstrapped", "bootstrapped", "joined"]);
    assert!(report["recovery_s"].as_f64().unwrap() < 5.0, "{report}");
}

#[test]
fn a_demo_that_learned_too_little_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(["demo", "--nodes", "2", "--steps", "12"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("below 95 %"));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("accuracy"),
        "the table is shown all the same"
    );
}

#[test]
fn rounds_send_little_more_than_they_must() {
    let report = report(&[
        "bench", "round", "--nodes", "2", "--mib", "4", "--rounds", "2",
    ]);
    for kind in ["average", "outer_round"] {
        let figures = &report[kind];
        assert!(figures["p50_ms"].as_f64().unwrap() > 0.0);
        let sent = figures["sent_vs_ideal"].as_f64().unwrap();
        assert!((0.99..1.15).contains(&sent), "{kind} sent × {sent}");
        assert!(figures["rate_vs_plain_quinn"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn gossip_sends_little_more_than_it_must() {
    let report = report(&[
        "bench", "gossip", "--nodes", "2", "--mib", "4", "--steps", "3",
    ]);
    let sent = report["communication"]["sent_vs_ideal"].as_f64().unwrap();
    assert!((0.99..1.15).contains(&sent), "sent × {sent}");
    for kind in ["synchronous", "overlapped"] {
        assert!(report[kind]["mean_ms"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(report["within_target"].is_null(), "nothing is computed");
}

#[test]
fn gossip_beside_a_slow_node_is_measured() {
    let computing = ["--compute-ms", "20", "--slow-staleness", "4"];
    let report = report(
        &[
            &[
                "bench", "gossip", "--nodes", "3", "--mib", "1", "--steps", "4",
            ][..],
            &computing,
        ]
        .concat(),
    );
    // The targets that the documentation names.
    let figure = |value: &Value| value.as_f64().unwrap();
    let met = figure(&report["overlapped_vs_longer"]) <= 1.05
        && figure(&report["slowed"]["others_vs_unslowed"]) < 1.1
        && figure(&report["skipped"]["others_vs_unslowed"]) < 1.1;
    assert_eq!(report["within_target"], met, "{report}");
    for (kind, staleness) in [("slowed", 4), ("skipped", 1)] {
        assert_eq!(
            (&report[kind]["staleness"], &report[kind]["steps"]),
            (&staleness.into(), &3.into()),
            "{report}"
        );
        // The slow node takes 100 ms.
        assert!(
            report[kind]["others"]["p50_ms"].as_f64().unwrap() < 80.0,
            "{report}"
        );
    }
}

#[test]
fn killed_and_stopped_nodes_are_excluded_and_come_back() {
    for signal in ["kill", "stop"] {
        let report = report(&[
            "bench", "recovery", "--nodes", "4", "--kills", "3", "--signal", signal,
        ]);
        assert_eq!(report["recoveries"].as_array().unwrap().len(), 3);
        assert_eq!(
            (&report["momentum_lost"], &report["rounds_decided_twice"]),
            (&0.into(), &0.into()),
            "{report}"
        );
        assert!(
            report["without_victim"]["max_ms"].as_f64().unwrap() < 5_000.0,
            "{report}"
        );
    }
}

#[test]
fn a_joiner_receives_what_it_needs_and_little_more() {
    let report = report(&[
        "bench", "join", "--nodes", "3", "--mib", "8", "--joins", "2",
    ]);
    assert!(
        report["received_vs_needed_max"].as_f64().unwrap() < 1.1,
        "{report}"
    );
    assert_eq!(
        (&report["momentum_lost"], &report["rounds_missed"]),
        (&0.into(), &0.into()),
        "{report}"
    );
}

#[test]
fn idle_steps_are_reported_in_microseconds() {
    let report = report(&[
        "bench", "step", "--nodes", "1", "--mib", "4", "--steps", "250",
    ]);
    assert!(report["p50_us"].as_f64().unwrap() < 1000.0, "{report}");
}
