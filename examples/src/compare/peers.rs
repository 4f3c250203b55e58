//! Figures of other implementations on the same task: the same network, data, optimizer and number
//! of steps, on 4 processes.

use crate::digits::Shards;

/// Description of the measurement.
pub const PEER_SOURCE: &str =
    "measured on fairscale 0.4.13 / torch: 4 processes, 600 steps, Gloo, CPU, mean of 3 seeds";
/// Number of processes of that measurement; its figures do not apply to other numbers.
pub const PEER_NODES: usize = 4;
/// Inner steps of that measurement.
pub const PEER_STEPS: u64 = 600;

/// Figures of fairscale's SlowMo, or of torch's own data parallelism for AllReduce.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct PeerFigures {
    /// Cross-entropy of the averaged model on the training images, in nats.
    pub train_loss_nats: f64,
    /// Share of test images classified correctly, in percent.
    pub test_accuracy_percent: f64,
    /// Lowest and highest time per step of several runs, in milliseconds.
    pub step_ms: (f64, f64),
}

/// One method's row: name, even loss and accuracy, skewed loss and accuracy, times.
type Row = (&'static str, (f64, f64), (f64, f64), (f64, f64));

const ROWS: [Row; 7] = [
    ("AllReduce", (0.0529, 96.3), (0.0533, 96.2), (8.2, 8.6)),
    ("LocalSGD f=12", (0.0528, 96.2), (0.1078, 94.3), (1.5, 1.5)),
    (
        "LocalSGD + SlowMo τ=12",
        (0.0206, 96.8),
        (0.0522, 95.7),
        (2.7, 2.7),
    ),
    (
        "LocalSGD + SlowMo τ=48",
        (0.0164, 96.4),
        (0.0482, 94.4),
        (1.9, 1.9),
    ),
    ("SGP", (0.0528, 96.3), (0.0642, 95.7), (3.7, 4.1)),
    (
        "SGP + SlowMo τ=12",
        (0.0204, 96.9),
        (0.0288, 96.0),
        (4.9, 5.3),
    ),
    (
        "SGP + SlowMo τ=48",
        (0.0165, 96.2),
        (0.0246, 95.4),
        (4.0, 4.7),
    ),
];

/// The peer's figures for a method of [`crate::method::METHODS`].
#[must_use]
pub fn peer_figures(method: &str, shards: Shards) -> Option<PeerFigures> {
    let (_, even, skewed, step_ms) = *ROWS.iter().find(|row| row.0 == method)?;
    let (train_loss_nats, test_accuracy_percent) = match shards {
        Shards::Even => even,
        Shards::Skewed => skewed,
    };
    Some(PeerFigures {
        train_loss_nats,
        test_accuracy_percent,
        step_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::METHODS;

    #[test]
    fn every_method_has_its_peer() {
        for method in METHODS {
            assert!(
                peer_figures(method.name, Shards::Even)
                    != peer_figures(method.name, Shards::Skewed),
                "{}",
                method.name
            );
        }
        assert_eq!(peer_figures("none", Shards::Even), None);
    }
}
