//! The outer optimizers, element by element. All arithmetic is float32.
//!
//! Each takes the exact average and the decided state of a piece of a shard. It writes the new
//! parameters and the new momentum to separate memory: the decided state stays unchanged until the
//! round is decided.

use crate::algorithm::OuterOptimizer;

/// One piece of a shard at a slow step; all slices have the same length.
pub struct Piece<'a> {
    /// In: the exact average `x̄`. Out: the new parameters, which are the next anchor.
    pub values: &'a mut [f32],
    /// The anchor `o`.
    pub anchor: &'a [f32],
    /// The slow momentum so far.
    pub momentum: &'a [f32],
    /// Out: the new slow momentum.
    pub next_momentum: &'a mut [f32],
}

/// An outer optimizer: turns an exact average into the next parameters.
pub trait OuterStep {
    /// Takes the slow step on one piece; `gamma` is the inner learning rate when the round closes.
    fn step(&self, piece: Piece<'_>, gamma: f32);
}

/// SlowMo, arXiv 1910.00643, algorithm 1: `u ← βu + (o − x̄)/γ; x ← o − αγu`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowMo {
    /// `α`, slow learning rate.
    pub alpha: f32,
    /// `β`, slow momentum.
    pub beta: f32,
}

/// Nesterov on the pseudo-gradient, arXiv 2311.08105: `Δ = o − x̄; v ← μv + Δ; x ← o − η(Δ + μv)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nesterov {
    /// `η`, outer learning rate.
    pub eta: f32,
    /// `μ`, outer momentum.
    pub mu: f32,
}

/// Blockwise model update filtering with Nesterov momentum: `v ← μv + ηΔ; x ← o − v − μv`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BmufNbm {
    /// `η`, block learning rate.
    pub eta: f32,
    /// `μ`, block momentum.
    pub mu: f32,
}

impl OuterStep for SlowMo {
    fn step(&self, piece: Piece<'_>, gamma: f32) {
        let Self { alpha, beta } = *self;
        let rate = alpha * gamma;
        each(piece, |average, anchor, momentum| {
            let next = beta * momentum + (anchor - average) / gamma;
            (anchor - rate * next, next)
        });
    }
}

impl OuterStep for Nesterov {
    fn step(&self, piece: Piece<'_>, _gamma: f32) {
        let Self { eta, mu } = *self;
        each(piece, |average, anchor, momentum| {
            let delta = anchor - average;
            let next = mu * momentum + delta;
            (anchor - eta * (delta + mu * next), next)
        });
    }
}

impl OuterStep for BmufNbm {
    fn step(&self, piece: Piece<'_>, _gamma: f32) {
        let Self { eta, mu } = *self;
        each(piece, |average, anchor, momentum| {
            let next = mu * momentum + eta * (anchor - average);
            (anchor - next - mu * next, next)
        });
    }
}

impl OuterOptimizer {
    /// Total movement of the parameters by a pseudo-gradient of 1, over this slow step and all
    /// later ones (with constant `γ`).
    #[must_use]
    pub fn gain(&self) -> f32 {
        match *self {
            Self::SlowMo { alpha, beta } => alpha / (1.0 - beta),
            Self::Nesterov { eta, mu } => eta / (1.0 - mu),
            Self::BmufNbm { eta, mu } => eta * (1.0 + mu) / (1.0 - mu),
        }
    }
}

impl OuterStep for OuterOptimizer {
    fn step(&self, piece: Piece<'_>, gamma: f32) {
        match *self {
            Self::SlowMo { alpha, beta } => SlowMo { alpha, beta }.step(piece, gamma),
            Self::Nesterov { eta, mu } => Nesterov { eta, mu }.step(piece, gamma),
            Self::BmufNbm { eta, mu } => BmufNbm { eta, mu }.step(piece, gamma),
        }
    }
}

