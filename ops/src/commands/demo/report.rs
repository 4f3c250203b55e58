//! Results of the demo, as a table and as an object, and their verdict.

use crate::console::table;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Test accuracy that every node must reach, 0–1.
const ACCURACY_MIN: f64 = 0.95;
/// Hexadecimal digits of a digest that are shown.
const DIGEST_DIGITS: usize = 8;

/// Final result of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeResult {
    node: u64,
    /// Share of the test images classified correctly, 0–1.
    test_accuracy: f64,
    /// Mean cross-entropy on the training images, in nats.
    train_loss: f64,
    /// UDP payload bytes it sent.
    sent_bytes: u64,
    /// Seconds it trained.
    elapsed_s: f64,
    /// Digest of its final parameters.
    digest: String,
}

/// Course of a node through the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It was a bootstrap member and stayed until the end.
    Bootstrapped,
    /// It was killed.
    Killed {
        /// Inner steps completed at that time.
        step: u64,
    },
    /// It joined the running cluster.
    Joined {
        /// Inner steps completed at that time.
        step: u64,
    },
    /// The cluster ended before the node was up.
    TooLate,
}

/// One node.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    node: usize,
    /// Course of the node through the run.
    #[serde(flatten)]
    pub fate: Fate,
    /// Outer rounds it closed, counted by the parent.
    pub rounds: u64,
    /// Result reported at its end.
    pub result: Option<NodeResult>,
}

/// Report of `demo`.
#[derive(Debug, Serialize)]
pub struct Report {
    command: &'static str,
    succeeded: bool,
    steps: u64,
    /// Outer rounds after which all nodes that were averaged held the same bits.
    rounds_bit_identical: u64,
    /// Rounds for which some averaged nodes did not report.
    rounds_open: usize,
    /// Time from the kill until a round was decided without the victim, in seconds.
    recovery_s: Option<f64>,
    elapsed_s: f64,
    test_accuracy_min: f64,
    nodes: Vec<Row>,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bootstrapped => f.write_str("bootstrapped"),
            Self::Killed { step } => write!(f, "killed at step {step}"),
            Self::Joined { step } => write!(f, "joined at step {step}"),
            Self::TooLate => f.write_str("too late to join"),
        }
    }
}

impl Row {
    /// A node without any results yet.
    pub fn new(node: usize, fate: Fate) -> Self {
        Self {
            node,
            fate,
            rounds: 0,
            result: None,
        }
    }

    fn to_cells(&self) -> [String; 7] {
        let of = |text: fn(&NodeResult) -> String| {
            self.result.as_ref().map_or_else(|| "–".to_owned(), text)
        };
        [
            self.node.to_string(),
            self.fate.to_string(),
            of(|result| format!("{:.1} %", result.test_accuracy * 100.0)),
            of(|result| format!("{:.4}", result.train_loss)),
            self.rounds.to_string(),
            of(|result| format!("{:.1} MB", result.sent_bytes as f64 / 1e6)),
            of(|result| {
                result
                    .digest
                    .get(..DIGEST_DIGITS)
                    .unwrap_or(&result.digest)
                    .to_owned()
            }),
        ]
    }
}

impl Report {
    /// Report on `nodes` in ascending order of id after `steps` steps.
    pub fn new(
        nodes: Vec<Row>,
        steps: u64,
        agreed: u64,
        open: usize,
        recovery: Option<Duration>,
        elapsed: Duration,
    ) -> Self {
        let accuracies = nodes
            .iter()
            .filter_map(|row| row.result.as_ref())
            .map(|result| result.test_accuracy);
        let mut report = Self {
            command: "demo",
            succeeded: true,
            steps,
            rounds_bit_identical: agreed,
            rounds_open: open,
            recovery_s: recovery.map(|recovery| recovery.as_secs_f64()),
            elapsed_s: elapsed.as_secs_f64(),
            test_accuracy_min: accuracies.fold(1.0, f64::min),
            nodes,
        };
        report.succeeded = report.problem().is_none();
        report
    }

