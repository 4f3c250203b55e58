//! Flight recorders of real processes, and `slowmo replay` over them and over whole traces.

use crate::common::until_some;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn replay(arguments: &[&str], paths: &[&Path]) -> (Option<i32>, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .arg("replay")
        .args(paths)
        .args(arguments)
        .arg("--json")
        .output()
        .unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (
        output.status.code(),
        report,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// One node that trains alone, as long as it is let.
fn node(folder: &Path, key: &str) -> Child {
    node_at(folder, key, None)
}

/// The same, which takes orders.
fn node_at(folder: &Path, key: &str, socket: Option<&Path>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slowmo"));
    command
        .args(["demo-node", "--steps", "100000000"])
        .env("SLOWMO_NODE_ID", "5")
        .env("SLOWMO_BASE", "none")
        .env("SLOWMO_TAU", "2");
    command
        .env(key, folder)
        .envs(socket.map(|socket| ("SLOWMO_ADMIN", socket)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .collect()
}

#[test]
fn a_signal_writes_the_last_events_down() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("flight");
    let mut child = node(&folder, "SLOWMO_FLIGHT");
    let process = Pid::from_raw(child.id().try_into().unwrap());
    // The signal ends a process that does not listen for it yet.
    std::thread::sleep(Duration::from_millis(700));
    let file = until_some("a dump", || {
        kill(process, Signal::SIGUSR1).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        files(&folder)
            .pop()
            .filter(|file| std::fs::read_to_string(file).unwrap().lines().count() > 20)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let (status, report, _) = replay(&[], &[&file]);
    assert_eq!(
        (status, &report["succeeded"]),
        (Some(0), &Value::Bool(true)),
        "{report}"
    );
    assert!(report["events"].as_u64().unwrap() > 20);
}

#[test]
fn an_order_writes_them_down_and_a_node_that_keeps_none_says_so() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("flight");
    let socket = parent.path().join("admin.sock");
    let dump = |socket: &Path| {
        Command::new(env!("CARGO_BIN_EXE_slowmo"))
            .args(["dump", "--admin"])
            .arg(socket)
            .output()
            .unwrap()
    };
    for key in ["SLOWMO_FLIGHT", "SLOWMO_CHECKPOINTS"] {
        let mut child = node_at(&folder, key, Some(&socket));
        let output = until_some("an answer", || {
            Some(dump(&socket))
                .filter(|output| output.status.success() || output.stderr.ends_with(b"a folder\n"))
        });
        assert_eq!(
            output.status.success(),
            key == "SLOWMO_FLIGHT",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        if output.status.success() {
            until_some("a dump", || files(&folder).pop());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_signal_does_not_end_a_node_that_keeps_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let socket = parent.path().join("admin.sock");
    let mut child = node_at(parent.path(), "SLOWMO_CHECKPOINTS", Some(&socket));
    until_some("the node", || {
        std::os::unix::net::UnixStream::connect(&socket).ok()
    });
    std::thread::sleep(Duration::from_millis(200));
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGUSR1,
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn no_events_are_no_run_that_held() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(replay(&[], &[folder.path()]).0, Some(1));
    let empty = folder.path().join("5-1.jsonl");
    std::fs::write(&empty, "").unwrap();
    assert_eq!(replay(&[], &[&empty]).0, Some(1));
}

#[test]
fn a_trace_is_gone_through_and_what_is_broken_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = node(folder.path(), "SLOWMO_TRACE");
    let file = until_some("some rounds", || {
        let file = files(folder.path()).pop()?;
        (std::fs::read_to_string(&file).ok()?.lines().count() > 60).then_some(file)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let (status, report, shown) = replay(
        &["--from", "2", "--count", "3", "--node", "5"],
        &[folder.path()],
    );
    assert_eq!(
        (status, &report["from_the_beginning"]),
        (Some(0), &Value::Bool(true)),
        "{report}"
    );
    assert_eq!(
        shown.lines().filter(|line| line.contains("node 5")).count(),
        3,
        "{shown}"
    );
    // Another node that says to have applied the same round with other values.
    let text = std::fs::read_to_string(&file).unwrap();
    let applied = text
        .lines()
        .find(|line| line.contains("\"applied\"") && line.contains("\"round\":3"))
        .unwrap();
    let mut forged: Value = serde_json::from_str(applied).unwrap();
    forged["node"] = 9.into();
    forged["digest"] = "0000000000000001".into();
    let other = folder.path().join("9-1.jsonl");
    writeln!(std::fs::File::create(&other).unwrap(), "{forged}").unwrap();
    let (status, report, shown) = replay(&[], &[&file, &other]);
    assert_eq!(
        (status, &report["succeeded"]),
        (Some(1), &Value::Bool(false))
    );
    assert!(shown.contains("BROKEN identical_parameters"), "{shown}");
}
