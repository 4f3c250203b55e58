//! The shortest example as a supervisor sees it: a drain is a success.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// How often a drain is tried that comes after the last step, because this machine is busy.
const TRIES: usize = 5;

/// A node of the example.
struct Node {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Node {
    fn start(folder: &Path, id: u64) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_01_quadratic"))
            .env("SLOWMO_CLUSTER_KEY", "07".repeat(32))
            .env("SLOWMO_RENDEZVOUS", folder)
            .env("SLOWMO_NODE_ID", id.to_string())
            .env("SLOWMO_MIN_NODES", "2")
            // A round after every step takes time.
            .env("SLOWMO_TAU", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        Self { process, said }
    }

    /// All that it says until it ends, with success.
    fn end(mut self) -> String {
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        let output = self.process.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}{errors}");
        assert!(said.contains("done: x = "), "{said}");
        said
    }
}

/// Drains one of two nodes with SIGTERM; whether it had steps left.
fn drained_before_the_last_step() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let [mut leaves, stays] = [1, 2].map(|id| Node::start(folder.path(), id));
    let mut first = String::new();
    leaves.said.read_line(&mut first).unwrap();
    assert!(first.starts_with("node 1 of 2"), "{first}");
    let process = leaves.process.id().to_string();
    // It may have ended already.
    _ = Command::new("kill").arg(process).status();
    let said = leaves.end();
    assert!(stays.end().contains("step 600"));
    !said.contains("step 600")
}

#[test]
fn a_drained_node_of_the_quadratic_example_exits_with_success() {
    assert!((0..TRIES).any(|_| drained_before_the_last_step()));
}
