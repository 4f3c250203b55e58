//! What the demo reached, as a table and as an object, and whether that is good.

use crate::console::table;
use serde::{Deserialize, Serialize};

/// Test accuracy that every node must reach, 0–1.
const ACCURACY_MIN: f64 = 0.95;

/// How one node ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeResult {
    node: u64,
    /// Share of the test images classified correctly, 0–1.
    test_accuracy: f64,
    /// Mean cross-entropy on the training images, in nats.
    train_loss: f64,
    /// Outer rounds it closed; counted by the parent.
    #[serde(default)]
    pub rounds: u64,
    /// UDP payload bytes it sent.
    sent_bytes: u64,
    /// Seconds it trained.
    elapsed_s: f64,
    /// Of its final parameters.
    digest: String,
}

/// What `demo` reports.
#[derive(Debug, Serialize)]
pub struct Report {
    command: &'static str,
    succeeded: bool,
    steps: u64,
    /// Outer rounds after which all nodes held the same bits.
    rounds_bit_identical: u64,
    elapsed_s: f64,
    test_accuracy_min: f64,
    nodes: Vec<NodeResult>,
}

impl Report {
    /// Of `nodes` in ascending id after `steps` steps.
    pub fn new(nodes: Vec<NodeResult>, steps: u64, rounds_bit_identical: u64, elapsed_s: f64) -> Self {
        let test_accuracy_min = nodes.iter().map(|node| node.test_accuracy).fold(1.0, f64::min);
        let mut report = Self { command: "demo", succeeded: true, steps, rounds_bit_identical, elapsed_s, test_accuracy_min, nodes };
        report.succeeded = report.problem().is_none();
        report
    }

    /// What is not as it should be.
    pub fn problem(&self) -> Option<String> {
        if let Some(node) = self.nodes.iter().find(|node| node.rounds != self.rounds_bit_identical) {
            let agreed = self.rounds_bit_identical;
            return Some(format!("node {} closed {} rounds, but all nodes agreed after {agreed} only", node.node, node.rounds));
        }
        let poor = self.nodes.iter().find(|node| node.test_accuracy < ACCURACY_MIN)?;
        let (node, percent, wanted) = (poor.node, poor.test_accuracy * 100.0, ACCURACY_MIN * 100.0);
        Some(format!("node {node} reached a test accuracy of {percent:.1} %, below {wanted:.0} %; more --steps may help, 600 suffice"))
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let row = |node: &NodeResult| {
            [
                node.node.to_string(),
                format!("{:.1} %", node.test_accuracy * 100.0),
                format!("{:.4}", node.train_loss),
                node.rounds.to_string(),
                format!("{:.1} MB", node.sent_bytes as f64 / 1e6),
                node.digest.get(..16).unwrap_or(&node.digest).to_owned(),
            ]
        };
        let rows = table(["node", "test accuracy", "training loss", "outer rounds", "sent", "digest"], self.nodes.iter().map(row));
        let rounds = self.rounds_bit_identical;
        format!("{rows}\n{} steps in {:.1} s; all nodes bit-identical after each of {rounds} outer rounds", self.steps, self.elapsed_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u64, test_accuracy: f64, rounds: u64) -> NodeResult {
        NodeResult { node, test_accuracy, train_loss: 0.1, rounds, sent_bytes: 1, elapsed_s: 1.0, digest: "ab".into() }
    }

    #[test]
    fn problems_are_named() {
        assert_eq!(Report::new(vec![node(1, 0.96, 5), node(2, 0.95, 5)], 60, 5, 1.0).problem(), None);
        let poor = Report::new(vec![node(1, 0.96, 5), node(2, 0.94, 5)], 60, 5, 1.0).problem();
        assert!(poor.is_some_and(|text| text.starts_with("node 2 reached a test accuracy of 94.0 %")));
        let behind = Report::new(vec![node(1, 0.96, 5), node(2, 0.96, 4)], 60, 4, 1.0).problem();
        assert!(behind.is_some_and(|text| text.starts_with("node 1 closed 5 rounds")));
    }
}
