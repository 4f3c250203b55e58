//! `slowmo chaos` with real processes on loopback: short runs, their reports, and what is left when
//! one is interrupted.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SLOWMO: &str = env!("CARGO_BIN_EXE_slowmo");
/// Nodes that train on the digits until they are drained.
const NODE: [&str; 6] = [
    SLOWMO,
    "demo-node",
    "--steps",
    "1000000000",
    "--step-ms",
    "20",
];
/// A round every 0.2 s; the cut-off are soon taken for dead.
const SETTINGS: &str = "\n[settings]\nbase = 'none'\ntau = 10\nsuspect_ms = 400\n";

fn chaos(arguments: &[&str]) -> Command {
    let mut command = Command::new(SLOWMO);
    command
        .arg("chaos")
        .args(arguments)
        .env("SLOWMO_LOG", "error");
    command
}

/// Runs a scenario in a folder and reads the report that it prints.
fn run(folder: &Path, scenario: &str, arguments: &[&str]) -> (Output, Value) {
    let file = folder.join("scenario-of-test.toml");
    std::fs::write(&file, scenario.to_owned() + SETTINGS).unwrap();
    let out = folder.join("out");
    let file = file.to_str().unwrap();
    let out = out.to_str().unwrap();
    let output = chaos(&["run", file, "--out", out, "--json"])
        .args(arguments)
        .arg("--")
        .args(NODE)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    (output, report)
}

/// The shipped scenario of one kill, with three nodes instead of eight and seconds for minutes.
fn one_kill() -> String {
    let shipped = include_str!("../../../chaos-tests/scenarios/one_kill.toml");
    let changes = [
        ("nodes = 8", "nodes = 3"),
        ("duration_s = 30", "duration_s = 3\nwarm_up_s = 0.2"),
        ("quiet_s = 15", "quiet_s = 3"),
        ("at_s = 10", "at_s = 0.8"),
        ("for_s = 5", "for_s = 0.4"),
    ];
    changes
        .iter()
        .fold(shipped.to_owned(), |text, (shipped, short)| {
            assert!(text.contains(shipped), "{shipped} in {text}");
            text.replace(shipped, short)
        })
}

fn assert_sound(output: &Output, report: &Value) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && report["succeeded"] == true,
        "{text}\n{report:#}"
    );
    for judged in report["invariants"].as_array().unwrap() {
        assert_ne!(judged["verdict"], "violated", "{judged}");
    }
    // On a busy machine a round may take more than a second of the few that are measured.
    assert!(
        report["measures"]["rounds"].as_u64().unwrap() > 1,
        "{report:#}"
    );
}

#[test]
fn a_node_is_killed_and_comes_back_and_the_report_can_be_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let (output, report) = run(folder.path(), &one_kill(), &["--seed", "7"]);
    assert_sound(&output, &report);
    let kinds: Vec<&str> = report["measures"]["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| kind["name"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["kill", "start"]);
    assert!(
        report["measures"]["returned"] == 1
            && report["seed"] == 7
            && report["baseline"]["rounds"].as_u64().unwrap() > 3,
        "{report:#}"
    );
    assert!(
        report["throughput_share"].as_f64().unwrap() > 0.2,
        "{report:#}"
    );

    let out = folder.path().join("out");
    let json = out.join("report.json");
    let page = out.join("report.html");
    let written = std::fs::read(&json).unwrap();
    let drawn = std::fs::read_to_string(&page).unwrap();
    assert!(
        drawn.ends_with("</html>\n") && drawn.contains("<svg") && !drawn.contains("http"),
        "one page that needs nothing else"
    );
    [&json, &page]
        .into_iter()
        .for_each(|file| std::fs::remove_file(file).unwrap());
    let again = chaos(&["report", out.to_str().unwrap(), "--json"])
        .output()
        .unwrap();
    assert!(again.status.success());
    assert_eq!(
        serde_json::from_slice::<Value>(&again.stdout).unwrap(),
        report
    );
    assert_eq!(
        (
            std::fs::read(&json).unwrap(),
            std::fs::read_to_string(&page).unwrap()
        ),
        (written, drawn)
    );
    assert!(!out.join("raw").exists());
}

