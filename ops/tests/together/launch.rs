//! Launches of real processes (shell scripts): what they are told, how they are shown, and that
//! none is ever left.

use crate::common::{Launcher, PATIENCE, until_holds};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Prints its process id, then waits; `exec` keeps the id.
const SLEEPER: &str = "echo pid $$; exec sleep 60";
/// The same, deaf to SIGTERM; a background process makes it a whole group.
const DEAF_SLEEPER: &str =
    "trap '' TERM; sleep 60 & echo pid $!; echo pid $$; while true; do sleep 1; done";

fn launcher(nodes: usize, script: &str) -> Command {
    launcher_with(&[], nodes, script)
}

fn launcher_with(arguments: &[&str], nodes: usize, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slowmo"));
    command.args(["launch", "--nodes", &nodes.to_string()]);
    command.args(arguments);
    command
        .args(["--", "sh", "-c", script])
        .env_remove("SLOWMO_CLUSTER_KEY")
        .env_remove("SLOWMO_CLUSTER_KEY_FILE");
    command
}

/// A launch that one failure ends.
fn launch_failing_fast(nodes: usize, script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slowmo"));
    command.args([
        "launch",
        "--fail-fast",
        "--nodes",
        &nodes.to_string(),
        "--",
        "sh",
        "-c",
        script,
    ]);
    command.output().unwrap()
}

fn sorted_lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(bytes)
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

/// Starts a launch and waits until `processes` ids were printed.
fn start(nodes: usize, script: &str, processes: usize) -> (Child, Vec<Pid>) {
    start_with(&[], (nodes, script), processes)
}

/// The same, with more arguments of the launch.
fn start_with(
    arguments: &[&str],
    (nodes, script): (usize, &str),
    processes: usize,
) -> (Child, Vec<Pid>) {
    let mut child = launcher_with(arguments, nodes, script)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let pid = |line: String| {
        line.split_once("] pid ")
            .map(|(_, pid)| Pid::from_raw(pid.parse().unwrap()))
    };
    let pids = lines
        .map_while(Result::ok)
        .filter_map(pid)
        .take(processes)
        .collect();
    (child, pids)
}

fn is_gone(pid: Pid) -> bool {
    // A process that nobody has reaped yet is a zombie: it has ended too.
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    kill(pid, None) == Err(Errno::ESRCH)
        || status
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z'))
}

fn finish(mut launcher: Child) -> (Option<i32>, String) {
    until_holds("the launcher's end", || {
        launcher.try_wait().unwrap().is_some()
    });
    let output = launcher.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn nodes_are_told_who_they_are_and_shown_behind_prefixes() {
    let script = r#"echo "$SLOWMO_NODE_ID of $SLOWMO_MIN_NODES at $SLOWMO_LISTEN, launcher $SLOWMO_LAUNCHER_PID is $PPID"
        stat -c %a "$SLOWMO_CLUSTER_KEY_FILE" >&2; test -d "$SLOWMO_RENDEZVOUS" && echo "devices ${SLOWMO_DEVICES:-unset}""#;
    let child = launcher(3, script)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut expected = vec![];
    for node in 1..=3 {
        expected.push(format!(
            "[node {node}] {node} of 3 at 127.0.0.1:0, launcher {id} is {id}"
        ));
        expected.push(format!("[node {node}] devices unset"));
    }
    let lines = sorted_lines(&output.stdout);
    assert!(
        lines
            .last()
            .unwrap()
            .starts_with("all nodes ended well after "),
        "{lines:?}"
    );
    assert_eq!(lines[..6], expected);
    assert_eq!(
        sorted_lines(&output.stderr),
        ["[node 1] 600", "[node 2] 600", "[node 3] 600"]
    );
}

#[test]
fn workers_and_key_file_reach_the_nodes_and_json_keeps_standard_output_clean() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "secret\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_slowmo"));
    command
        .args([
            "--json",
            "launch",
            "--nodes",
            "2",
            "--workers",
            "3",
            "--cluster-key-file",
        ])
        .arg(&file);
    command
        .args([
            "--",
            "sh",
            "-c",
            "echo $SLOWMO_DEVICES $(cat $SLOWMO_CLUSTER_KEY_FILE)",
        ])
        .env("SLOWMO_CLUSTER_KEY", "another");
    let output = command.output().unwrap();
    assert_eq!(
        sorted_lines(&output.stderr)[..2],
        ["[node 1] 3 secret", "[node 2] 3 secret"]
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (report["succeeded"].as_bool(), report["nodes"].as_u64()),
        (Some(true), Some(2))
    );
}

