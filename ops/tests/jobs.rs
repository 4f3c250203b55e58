//! Running jobs under the commands that change them: `scale`, `drain`, `kill`, `status`, over real
//! processes on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Launcher, TRAINING, until, until_holds};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// Images of the training set.
const IMAGES: u64 = 1437;

/// A job under way, with a folder of its own for its control socket.
struct Job {
    launcher: Launcher,
    folder: TempDir,
    /// What the job writes is read at all times: nodes wait while nobody reads their lines, and
    /// they write 60 kB a second.
    output: JoinHandle<String>,
    errors: JoinHandle<String>,
}

/// Reads until the end, beside the test.
fn read(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
}

impl Job {
    /// Launches nodes that train on the digits.
    fn start(nodes: usize, settings: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::start_with(nodes, &[], settings, arguments)
    }

    /// The same, with options of the launch.
    fn start_with(
        nodes: usize,
        options: &[&str],
        settings: &[(&str, &str)],
        arguments: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let slowmo = env!("CARGO_BIN_EXE_slowmo");
        let mut command = Command::new(slowmo);
        command
            .args(["launch", "--nodes", &nodes.to_string()])
            .args(options)
            .args(["--", slowmo])
            .args(arguments);
        command
            .envs(settings.iter().copied())
            .env("SLOWMO_LOG", "error")
            .env("XDG_RUNTIME_DIR", folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut launcher = Launcher(command.spawn().unwrap());
        let output = read(launcher.0.stdout.take().unwrap());
        let errors = read(launcher.0.stderr.take().unwrap());
        Self {
            launcher,
            folder,
            output,
            errors,
        }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slowmo"));
        command
            .args(arguments)
            .arg("--json")
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .output()
            .unwrap()
    }

    fn change(&self, arguments: &[&str]) -> Value {
        let output = self.ask(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Asks for the status until it is as wanted; the last one asked for.
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            let output = self.ask(&["status"]);
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if output.status.success() && wanted(&status) {
                Ok(status)
            } else {
                Err(status.to_string())
            }
        })
    }

    /// Until so many nodes are members and all of them contributed to a round after this one.
    fn until_all(&self, nodes: u64, after: u64) -> Value {
        let of = |status: &Value| {
            [
                status["alive"].as_u64(),
                status["members"].as_u64(),
                status["contributors"].as_u64(),
            ]
        };
        let later = |status: &Value| status["round"].as_u64().is_some_and(|round| round > after);
        self.until("all contribute", |status| {
            of(status) == [Some(nodes); 3] && later(status)
        })
    }

    /// The lines of the nodes until the end of the job.
    fn finish(mut self) -> Vec<Value> {
        let ended = self.launcher.0.wait().unwrap();
        let Self { output, errors, .. } = self;
        assert!(ended.success(), "{}", errors.join().unwrap());
        let output = output.join().unwrap();
        output
            .lines()
            .filter_map(|line| serde_json::from_str(line.split_once("] ")?.1).ok())
            .collect()
    }
}

fn round(status: &Value) -> u64 {
    status["round"].as_u64().unwrap()
}

/// How often each image of each epoch was used.
fn uses(folder: &Path) -> BTreeMap<(u64, u64), u64> {
    let mut uses = BTreeMap::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            let mut fields = line
                .split(' ')
                .skip(1)
                .map(|field| field.parse::<u64>().unwrap());
            *uses
                .entry((fields.next().unwrap(), fields.next().unwrap()))
                .or_insert(0) += 1;
        }
    }
    uses
}

#[test]
fn two_nodes_become_six_and_then_three_and_every_image_is_used_once_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let samples = folder.path().join("samples");
    let settings = [
        ("SLOWMO_BASE", "local_sgd"),
        ("SLOWMO_FREQUENCY", "3"),
        ("SLOWMO_TAU", "12"),
        ("SLOWMO_BETA", "0.5"),
    ];
    let arguments = [
        "demo-node",
        "--epochs",
        "60",
        "--rounds-per-evaluation",
        "1",
        "--samples-log",
        samples.to_str().unwrap(),
    ];
    let job = Job::start(2, &settings, &arguments);
    job.until_all(2, 1);
    assert_eq!(
        job.change(&["scale", "6"])["joined"],
        serde_json::json!([3, 4, 5, 6])
    );
    let six = job.until_all(6, 1);
    assert_eq!(six["momentum_lost"], 0);
    assert_eq!(
        job.change(&["scale", "3"])["drained"],
        serde_json::json!([6, 5, 4])
    );
    let three = job.until_all(3, round(&six));
    assert!(
        three["lineage"] == six["lineage"] && three["momentum_lost"] == 0,
        "{three}"
    );
    let events = job.finish();
    let mut digests: BTreeMap<u64, &Value> = BTreeMap::new();
    for event in events.iter().filter(|event| event["event"] == "round") {
        assert_eq!(
            *digests
                .entry(event["round"].as_u64().unwrap())
                .or_insert(&event["digest"]),
            &event["digest"]
        );
    }
    assert_no_jump(&events);
    let ended: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "done")
        .collect();
    assert_eq!(ended.len(), 6, "those that were drained end in order too");
    let uses = uses(&samples);
    for epoch in 0..60 {
        for image in 0..IMAGES {
            assert_eq!(
                uses.get(&(epoch, image)),
                Some(&1),
                "epoch {epoch}, image {image}"
            );
        }
    }
}

