//! Push-sum weights and their split in a gossip.

/// Split of a node's mass in one gossip with out-degree `d`: every part is `1/(d+1)` of it. The
/// kept part is the remainder after the sent parts, so that rounding neither creates nor loses
/// mass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Factor of the values at each receiver.
    pub scale: f32,
    /// Factor of the node's own values: `1 − d·scale`.
    pub kept_scale: f32,
    /// The part of the push-sum weight that each out-peer gets.
    pub share: f64,
    /// The part of the push-sum weight that the node keeps: `weight − d·share`.
    pub kept: f64,
}

/// Minimum weight of a sender: a node with less sends nothing. Every weight is 1 as long as all
/// members gossip. If the peers that a node receives from are dead or late, it would give half of
/// the rest away at every step, and `x / w`, with the inner steps taken on `x`, would soon be
/// arbitrary.
pub const WEIGHT_MIN: f64 = 0.25;

/// Splits `weight` over `out_degree` peers and the node itself.
#[must_use]
pub fn split(weight: f64, out_degree: usize) -> Split {
    let sent = out_degree as f64;
    let part = 1.0 / (sent + 1.0);
    let scale = part as f32;
    let share = weight * part;
    Split {
        scale,
        kept_scale: 1.0 - out_degree as f32 * scale,
        share,
        kept: weight - sent * share,
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
            assert!(
                (scales - 1.0).abs() < 1e-7 && (degree > 2 || (scales - 1.0).abs() < 1e-15),
                "{degree}: {scales}"
            );
        }
        assert_eq!(
            split(1.0, 1),
            Split {
                scale: 0.5,
                kept_scale: 0.5,
                share: 0.5,
                kept: 0.5
            }
        );
    }

    #[test]
    fn shares_and_scales_by_out_degree() {
        let cases = [
            (1.0, 0, 1.0, 1.0),
            (1.0, 1, 0.5, 0.5),
            (1.0, 3, 0.25, 0.25),
            (2.0, 1, 0.5, 1.0),
            (0.75, 2, 1.0 / 3.0, 0.25),
        ];
        for (weight, degree, scale, share) in cases {
            let split = split(weight, degree);
            assert!(
                (f64::from(split.scale) - scale).abs() < 1e-7
                    && (split.share - share).abs() < 1e-15,
                "{weight} over {degree}"
            );
        }
    }
}