#[test]
fn more_nodes_than_the_cluster_may_have_are_not_started() {
    let refused = |variable: &str, argument: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
            .args(["launch", "--nodes", "3", "--", "echo", argument])
            .env("SLOWMO_MAX_NODES", variable)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.stdout.is_empty() || output.status.success(),
            "{error}"
        );
        error
    };
    for error in [refused("2", "up"), refused("8", "--slowmo-max-nodes=2")] {
        assert!(
            error.contains("--nodes 3: the cluster may have max_nodes = 2 members"),
            "{error}"
        );
    }
    assert_eq!(refused("3", "up"), "");
}

#[test]
fn with_fail_fast_a_failing_node_ends_the_others_and_is_named() {
    let start = Instant::now();
    let output = launch_failing_fast(
        3,
        "echo pid $$; if [ $SLOWMO_NODE_ID = 2 ]; then sleep 0.2; echo the reason >&2; \
         for frame in $(seq 30); do echo \"  $frame: a::frame\" >&2; \
         echo '             at src/a.rs:7' >&2; done; exit 7; fi; \
         exec sleep 60",
    );
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.ends_with(
            "error: node 2 failed (exit code 7); the other nodes were ended; its last \
             lines:\n    the reason\n"
        ),
        "{error}"
    );
    let pids = sorted_lines(&output.stdout);
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|line| is_gone(Pid::from_raw(
        line.split_once("] pid ").unwrap().1.parse().unwrap()
    ))));
}

#[test]
fn a_failing_node_is_named_and_the_others_go_on() {
    let output = launcher(
        3,
        "if [ $SLOWMO_NODE_ID = 2 ]; then exit 7; fi; sleep 0.3; echo done",
    )
    .output()
    .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(
        error.contains("node 2 failed (exit status: 7); the others go on without it"),
        "{error}"
    );
    let lines = sorted_lines(&output.stdout);
    assert_eq!(lines[..2], ["[node 1] done", "[node 3] done"]);
    assert!(
        lines[2].starts_with("the job ended after ")
            && lines[2].ends_with(" s; nodes [2] had failed before"),
        "{lines:?}"
    );
}

#[test]
fn with_restart_a_crashed_node_starts_again_and_one_that_ended_in_order_does_not() {
    let folder = tempfile::tempdir().unwrap();
    // Node 1 ends well, node 2 crashes twice, node 3 was asked to end.
    let script =
        "echo start >> $STARTS/$SLOWMO_NODE_ID; if [ $SLOWMO_NODE_ID = 3 ]; then exit 143; fi
        if [ $SLOWMO_NODE_ID = 2 ] && [ $(wc -l < $STARTS/2) -lt 3 ]; then exit 7; fi; echo done";
    let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(["launch", "--nodes", "3", "--restart", "2", "--"])
        .args(["sh", "-c", script])
        .env("STARTS", folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    for told in [
        "node 2 failed (exit status: 7); it starts again in 1 s (restart 1 of 2)",
        "node 2 failed (exit status: 7); it starts again in 2 s (restart 2 of 2)",
        "node 2 starts again",
        "node 3 failed (exit status: 143); the others go on without it",
    ] {
        assert!(error.contains(told), "{error}");
    }
    let starts = |node: usize| {
        let file = folder.path().join(node.to_string());
        std::fs::read_to_string(file).unwrap().lines().count()
    };
    assert_eq!([1, 2, 3].map(starts), [1, 3, 1]);
    let lines = sorted_lines(&output.stdout);
    assert_eq!(lines[..2], ["[node 1] done", "[node 2] done"]);
}

#[test]
fn a_node_that_crashes_too_often_stays_down() {
    let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(["launch", "--nodes", "1", "--restart", "1", "--"])
        .args(["sh", "-c", "echo the reason >&2; exit 3"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("it starts again in 1 s (restart 1 of 1)")
            && error.contains("node 1 failed (exit status: 3); no other node of this job runs")
            && error.ends_with("the last lines of node 1, which failed first:\n    the reason\n"),
        "{error}"
    );
}

#[test]
fn a_job_in_which_no_node_ends_well_has_failed() {
    let output = launcher(2, "echo the reason >&2; exit 3").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("error: no node finished its training; the last lines of node")
            && error.ends_with("    the reason\n"),
        "{error}"
    );
}

#[test]
fn a_killed_node_is_named_with_its_signal() {
    let output = launch_failing_fast(
        2,
        "if [ $SLOWMO_NODE_ID = 1 ]; then kill -KILL $$; fi; exec sleep 60",
    );
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains(
            "node 1 failed (killed by SIGKILL); the other nodes were ended; it wrote nothing to \
             standard error"
        ),
        "{error}"
    );
}

#[test]
fn an_interrupt_ends_all_nodes() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (child, pids) = start(3, SLEEPER, 3);
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let (code, error) = finish(child);
        let told = format!(
            "{signal}: the nodes leave, which may take 30 s (--grace); a second signal ends them \
             at once
error: ended by {signal}; all nodes were ended\n"
        );
        assert_eq!((code, error), (Some(1), told));
        assert!(pids.into_iter().all(is_gone));
    }
}