/// Applies `rule(average, anchor, momentum) -> (parameters, next momentum)` to every element, in
/// one pass.
fn each(piece: Piece<'_>, rule: impl Fn(f32, f32, f32) -> (f32, f32)) {
    let state = piece.anchor.iter().zip(piece.momentum);
    for ((value, next), (anchor, momentum)) in
        piece.values.iter_mut().zip(piece.next_momentum).zip(state)
    {
        (*value, *next) = rule(*value, *anchor, *momentum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `rounds` slow steps on one element whose inner steps move it by `inner(x)`.
    fn run(
        optimizer: &impl OuterStep,
        gammas: &[f32],
        start: f32,
        inner: impl Fn(f32, f32) -> f32,
    ) -> Vec<f32> {
        let mut anchor = [start];
        let mut momentum = [0.0];
        let mut seen = Vec::new();
        for gamma in gammas {
            let mut values = [inner(anchor[0], *gamma)];
            let mut next = [0.0];
            optimizer.step(
                Piece {
                    values: &mut values,
                    anchor: &anchor,
                    momentum: &momentum,
                    next_momentum: &mut next,
                },
                *gamma,
            );
            anchor = values;
            momentum = next;
            seen.push(values[0]);
        }
        seen
    }

    /// One step of gradient descent on ½(x − 3)².
    fn descend(x: f32, gamma: f32) -> f32 {
        x - gamma * (x - 3.0)
    }

    #[test]
    fn tau_one_alpha_one_is_sgd_with_momentum() {
        let seen = run(
            &SlowMo {
                alpha: 1.0,
                beta: 0.5,
            },
            &[0.1; 20],
            0.0,
            descend,
        );
        let mut x = 0.0f32;
        let mut velocity = 0.0f32;
        for value in seen {
            velocity = 0.5 * velocity + (x - 3.0);
            x -= 0.1 * velocity;
            assert!((value - x).abs() < 1e-6, "{value} {x}");
        }
    }

    #[test]
    fn alpha_one_beta_zero_is_switched_off_and_would_return_the_average() {
        assert!(
            OuterOptimizer::SlowMo {
                alpha: 1.0,
                beta: 0.0
            }
            .is_off()
        );
        for value in [0.25f32, -7.5, 1e-3] {
            let mut values = [value];
            let mut next = [0.0];
            let piece = Piece {
                values: &mut values,
                anchor: &[1.0],
                momentum: &[0.0],
                next_momentum: &mut next,
            };
            SlowMo {
                alpha: 1.0,
                beta: 0.0,
            }
            .step(piece, 0.125);
            assert!(
                (values[0] - value).abs() < 1e-6,
                "one rounding of o − (o − x̄)"
            );
        }
    }

    #[test]
    fn beta_zero_alpha_below_one_is_lookahead() {
        let seen = run(
            &SlowMo {
                alpha: 0.5,
                beta: 0.0,
            },
            &[0.1; 10],
            0.0,
            descend,
        );
        let mut slow = 0.0f32;
        for value in seen {
            slow += 0.5 * (descend(slow, 0.1) - slow);
            assert!((value - slow).abs() < 1e-6);
        }
    }

    #[test]
    fn momentum_follows_the_learning_rate_as_in_the_paper() {
        // m = γu: m ← β(γ_t/γ_{t−1})m + Δ.
        let gammas = [0.1, 0.1, 0.01, 0.01];
        let seen = run(
            &SlowMo {
                alpha: 1.0,
                beta: 0.5,
            },
            &gammas,
            0.0,
            descend,
        );
        let mut x = 0.0f32;
        let mut m = 0.0f32;
        let mut before = gammas[0];
        for (value, gamma) in seen.iter().zip(gammas) {
            m = 0.5 * (gamma / before) * m + (x - descend(x, gamma));
            x -= m;
            before = gamma;
            assert!((value - x).abs() < 1e-6);
        }
    }

    #[test]
    fn the_gain_is_what_one_push_moves_in_the_end() {
        let optimizers = [
            OuterOptimizer::SlowMo {
                alpha: 0.8,
                beta: 0.6,
            },
            OuterOptimizer::Nesterov { eta: 0.7, mu: 0.9 },
            OuterOptimizer::BmufNbm { eta: 0.7, mu: 0.5 },
        ];
        for optimizer in optimizers {
            let mut first = true;
            // The inner steps move by one in the first round, and not at all later.
            let seen = run_with(&optimizer, 300, |anchor| {
                if std::mem::take(&mut first) {
                    anchor + 1.0
                } else {
                    anchor
                }
            });
            assert!(
                (seen - optimizer.gain()).abs() < 1e-4,
                "{optimizer:?}: {seen} against {}",
                optimizer.gain()
            );
        }
    }

    fn run_with(
        optimizer: &impl OuterStep,
        rounds: usize,
        mut inner: impl FnMut(f32) -> f32,
    ) -> f32 {
        let mut anchor = [0.0];
        let mut momentum = [0.0];
        for _ in 0..rounds {
            let mut values = [inner(anchor[0])];
            let mut next = [0.0];
            optimizer.step(
                Piece {
                    values: &mut values,
                    anchor: &anchor,
                    momentum: &momentum,
                    next_momentum: &mut next,
                },
                0.1,
            );
            anchor = values;
            momentum = next;
        }
        anchor[0]
    }

    #[test]
    fn diloco_and_bmuf_by_hand() {
        // o = 1, x̄ = 0.5, v = 0.25: Δ = 0.5.
        let piece = |optimizer: OuterOptimizer| {
            let mut values = [0.5];
            let mut next = [0.0];
            optimizer.step(
                Piece {
                    values: &mut values,
                    anchor: &[1.0],
                    momentum: &[0.25],
                    next_momentum: &mut next,
                },
                f32::NAN,
            );
            (values[0], next[0])
        };
        // v = 0.5·0.25 + 0.5 = 0.625; x = 1 − 0.5(0.5 + 0.5·0.625) = 0.59375.
        assert_eq!(
            piece(OuterOptimizer::Nesterov { eta: 0.5, mu: 0.5 }),
            (0.59375, 0.625)
        );
        // v = 0.5·0.25 + 0.5·0.5 = 0.375; x = 1 − 0.375 − 0.1875 = 0.4375.
        assert_eq!(
            piece(OuterOptimizer::BmufNbm { eta: 0.5, mu: 0.5 }),
            (0.4375, 0.375)
        );
    }
}