/// Where nodes come or go the loss goes on as if nothing had happened. (It rises by 0.07 once,
/// early, also if nothing does; a newcomer that was averaged as it began would raise it far more.)
fn assert_no_jump(events: &[Value]) {
    let of = |event: &Value| {
        Some((
            event["round"].as_u64()?,
            (
                event["contributors"].as_u64()?,
                event["train_loss"].as_f64()?,
            ),
        ))
    };
    let rounds: BTreeMap<u64, (u64, f64)> = events.iter().filter_map(of).collect();
    let pairs = || rounds.values().zip(rounds.values().skip(1));
    assert!(
        pairs().any(|((before, _), (after, _))| before != after),
        "nobody came or went"
    );
    for ((before, loss), (after, next)) in
        pairs().filter(|((before, _), (after, _))| before != after)
    {
        assert!(
            next - loss < 0.1,
            "from {before} to {after} nodes the loss rose from {loss} to {next}"
        );
    }
}

#[test]
fn a_job_below_its_quorum_says_what_would_release_it_and_goes_on_when_nodes_return() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "1"),
        ("SLOWMO_BETA", "0.5"),
        ("SLOWMO_ON_QUORUM_LOSS", "fork"),
    ];
    let job = Job::start(4, &settings, &TRAINING);
    job.until_all(4, 1);
    for node in ["1", "2", "3"] {
        assert_eq!(
            job.change(&["kill", node])["killed"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }
    // Rounds may be decided between the deaths; the highest id of what is left is never a quorum.
    let expected = [
        (
            "1 of 4 voters live (node 4): no quorum.",
            "node 1, node 2, node 3",
        ),
        ("1 of 3 voters live (node 4): no quorum.", "node 2, node 3"),
        ("1 of 2 voters live (node 4): no quorum.", "node 3"),
    ];
    let said = |why: &str| expected.iter().find(|(waits, _)| why.starts_with(waits));
    let waits = job.until("it waits", |status| {
        status["waiting_for"]
            .as_str()
            .is_some_and(|why| said(why).is_some())
    });
    let why = waits["waiting_for"].as_str().unwrap();
    let (_, remedy) = said(why).unwrap();
    assert!(why.contains(&format!("Bring back {remedy}")), "{why}");
    assert_eq!(
        job.change(&["scale", "4"])["joined"],
        serde_json::json!([1, 2, 3])
    );
    let again = job.until_all(4, round(&waits));
    assert!(again["waiting_for"].is_null(), "{again}");
    let refused = job.ask(&["drain", "9"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .contains("no node 9 is running; running: [1, 2, 3, 4]")
    );
    for node in ["4", "3", "2", "1"] {
        job.change(&["drain", node]);
    }
    job.finish();
}

#[test]
fn a_job_below_its_quorum_recovers_by_an_order_and_admits_what_was_started_meanwhile() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "1"),
        ("SLOWMO_BETA", "0.5"),
    ];
    let job = Job::start(3, &settings, &TRAINING);
    job.until_all(3, 1);
    for node in ["1", "2"] {
        job.change(&["kill", node]);
    }
    let no_quorum = |why: &Value| why.as_str().is_some_and(|why| why.contains("no quorum"));
    job.until("it waits", |status| no_quorum(&status["waiting_for"]));
    let scaled = job.change(&["scale", "3"]);
    assert_eq!(scaled["joined"], serde_json::json!([1, 2]));
    assert!(no_quorum(&scaled["members_wait"]), "{scaled}");
    // The newcomers wait too, for another reason; what the members wait for is said.
    let waits = job.until("newcomers wait", |status| {
        status["nodes"].as_array().is_some_and(|nodes| {
            nodes
                .iter()
                .filter(|node| node["standing"] == "joining")
                .count()
                == 2
        })
    });
    assert!(no_quorum(&waits["waiting_for"]), "{waits}");
    let shown = job.change(&["recover"]);
    assert_eq!(shown["goes_on"], serde_json::json!([3]), "{shown}");
    assert_eq!(shown["ordered"], false);
    let refused = job.ask(&["recover", "--history", "ab"]);
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("not in ab: nothing was changed"), "{told}");
    let history = shown["history"].as_str().unwrap();
    assert_eq!(
        job.change(&["recover", "--history", history])["ordered"],
        true
    );
    let again = job.until_all(3, round(&waits));
    assert_ne!(again["lineage"], waits["lineage"]);
    for node in ["3", "2", "1"] {
        job.change(&["drain", node]);
    }
    job.finish();
}

