//! Push-sum weights (algorithm section 5): how a gossip splits them, and the mass a node answers for.

use crate::ident::{NodeId, Step};
use std::collections::BTreeMap;

/// How one gossip with out-degree `d` splits a node's mass: every part is `1/(d+1)` of it, unless little is left. What stays is
/// the rest of what is sent, so that rounding neither makes nor loses mass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// What values are multiplied by at each receiver.
    pub scale: f32,
    /// What the node's own values are multiplied by: `1 − d·scale`.
    pub kept_scale: f32,
    /// The part of the push-sum weight that each out-peer gets.
    pub share: f64,
    /// The part of the push-sum weight that stays: `weight − d·share`.
    pub kept: f64,
}

/// A node with less weight than this gives next to nothing away. Every weight is 1 as long as all members gossip; where the peers
/// that a node would receive from are dead, it would give half of the rest away at every step, and `x / w`, with the inner
/// steps taken on `x`, would soon be anything.
pub const WEIGHT_MIN: f64 = 0.5;
/// What such a node gives to each peer, which waits for a message.
const TOKEN: f64 = 1.0 / 65_536.0;

/// Splits `weight` over `out_degree` peers and the node itself.
#[must_use]
pub fn split(weight: f64, out_degree: usize) -> Split {
    let sent = out_degree as f64;
    let part = if weight < WEIGHT_MIN { TOKEN } else { 1.0 / (sent + 1.0) };
    let (scale, share) = (part as f32, weight * part);
    Split { scale, kept_scale: 1.0 - out_degree as f32 * scale, share, kept: weight - sent * share }
}

/// Push-sum weight that was sent and not acknowledged yet: the sender answers for it until the receiver has mixed it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Escrow {
    sent: BTreeMap<(NodeId, Step), f64>,
}

impl Escrow {
    /// Puts the weight of a message that is being sent in escrow.
    pub fn deposit(&mut self, to: NodeId, step: Step, weight: f64) {
        self.sent.insert((to, step), weight);
    }

    /// The receiver mixed the message: its mass is there now. Returns what left escrow, 0 if it was not there.
    pub fn release(&mut self, to: NodeId, step: Step) -> f64 {
        self.sent.remove(&(to, step)).unwrap_or(0.0)
    }

    /// The receiver refused the message or is dead: its mass is the sender's again. Returns the messages taken back.
    pub fn reclaim(&mut self, to: NodeId) -> Vec<(Step, f64)> {
        let of_peer = (to, Step(0))..=(to, Step(u64::MAX));
        let keys: Vec<_> = self.sent.range(of_peer).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.sent.remove(&key).map(|weight| (key.1, weight))).collect()
    }

    /// Weight in escrow.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.sent.values().sum()
    }

    /// Messages in escrow.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.sent.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_gives_everything_away_or_keeps_it() {
        for degree in 0..6 {
            let split = split(0.75, degree);
            assert!((split.share * degree as f64 + split.kept - 0.75).abs() < 1e-15);
            let scales = f64::from(split.scale) * degree as f64 + f64::from(split.kept_scale);
            assert!((scales - 1.0).abs() < 1e-7 && (degree > 2 || (scales - 1.0).abs() < 1e-15), "{degree}: {scales}");
        }
        assert_eq!(split(1.0, 1), Split { scale: 0.5, kept_scale: 0.5, share: 0.5, kept: 0.5 });
    }

    #[test]
    fn shares_and_scales_by_out_degree() {
        let cases = [(1.0, 0, 1.0, 1.0), (1.0, 1, 0.5, 0.5), (1.0, 3, 0.25, 0.25), (2.0, 1, 0.5, 1.0), (0.75, 2, 1.0 / 3.0, 0.25)];
        for (weight, degree, scale, share) in cases {
            let split = split(weight, degree);
            assert!((f64::from(split.scale) - scale).abs() < 1e-7 && (split.share - share).abs() < 1e-15, "{weight} over {degree}");
        }
    }

    #[test]
    fn who_receives_nothing_does_not_give_everything_away() {
        let mut weight = 1.0;
        for step in 0..1_000 {
            let split = split(weight, 1);
            assert!(split.share > 0.0 && split.scale > 0.0, "step {step}");
            weight = split.kept;
        }
        assert!(weight > 0.24, "{weight}");
    }

    #[test]
    fn escrow_reaches_over_all_steps_of_one_peer_only() {
        let mut escrow = Escrow::default();
        for (peer, step) in [(1, 0), (2, 0), (2, u64::MAX), (3, 0)] {
            escrow.deposit(NodeId(peer), Step(step), 0.25);
        }
        assert_eq!(escrow.reclaim(NodeId(9)), []);
        assert_eq!(escrow.reclaim(NodeId(2)), [(Step(0), 0.25), (Step(u64::MAX), 0.25)]);
        assert_eq!((escrow.total(), escrow.messages()), (0.5, 2));
        assert_eq!(escrow.release(NodeId(1), Step(1)), 0.0, "another step's message is not released");
    }

    #[test]
    fn escrow_gives_back_what_was_not_acknowledged() {
        let mut escrow = Escrow::default();
        escrow.deposit(NodeId(2), Step(1), 0.5);
        escrow.deposit(NodeId(2), Step(2), 0.25);
        escrow.deposit(NodeId(3), Step(2), 0.25);
        assert_eq!(escrow.release(NodeId(2), Step(1)), 0.5);
        assert_eq!(escrow.release(NodeId(2), Step(1)), 0.0);
        assert_eq!(escrow.reclaim(NodeId(2)), [(Step(2), 0.25)]);
        assert_eq!(escrow.total(), 0.25);
        assert_eq!(escrow.messages(), 1);
    }
}