#[test]
fn nodes_have_the_grace_of_the_launch_to_leave() {
    // A training leaves with the next outer round, which may be far off.
    let slow =
        "trap 'sleep 4; echo left; exit 0' TERM; echo pid $$; while true; do sleep 0.1; done";
    let (mut child, _) = start(2, slow, 2);
    let output = child.stdout.take().unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let left = lines.filter(|line| line.ends_with("] left")).count();
    let (_, error) = finish(child);
    assert_eq!(left, 2, "{error}");
    assert!(error.ends_with("all nodes left in order\n"), "{error}");

    let (child, pids) = start_with(&["--grace", "1"], (2, DEAF_SLEEPER), 4);
    let begun = Instant::now();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let (code, error) = finish(child);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(code, Some(1));
    assert!(
        error.contains(
            "error: ended by SIGTERM; nodes [1, 2] did not end in time and were killed: what they"
        ) && error.contains("let --grace be longer than tau steps take"),
        "{error}"
    );
    assert!(pids.into_iter().all(is_gone));
}

#[test]
fn a_second_interrupt_kills_nodes_that_do_not_listen_with_all_they_started() {
    let (child, pids) = start(2, DEAF_SLEEPER, 4);
    let launcher = Pid::from_raw(child.id().cast_signed());
    // `timeout` signals its child and then the child's group: that is one wish.
    kill(launcher, Signal::SIGTERM).unwrap();
    kill(launcher, Signal::SIGINT).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert!(
        pids.iter().any(|pid| !is_gone(*pid)),
        "they are deaf to SIGTERM"
    );
    let begun = Instant::now();
    kill(launcher, Signal::SIGINT).unwrap();
    let (code, error) = finish(child);
    assert_eq!(code, Some(1));
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "before the grace of 30 s is over"
    );
    assert!(
        error.contains("ended by a second signal; nodes [1, 2] were killed at once"),
        "{error}"
    );
    until_holds("the end of all processes", || {
        pids.iter().all(|pid| is_gone(*pid))
    });
}

#[test]
fn what_a_node_leaves_running_ends_with_it() {
    let (child, pids) = start(2, "sleep 60 & echo pid $!", 2);
    assert_eq!(finish(child).0, Some(0));
    until_holds("the end of what was left", || {
        pids.iter().all(|pid| is_gone(*pid))
    });
}

#[test]
fn a_node_that_never_stops_writing_can_be_interrupted() {
    let mut child = launcher(2, "exec yes")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(finish(child).0, Some(1));
}

#[test]
fn a_launcher_whose_output_nobody_reads_answers_and_can_be_interrupted() {
    let runtime = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["--fail-fast"]] {
        let child = launcher_with(arguments, 2, "exec yes")
            .env("XDG_RUNTIME_DIR", runtime.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut launcher = Launcher(child);
        // By then the nodes have written all that fits into the queue and the pipe.
        std::thread::sleep(Duration::from_millis(500));
        if arguments.is_empty() {
            let kill = Command::new(env!("CARGO_BIN_EXE_slowmo"))
                .args(["kill", "1"])
                .env("XDG_RUNTIME_DIR", runtime.path())
                .output()
                .unwrap();
            assert!(kill.status.success(), "{kill:?}");
        }
        kill(Pid::from_raw(launcher.0.id().cast_signed()), Signal::SIGINT).unwrap();
        until_holds("the launcher's end", || {
            launcher.0.try_wait().unwrap().is_some()
        });
        assert_eq!(launcher.0.wait().unwrap().code(), Some(1));
    }
}

#[test]
fn the_folder_of_a_killed_launcher_is_removed_by_the_next_launch() {
    let runtime = tempfile::tempdir().unwrap();
    let folders = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(runtime.path().join("slowmo")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.is_dir()).collect()
    };
    let in_folder = |script: &str| {
        let mut command = launcher(1, script);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        command
    };
    let mut killed = in_folder("echo up; exec sleep 60")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(killed.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "[node 1] up\n");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = folders();
    assert!(left.len() == 1 && left[0].join("cluster.key").exists());
    let mine = runtime.path().join("slowmo/run-notes");
    std::fs::create_dir(&mine).unwrap();
    // The killed launcher's node has to be gone too.
    until_holds("the folder is removed", || {
        assert!(in_folder("true").output().unwrap().status.success());
        folders() == [mine.clone()]
    });
}

#[test]
fn nodes_die_with_a_killed_launcher() {
    let (mut child, pids) = start(3, SLEEPER, 3);
    child.kill().unwrap();
    child.wait().unwrap();
    until_holds("the nodes' end", || pids.iter().all(|pid| is_gone(*pid)));
}