#[test]
fn nodes_that_all_crash_at_once_bootstrap_together_again() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "1"),
        ("SLOWMO_BETA", "0.5"),
    ];
    let job = Job::start_with(3, &["--restart", "1"], &settings, &TRAINING);
    let before = job.until_all(3, 1);
    std::thread::scope(|scope| {
        for node in ["1", "2", "3"] {
            scope.spawn(|| job.change(&["kill", node]));
        }
    });
    // Each starts once more, a second after its end. None of them may wait to be admitted by nodes
    // that wait for it.
    let again = job.until("all are members of a new run", |status| {
        status["members"] == 3 && status["lineage"] != before["lineage"]
    });
    assert_eq!(again["alive"], 3, "{again}");
    for node in ["1", "2", "3"] {
        job.change(&["drain", node]);
    }
    job.finish();
}

#[test]
fn survivors_go_on_alone() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "1"),
        ("SLOWMO_BETA", "0.5"),
        ("SLOWMO_QUORUM", "survivors"),
    ];
    let job = Job::start(4, &settings, &TRAINING);
    let before = job.until_all(4, 1);
    // Rounds may be decided between the deaths; the highest id of what is left is never a quorum.
    for node in ["1", "2", "3"] {
        job.change(&["kill", node]);
    }
    let alone = job.until_all(1, round(&before));
    assert_ne!(
        alone["lineage"], before["lineage"],
        "fewer than a quorum decide under another history"
    );
    job.change(&["drain", "4"]);
    job.finish();
}

#[test]
fn nodes_that_leave_do_not_count_when_a_job_grows_again_and_one_that_joins_can_be_drained() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "1"),
        ("SLOWMO_BETA", "0.5"),
    ];
    let job = Job::start(2, &settings, &TRAINING);
    job.until_all(2, 1);
    assert_eq!(
        job.change(&["scale", "4"])["joined"],
        serde_json::json!([3, 4])
    );
    // Their sockets are open before they are members; until then they say so.
    until_holds("node 4 drains", || {
        job.ask(&["drain", "4"]).status.success()
    });
    assert_eq!(
        job.change(&["scale", "3"])["drained"],
        serde_json::json!([]),
        "node 4 leaves already"
    );
    let three = job.until_all(3, 1);
    assert_eq!(
        job.change(&["scale", "2"])["drained"],
        serde_json::json!([3])
    );
    let grown = job.change(&["scale", "3"])["joined"].clone();
    assert_eq!(
        grown.as_array().unwrap().len(),
        1,
        "node 3 does not stay: {grown}"
    );
    // The round in which node 3 leaves has three contributors too, and its process may still be
    // ending.
    let members = |status: &Value| {
        let nodes = status["nodes"].as_array().into_iter().flatten();
        nodes.filter(|node| node["standing"] == "member").count()
    };
    let again = job.until("three members go on", |status| {
        members(status) == 3 && round(status) > round(&three)
    });
    assert_eq!(again["waiting_for"], Value::Null, "{again}");
}

#[test]
fn a_node_that_dies_before_the_bootstrap_can_be_started_again() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "1"),
        ("SLOWMO_BETA", "0.5"),
    ];
    let job = Job::start(3, &settings, &TRAINING);
    until_holds("node 2 is killed", || {
        job.ask(&["kill", "2"]).status.success()
    });
    job.until("the others wait for it", |status| {
        let nodes: Vec<_> = status["nodes"].as_array().into_iter().flatten().collect();
        // The bootstrap was faster where they are members.
        nodes.len() == 2
            && nodes
                .iter()
                .all(|node| node["standing"] == "bootstrapping" || node["standing"] == "member")
    });
    assert_eq!(
        job.change(&["scale", "3"])["joined"],
        serde_json::json!([2])
    );
    job.until_all(3, 1);
}