    /// First problem found with the results.
    pub fn problem(&self) -> Option<String> {
        if let Some(late) = self.nodes.iter().find(|row| row.fate == Fate::TooLate) {
            return Some(format!(
                "node {} came too late to join; more --steps leave it more time",
                late.node
            ));
        }
        let agreed = self.rounds_bit_identical;
        let open = self.rounds_open;
        if let Some(row) = self
            .nodes
            .iter()
            .find(|row| row.fate == Fate::Bootstrapped && row.rounds != agreed)
        {
            return Some(format!(
                "node {} closed {} rounds, but all nodes agreed after {agreed} only",
                row.node, row.rounds
            ));
        }
        if open > 0 {
            return Some(format!(
                "{open} rounds were not told by all nodes that were averaged in them"
            ));
        }
        let results = || self.nodes.iter().filter_map(|row| row.result.as_ref());
        let first = results().next()?;
        if let Some(other) = results().find(|result| result.digest != first.digest) {
            return Some(format!(
                "nodes {} and {} ended with different models",
                first.node, other.node
            ));
        }
        let poor = results().find(|result| result.test_accuracy < ACCURACY_MIN)?;
        let node = poor.node;
        let percent = poor.test_accuracy * 100.0;
        let wanted = ACCURACY_MIN * 100.0;
        Some(format!(
            "node {node} reached a test accuracy of {percent:.1} %, below {wanted:.0} %; more \
             --steps may help, 600 suffice"
        ))
    }

    /// The report as text for people.
    pub fn to_text(&self) -> String {
        let rows = self.nodes.iter().map(Row::to_cells);
        let rows = table(
            [
                "node", "fate", "accuracy", "loss", "rounds", "sent", "digest",
            ],
            rows,
        );
        let rounds = self.rounds_bit_identical;
        let mut text = format!(
            "{rows}\n{} steps in {:.1} s; all nodes bit-identical after each of {rounds} outer \
             rounds",
            self.steps, self.elapsed_s
        );
        if let Some(recovery) = self.recovery_s {
            text.push_str(&format!(
                "; the first round after the kill was decided within {:.0} ms",
                recovery * 1e3
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: usize, test_accuracy: f64, rounds: u64) -> Row {
        let result = NodeResult {
            node: node as u64,
            test_accuracy,
            train_loss: 0.1,
            sent_bytes: 1,
            elapsed_s: 1.0,
            digest: "ab".into(),
        };
        Row {
            node,
            fate: Fate::Bootstrapped,
            rounds,
            result: Some(result),
        }
    }

    fn problem(nodes: Vec<Row>) -> Option<String> {
        Report::new(nodes, 60, 5, 0, None, Duration::from_secs(1)).problem()
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let result = NodeResult {
            node: 10,
            test_accuracy: 0.967,
            train_loss: 0.1,
            sent_bytes: 45_400_000,
            elapsed_s: 1.0,
            digest: "d5b6bc47".repeat(4),
        };
        let row = Row {
            node: 10,
            fate: Fate::Killed { step: 1_560 },
            rounds: 50,
            result: Some(result),
        };
        let cells = table(
            [
                "node", "fate", "accuracy", "loss", "rounds", "sent", "digest",
            ],
            [row.to_cells()],
        )
        .to_string();
        assert!(
            cells.lines().all(|line| line.chars().count() <= 80),
            "{cells}"
        );
    }

    #[test]
    fn problems_are_named() {
        assert_eq!(problem(vec![row(1, 0.96, 5), row(2, 0.95, 5)]), None);
        let poor = problem(vec![row(1, 0.96, 5), row(2, 0.94, 5)]);
        assert!(
            poor.is_some_and(|text| text.starts_with("node 2 reached a test accuracy of 94.0 %"))
        );
        let behind = problem(vec![row(1, 0.96, 5), row(2, 0.96, 4)]);
        assert!(behind.is_some_and(|text| text.starts_with("node 2 closed 4 rounds")));
        let late = problem(vec![row(1, 0.96, 5), Row::new(2, Fate::TooLate)]);
        assert!(late.is_some_and(|text| text.starts_with("node 2 came too late")));
    }

    #[test]
    fn the_dead_and_the_newcomers_need_not_have_closed_every_round() {
        let mut killed = Row::new(2, Fate::Killed { step: 9 });
        let mut joined = row(3, 0.96, 2);
        killed.rounds = 2;
        joined.fate = Fate::Joined { step: 12 };
        assert_eq!(problem(vec![row(1, 0.96, 5), killed, joined]), None);
        let mut other = row(2, 0.96, 5);
        let first = row(1, 0.96, 5);
        other
            .result
            .iter_mut()
            .for_each(|result| result.digest = "cd".into());
        assert_eq!(
            problem(vec![first, other]).as_deref(),
            Some("nodes 1 and 2 ended with different models")
        );
    }
}