#[test]
fn a_cut_heals_and_what_is_expected_in_vain_fails_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "
        summary = 'two of five are cut off'
        nodes = 5
        duration_s = 4
        warm_up_s = 0.2
        quiet_s = 6
        script = [{ at_s = 0.5, do = 'cut', from = [1, 2, 3], to = [4, 5], for_s = 2.5 }]
        [expect]
        victims_return = true
        whole_within_ms = 5000
        contributing = 0.999
    ";
    let (output, report) = run(folder.path(), scenario, &["--no-baseline"]);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    let met = |name: &str| {
        report["expectations"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["name"] == name)
            .unwrap()["met"]
            .clone()
    };
    assert_eq!(
        (
            met("contributing"),
            met("victims_return"),
            met("whole_within_ms")
        ),
        (false.into(), true.into(), true.into()),
        "{report:#}"
    );
    assert!(
        report["invariants"]
            .as_array()
            .unwrap()
            .iter()
            .all(|judged| judged["verdict"] != "violated"),
        "{report:#}"
    );
    assert!(
        report["traffic"]["lost"].as_u64().unwrap() > 0 && report["baseline"].is_null(),
        "{report:#}"
    );
}

#[test]
fn a_mistyped_scenario_or_word_is_answered_with_the_nearest_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(
        &file,
        "summary = 'x'\nnodes = 3\nduration_s = 5\n[[script]]\nat_s = 1\ndo = 'kil'\nwho = 2\n",
    )
    .unwrap();
    for (scenario, wanted) in [
        (file.to_str().unwrap(), "did you mean `kill`?"),
        ("one_kil", "did you mean 'one_kill'?"),
    ] {
        let output = chaos(&["run", scenario, "--", "true"])
            .current_dir(&folder)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && error.contains(wanted),
            "{error}"
        );
    }
    let output = chaos(&["run", "one_kill", "--", "./nothing-here"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no binary ./nothing-here"));
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing was written"
    );
}

#[test]
fn every_shipped_scenario_is_listed() {
    let output = chaos(&["list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|scenario| scenario["name"].as_str().unwrap())
        .collect();
    for name in [
        "one_kill",
        "leader_kill",
        "rolling_restart",
        "half_cut",
        "bridge_cut",
        "two_sites",
        "flapping_link",
        "slow_link_10mbit",
        "spot_market",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(names.contains(&"storm") && names.contains(&"soak"));
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_leaves_nobody_and_keeps_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let out = folder.path().join("out");
    let scenario = "summary = 'x'\nnodes = 3\nduration_s = 60\nscript = \
        [{ at_s = 0.3, do = 'pause', who = 2, for_s = 50 }]";
    std::fs::write(&file, scenario.to_owned() + SETTINGS).unwrap();
    let mut command = chaos(&[
        "run",
        file.to_str().unwrap(),
        "--no-baseline",
        "--out",
        out.to_str().unwrap(),
        "--",
    ]);
    let mut runner = command
        .args(NODE)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(runner.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(
        lines.any(|line| line.contains("pauses for")),
        "it never came to the first fault"
    );
    assert!(!nodes_of(&out).is_empty());
    kill(Pid::from_raw(runner.id() as i32), Signal::SIGINT).unwrap();
    let error: Vec<String> = lines.collect();
    assert_eq!(runner.wait().unwrap().code(), Some(1));
    assert!(
        error
            .iter()
            .any(|line| line.contains("SIGINT") && line.contains("trace.jsonl")),
        "{error:?}"
    );
    assert_eq!(nodes_of(&out), Vec::<String>::new());
    let trace = std::fs::read_to_string(out.join("trace.jsonl")).unwrap();
    assert_eq!(
        trace
            .lines()
            .filter(|line| line.contains("\"event\":\"started\""))
            .count(),
        3
    );
}

/// Processes that write their traces below this folder.
#[cfg(target_os = "linux")]
fn nodes_of(out: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let told = format!("SLOWMO_TRACE={}", out.display());
    let is_node = |process: &std::path::PathBuf| {
        std::fs::read(process.join("environ"))
            .is_ok_and(|variables| String::from_utf8_lossy(&variables).contains(&told))
    };
    processes
        .filter(is_node)
        .map(|process| process.display().to_string())
        .collect()
}