#[test]
fn a_job_grows_no_further_than_its_cluster_may() {
    let settings = [("SLOWMO_TAU", "1"), ("SLOWMO_MAX_NODES", "3")];
    let job = Job::start(2, &settings, &TRAINING);
    job.until_all(2, 1);
    let refused = job.ask(&["scale", "4"]);
    let told = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(
        !refused.status.success()
            && told.contains(
                "4 nodes: the cluster may have max_nodes = 3 members; nothing was changed"
            ),
        "{told}"
    );
    assert_eq!(
        job.change(&["scale", "3"])["joined"],
        serde_json::json!([3])
    );
    job.until_all(3, 1);
}

#[test]
fn with_restart_a_killed_node_comes_back_and_a_drained_one_does_not() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "4"),
        ("SLOWMO_BETA", "0.5"),
    ];
    let job = Job::start_with(3, &["--restart", "1"], &settings, &TRAINING);
    let three = job.until_all(3, 1);
    job.change(&["kill", "2"]);
    job.until("the others go on", |status| {
        status["members"] == 2 && round(status) > round(&three)
    });
    let again = job.until_all(3, round(&three));
    assert_eq!(
        job.change(&["drain", "3"])["drained"],
        serde_json::json!([3])
    );
    let two = job.until_all(2, round(&again));
    // A restart would come after a second.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    let later = job.until_all(2, round(&two));
    assert_eq!(later["nodes"].as_array().unwrap().len(), 2, "{later}");
}

#[test]
fn a_job_whose_last_nodes_crash_has_failed_though_another_one_was_drained() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = folder.path().to_str().unwrap();
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "4"),
        ("SLOWMO_BETA", "0.5"),
        ("SLOWMO_CHECKPOINTS", checkpoints),
        ("SLOWMO_CHECKPOINT_EVERY", "1"),
    ];
    let mut job = Job::start(3, &settings, &TRAINING);
    let three = job.until_all(3, 2);
    job.change(&["drain", "3"]);
    job.until("node 3 has ended", |status| {
        status["nodes"].as_array().unwrap().len() == 2 && round(status) > round(&three)
    });
    let killed = job.change(&["kill", "1", "2"]);
    assert_eq!(killed["killed"], serde_json::json!([1, 2]));
    assert_eq!(job.launcher.0.wait().unwrap().code(), Some(1));
    let errors = job.errors.join().unwrap();
    assert!(
        errors.contains("node 3 was drained and left at step ")
            && errors.contains(
                "error: no node finished its training; the last complete checkpoint is of step "
            )
            && errors.contains("; node 1 failed first and wrote nothing to standard error"),
        "{errors}"
    );
}

#[test]
fn a_node_that_returns_without_leave_counts_as_crashed() {
    let task = r#"{"parameters":10,"steps":3,"returns_early":true}"#;
    let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(["launch", "--nodes", "1", "--restart", "1", "--"])
        .args([env!("CARGO_BIN_EXE_slowmo"), "bench-node", task])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let told = "node 1 ended at step 5 without worker.leave(), which a training that is over calls: \
                it counts as failed; ";
    assert!(
        error.contains(&format!("{told}it starts again in 1 s (restart 1 of 1)"))
            && error.contains(&format!("{told}no other node of this job runs"))
            && error.contains("error: no node finished its training; the last lines of node 1"),
        "{error}"
    );
}

/// The value of a setting that a node says is in force, and the one that it was started with.
fn setting<'a>(node: &'a Value, key: &str) -> Option<(&'a str, &'a str)> {
    let settings = node["settings"].as_array()?;
    let found = settings.iter().find(|setting| setting["key"] == key)?;
    Some((found["value"].as_str()?, found["configured"].as_str()?))
}

#[test]
fn a_setting_changes_on_all_nodes_of_a_running_job_and_on_those_that_come_later() {
    let settings = [
        ("SLOWMO_BASE", "none"),
        ("SLOWMO_TAU", "4"),
        ("SLOWMO_BETA", "0.5"),
    ];
    let job = Job::start(2, &settings, &TRAINING);
    job.until_all(2, 1);
    let set = job.change(&["set", "tau", "06"]);
    assert_eq!((&set["key"], &set["value"]), (&"tau".into(), &"6".into()));
    let all_have = |status: &Value| {
        let nodes = status["nodes"].as_array().unwrap();
        nodes
            .iter()
            .all(|node| setting(node, "tau") == Some(("6", "4")))
    };
    let two = job.until("both have it", all_have);
    // It was started with the job's settings, and takes what is in force.
    job.change(&["scale", "3"]);
    job.until_all(3, round(&two));
    job.until("all three have it", all_have);
    // One that crashed, too, and is started again.
    job.change(&["kill", "2"]);
    job.until("the others go on", |status| status["members"] == 2);
    job.change(&["scale", "3"]);
    job.until("all have it again", |status| {
        status["members"] == 3 && all_have(status)
    });
    let refused = |arguments: &[&str], why: &str| {
        let output = job.ask(arguments);
        // What is wrong with the words themselves is said to people.
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(!output.status.success() && told.contains(why), "{told}");
    };
    refused(
        &["set", "tau", "0"],
        "tau must be a whole number of 1 or more",
    );
    refused(&["set", "frequency", "3"], "its base is not local_sgd");
    refused(&["set", "grace_ms", "150001"], "at most 150000");
    refused(
        &["set", "beta", "0.9"],
        "possible values: frequency, gossip_wire",
    );
}

