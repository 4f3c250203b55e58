//! Reports of a training run to its parent: one JSON object per line, or a line for people.

use std::fmt;

/// An event. Steps count the completed inner steps, so the last one equals `--steps`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The node has the cluster's parameters and begins.
    Start {
        /// The node's id.
        node: u64,
        /// The node's rank among the ascending ids.
        node_rank: usize,
        /// Number of nodes in the view.
        nodes: usize,
        /// Number of workers of this node.
        workers: usize,
        /// Number of the next outer round.
        round: u64,
        /// Inner steps completed before; more than 0 for a node that joins a running cluster.
        step: u64,
        /// Number of values of the model.
        parameters: usize,
    },
    /// Progress, every few inner steps.
    Step {
        /// Inner steps completed.
        step: u64,
        /// Cross-entropy of worker 0's last batch, in nats.
        loss: f64,
    },
    /// The nodes decided an outer round or another exact average.
    Round {
        /// Number of the round.
        round: u64,
        /// Inner steps completed.
        step: u64,
        /// Nodes that were averaged.
        contributors: usize,
        /// Digest of the parameters, equal on every node.
        digest: String,
        /// Mean cross-entropy on all training images, in nats, if it was requested.
        #[serde(skip_serializing_if = "Option::is_none")]
        train_loss: Option<f64>,
    },
    /// All steps are completed.
    Done(Summary),
}

/// Final results of one node.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// This node's id.
    pub node: u64,
    /// Share of the 360 test images classified correctly, 0–1.
    pub test_accuracy: f64,
    /// Mean cross-entropy on all training images, in nats.
    pub train_loss: f64,
    /// Digest of the final parameters.
    pub digest: String,
    /// Inner steps completed, including those before this node joined.
    pub steps: u64,
    /// Seconds from the first inner step to the last, excluding evaluation.
    pub elapsed_s: f64,
    /// UDP payload bytes this node sent.
    pub sent_bytes: u64,
    /// Images that this node used in decided rounds, by epoch; empty without an elastic sampler.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<EpochSamples>,
}

/// Images that one node used in one epoch. The counts and digests of all nodes add up (wrapping) to
/// those of the whole epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EpochSamples {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Number of images.
    pub count: u64,
    /// Sum of a hash of each image's number, modulo 2^64.
    pub digest: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start {
                node,
                node_rank,
                nodes,
                workers,
                step,
                parameters,
                ..
            } => write!(
                f,
                "node {node} is {} of {nodes}, {workers} worker{} here, {parameters} parameters, \
                 from step {step}",
                node_rank + 1,
                if *workers == 1 { "" } else { "s" }
            ),
            Self::Step { step, loss } => write!(f, "step {step:>5}  loss {loss:.4}"),
            Self::Round {
                round,
                step,
                contributors,
                digest,
                ..
            } => {
                write!(
                    f,
                    "step {step:>5}  round {round} averaged {contributors} nodes, digest {}",
                    digest.get(..8).unwrap_or(digest)
                )
            }
            Self::Done(summary) => summary.fmt(f),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} steps in {:.2} s: training loss {:.4}, test accuracy {:.1} %, {:.1} kB sent, \
             digest {}",
            self.steps,
            self.elapsed_s,
            self.train_loss,
            self.test_accuracy * 100.0,
            self.sent_bytes as f64 / 1e3,
            self.digest
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn events_are_flat_json_objects() {
        let step = Event::Step { step: 5, loss: 0.5 };
        assert_eq!(
            serde_json::to_string(&step).unwrap(),
            r#"{"event":"step","step":5,"loss":0.5}"#
        );
        let summary = Summary {
            node: 2,
            test_accuracy: 0.96,
            train_loss: 0.05,
            digest: "ab".to_owned(),
            steps: 600,
            elapsed_s: 1.5,
            sent_bytes: 7,
            samples: Vec::new(),
        };
        assert_eq!(
            serde_json::to_string(&Event::Done(summary)).unwrap(),
            r#"{"event":"done","node":2,"test_accuracy":0.96,"train_loss":0.05,"digest":"ab","steps":600,"elapsed_s":1.5,"sent_bytes":7}"#
        );
    }
}