#[test]
fn a_node_without_a_launcher_answers_on_its_own_socket() {
    let folder = tempfile::tempdir().unwrap();
    let slowmo = env!("CARGO_BIN_EXE_slowmo");
    let socket = folder.path().join("node");
    let mut command = Command::new(slowmo);
    command.args(TRAINING).stdout(Stdio::null());
    let mut node = command
        .env("SLOWMO_ADMIN", &socket)
        .env("SLOWMO_NODE_ID", "7")
        .env("SLOWMO_TAU", "1")
        .spawn()
        .unwrap();
    let ask = |what: &str| {
        let output = Command::new(slowmo)
            .args([what, "--json", "--admin"])
            .arg(&socket)
            .output()
            .unwrap();
        (
            output.status.success(),
            serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default(),
        )
    };
    until_holds("the node is a member", || {
        assert!(node.try_wait().unwrap().is_none());
        ask("status").1["nodes"][0]["standing"] == "member"
    });
    assert_eq!(ask("status").1["nodes"][0]["node"], 7);
    let probe = |what: &str| {
        Command::new(slowmo)
            .args(["status", "--probe", what, "--admin"])
            .arg(&socket)
            .output()
            .unwrap()
    };
    assert!(probe("live").status.success() && probe("ready").status.success());
    let drained = Command::new(slowmo)
        .args(["drain", "--wait", "60", "--admin"])
        .arg(&socket)
        .output()
        .unwrap();
    assert!(
        drained.status.success(),
        "{}",
        String::from_utf8_lossy(&drained.stderr)
    );
    assert!(!socket.exists(), "it was waited for");
    assert!(node.wait().unwrap().success());
    assert!(!probe("live").status.success());
    let (answered, report) = ask("status");
    assert!(
        !answered
            && report["error"]
                .as_str()
                .unwrap()
                .contains("does not answer"),
        "{report}"
    );
}

#[test]
fn a_node_that_founds_is_live_and_not_ready_and_one_that_cannot_leave_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let slowmo = env!("CARGO_BIN_EXE_slowmo");
    let socket = folder.path().join("node");
    let key = folder.path().join("key");
    let list = folder.path().join("nodes");
    std::fs::write(&list, "127.0.0.1:9  # nobody\n").unwrap();
    assert!(
        Command::new(slowmo)
            .args(["keygen", "--out"])
            .arg(&key)
            .output()
            .unwrap()
            .status
            .success()
    );
    let mut command = Command::new(slowmo);
    command.args(TRAINING).stdout(Stdio::null());
    command
        .env("SLOWMO_ADMIN", &socket)
        .env("SLOWMO_NODE_ID", "7")
        .env("SLOWMO_TAU", "1")
        .env("SLOWMO_MIN_NODES", "2");
    command
        .env("SLOWMO_CLUSTER_KEY_FILE", &key)
        .env("SLOWMO_DISCOVER", format!("file:{}", list.display()));
    let mut node = command.spawn().unwrap();
    let ask = |arguments: &[&str]| {
        Command::new(slowmo)
            .args(arguments)
            .arg("--admin")
            .arg(&socket)
            .output()
            .unwrap()
    };
    until_holds("the node lives", || {
        assert!(node.try_wait().unwrap().is_none());
        ask(&["status", "--probe", "live"]).status.success()
    });
    let ready = ask(&["status", "--probe", "ready"]);
    assert_eq!(ready.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&ready.stderr).contains("node 7 is not a member: bootstrapping"),
        "{ready:?}"
    );
    node.kill().unwrap();
    node.wait().unwrap();
    // A killed process leaves its socket behind.
    assert!(socket.exists() && !ask(&["status", "--probe", "live"]).status.success());
    let without_socket = Command::new(slowmo)
        .args(["status", "--probe", "ready"])
        .output()
        .unwrap();
    assert_eq!(without_socket.status.code(), Some(2));
}
