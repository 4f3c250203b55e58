//! Exchanges due at inner step `n`: a pure function of the settings.

use crate::algorithm::{Algorithm, Base};
use crate::ident::Step;

/// Kind of exchange between the nodes at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Nothing is due.
    Nothing,
    /// One push-sum gossip.
    Gossip,
    /// An exact average without momentum.
    Average,
    /// An outer round: exact average, slow step on the shards, publish.
    SlowRound,
}

/// Actions due at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The exchange between the nodes.
    pub exchange: Exchange,
    /// Whether every node takes the slow step on its own whole copy after the exchange (`sharded =
    /// false`).
    pub whole_slow_step: bool,
}

impl Due {
    /// Nothing is due: `step` returns at once.
    pub const NOTHING: Self = Self {
        exchange: Exchange::Nothing,
        whole_slow_step: false,
    };

    /// Whether this closes an outer round or another exact average, in which the model's buffers
    /// are sent.
    #[must_use]
    pub fn is_boundary(self) -> bool {
        self.whole_slow_step || matches!(self.exchange, Exchange::SlowRound | Exchange::Average)
    }

    /// Whether the slow step runs, sharded or whole, so that the inner learning rate is used.
    #[must_use]
    pub fn takes_slow_step(self) -> bool {
        self.whole_slow_step || self.exchange == Exchange::SlowRound
    }
}

/// The actions due after inner step `step`, counted from 0.
///
/// `algorithm` must have passed [`Algorithm::check`]; a frequency of 0 is never due.
#[must_use]
pub fn due(algorithm: &Algorithm, step: Step) -> Due {
    let closes = |frequency: u64| step.0.wrapping_add(1).checked_rem(frequency) == Some(0);
    let local = matches!(algorithm.base, Base::LocalSgd { frequency } if closes(frequency));
    let average = local || algorithm.average_every.is_some_and(closes);
    let base = match algorithm.base {
        _ if average => Exchange::Average,
        Base::Sgp(_) => Exchange::Gossip,
        _ => Exchange::Nothing,
    };
    let Some(outer) = algorithm.outer.filter(|outer| closes(outer.frequency)) else {
        return Due {
            exchange: base,
            whole_slow_step: false,
        };
    };
    if outer.sharded {
        return Due {
            exchange: Exchange::SlowRound,
            whole_slow_step: false,
        };
    }
    // fairscale's unsharded path: LocalSGD averages only at multiples of its own frequency.
    let exchange = match algorithm.base {
        Base::LocalSgd { .. } => base,
        Base::Sgp(_) if !outer.average => base,
        _ => Exchange::Average,
    };
    Due {
        exchange,
        whole_slow_step: true,
    }
}

/// The first step after `step` that closes a round or is an exact average; `None` if there is none.
#[must_use]
pub fn next_boundary(algorithm: &Algorithm, step: Step) -> Option<Step> {
    // Step `n` closes a period if `n + 1` is a multiple of it.
    let next = |frequency: u64| {
        step.0
            .saturating_add(1)
            .checked_div(frequency)?
            .saturating_add(1)
            .checked_mul(frequency)?
            .checked_sub(1)
    };
    boundaries(algorithm).filter_map(next).min().map(Step)
}

/// Number of the last ones among `steps` completed steps that no round and no exact average
/// followed; `None` if there never is one.
#[must_use]
pub fn steps_since_boundary(algorithm: &Algorithm, steps: u64) -> Option<u64> {
    let since = |frequency: u64| steps.checked_rem(frequency);
    boundaries(algorithm).filter_map(since).min()
}

/// The frequencies of rounds and exact averages.
fn boundaries(algorithm: &Algorithm) -> impl Iterator<Item = u64> {
    let frequency = match algorithm.base {
        Base::LocalSgd { frequency } => Some(frequency),
        _ => None,
    };
    let frequencies = [
        frequency,
        algorithm.average_every,
        algorithm.outer.map(|outer| outer.frequency),
    ];
    frequencies.into_iter().flatten()
}

/// Number of gossips due before inner step `step`, which is the turn of the gossip graph. It is the
/// same on every node, also on one that skipped steps.
#[must_use]
pub fn gossips_before(algorithm: &Algorithm, step: Step) -> u64 {
    if !matches!(algorithm.base, Base::Sgp(_)) {
        return 0;
    }
    let slow = algorithm
        .outer
        .filter(|outer| outer.sharded || outer.average)
        .map(|outer| outer.frequency);
    let times = |frequency: u64| step.0.checked_div(frequency).unwrap_or(0);
    let exact = match (algorithm.average_every, slow) {
        (Some(average), Some(slow)) => {
            times(average) + times(slow) - times(least_common_multiple(average, slow))
        }
        (one, other) => one.or(other).map_or(0, times),
    };
    step.0 - exact
}

/// 0 if it overflows or if one of them is 0: such a step never comes.
fn least_common_multiple(a: u64, b: u64) -> u64 {
    let mut divisor = a;
    let mut rest = b;
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a.checked_div(divisor)
        .and_then(|share| share.checked_mul(b))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{BufferStrategy, Gossip, Outer, OuterOptimizer, WireType};

    fn algorithm(base: Base, outer: Option<(u64, bool, bool)>) -> Algorithm {
        let optimizer = OuterOptimizer::SlowMo {
            alpha: 1.0,
            beta: 0.5,
        };
        let outer = outer.map(|(frequency, sharded, average)| Outer {
            frequency,
            optimizer,
            sharded,
            average,
        });
        Algorithm {
            base,
            outer,
            average_every: None,
            buffers: BufferStrategy::Maintain,
            round_wire: WireType::Float32,
        }
    }

    #[test]
    fn steps_since_a_boundary_are_counted_from_the_last_one() {
        let alike = [
            algorithm(Base::LocalSgd { frequency: 4 }, Some((6, true, true))),
            algorithm(Base::LocalSgd { frequency: 4 }, None),
            algorithm(Base::None, Some((6, false, true))),
        ];
        for algorithm in alike {
            let mut alone = 0;
            for step in 0..30 {
                alone += 1;
                if due(&algorithm, Step(step)).is_boundary() {
                    alone = 0;
                }
                assert_eq!(steps_since_boundary(&algorithm, step + 1), Some(alone));
            }
        }
        assert_eq!(
            steps_since_boundary(&algorithm(Base::AllReduce, None), 7),
            None
        );
    }

    fn trace(algorithm: &Algorithm, steps: u64) -> String {
        (0..steps)
            .map(|n| due(algorithm, Step(n)))
            .map(letter)
            .collect()
    }

    fn letter(due: Due) -> &'static str {
        match (due.exchange, due.whole_slow_step) {
            (Exchange::Nothing, false) => ".",
            (Exchange::Gossip, false) => "g",
            (Exchange::Average, false) => "a",
            (Exchange::SlowRound, false) => "S",
            (Exchange::Nothing, true) => "m",
            (Exchange::Gossip, true) => "G",
            (Exchange::Average, true) => "A",
            (Exchange::SlowRound, true) => "?",
        }
    }

    #[test]
    fn the_table_of_section_six() {
        let local = Base::LocalSgd { frequency: 3 };
        let sgp = Base::Sgp(Gossip::synchronous(1));
        let cases = [
            (local, None, "..a..a..a..a"),
            (local, Some((4, true, true)), "..aS.a.Sa..S"),
            (local, Some((6, true, true)), "..a..S..a..S"),
            (local, Some((4, false, true)), "..am.a.ma..A"),
            (sgp, None, "gggggggggggg"),
            (sgp, Some((4, true, true)), "gggSgggSgggS"),
            (sgp, Some((4, false, true)), "gggAgggAgggA"),
            (sgp, Some((4, false, false)), "gggGgggGgggG"),
            (Base::None, Some((4, true, true)), "...S...S...S"),
            (Base::AllReduce, Some((4, true, true)), "...S...S...S"),
            (Base::AllReduce, None, "............"),
        ];
        for (base, outer, expected) in cases {
            assert_eq!(
                trace(&algorithm(base, outer), 12),
                expected,
                "{base:?} {outer:?}"
            );
        }
    }

    #[test]
    fn average_every_wakes_up_whatever_the_base() {
        let local = Base::LocalSgd { frequency: 3 };
        let sgp = Base::Sgp(Gossip::synchronous(1));
        let cases = [
            (sgp, None, 4, "gggaggga"),
            (sgp, None, 1, "aaaaaaaa"),
            (sgp, Some((3, true, true)), 4, "ggSagSga"),
            (sgp, Some((4, true, true)), 4, "gggSgggS"),
            (sgp, Some((4, false, false)), 2, "gagAgagA"),
            (sgp, Some((4, false, false)), 3, "ggaGgagG"),
            (local, None, 4, "..aa.a.a"),
            (local, None, 6, "..a..a.."),
            (local, Some((4, true, true)), 4, "..aS.a.S"),
            (local, Some((4, false, true)), 4, "..aA.a.A"),
            (local, Some((4, false, true)), 5, "..amaa.m"),
            (Base::None, None, 3, "..a..a.."),
            (Base::None, Some((4, true, true)), 3, "..aS.a.S"),
            (Base::AllReduce, None, 3, "..a..a.."),
        ];
        for (base, outer, every, expected) in cases {
            let algorithm = Algorithm {
                average_every: Some(every),
                ..algorithm(base, outer)
            };
            assert_eq!(
                trace(&algorithm, 8),
                expected,
                "{base:?} {outer:?} every {every}"
            );
        }
    }

    #[test]
    fn frequency_one_fires_at_every_step_and_the_last_step_of_all_does_not_overflow() {
        let local = algorithm(Base::LocalSgd { frequency: 1 }, Some((1, true, true)));
        assert_eq!(trace(&local, 4), "SSSS");
        // Step u64::MAX wraps to the start of a cycle instead of panicking.
        assert_eq!(letter(due(&local, Step(u64::MAX))), "S");
        let rare = algorithm(
            Base::LocalSgd {
                frequency: u64::MAX,
            },
            None,
        );
        assert_eq!(letter(due(&rare, Step(u64::MAX - 1))), "a");
        assert_eq!(trace(&rare, 4), "....");
    }

    #[test]
    fn gossips_are_counted_without_walking_there() {
        let sgp = Base::Sgp(Gossip::synchronous(1));
        let outers = [
            None,
            Some((1, true, true)),
            Some((4, true, true)),
            Some((6, false, true)),
            Some((4, false, false)),
        ];
        for outer in outers {
            for average_every in [None, Some(1), Some(3), Some(4), Some(u64::MAX)] {
                let algorithm = Algorithm {
                    average_every,
                    ..algorithm(sgp, outer)
                };
                for step in 0..40 {
                    let walked = (0..step)
                        .filter(|n| due(&algorithm, Step(*n)).exchange == Exchange::Gossip)
                        .count() as u64;
                    assert_eq!(
                        gossips_before(&algorithm, Step(step)),
                        walked,
                        "{outer:?} {average_every:?} at {step}"
                    );
                }
            }
        }
        assert_eq!(gossips_before(&algorithm(Base::None, None), Step(9)), 0);
    }

    #[test]
    fn the_next_boundary_is_found_without_walking_there() {
        let bases = [
            Base::Sgp(Gossip::synchronous(1)),
            Base::LocalSgd { frequency: 5 },
            Base::None,
        ];
        for base in bases {
            for (outer, average_every) in [
                (None, None),
                (Some((4, true, true)), None),
                (Some((6, true, true)), Some(7)),
                (None, Some(1)),
            ] {
                let algorithm = Algorithm {
                    average_every,
                    ..algorithm(base, outer)
                };
                for step in 0..30 {
                    let walked = (step + 1..100)
                        .find(|n| due(&algorithm, Step(*n)).is_boundary())
                        .map(Step);
                    assert_eq!(
                        next_boundary(&algorithm, Step(step)),
                        walked,
                        "{base:?} {outer:?} {average_every:?} at {step}"
                    );
                }
            }
        }
        assert_eq!(
            next_boundary(
                &algorithm(Base::None, Some((4, true, true))),
                Step(u64::MAX)
            ),
            None
        );
    }

    #[test]
    fn boundaries_and_slow_steps_are_what_the_letters_say() {
        let cases = [
            (Due::NOTHING, false, false),
            (
                Due {
                    exchange: Exchange::Gossip,
                    whole_slow_step: false,
                },
                false,
                false,
            ),
            (
                Due {
                    exchange: Exchange::Average,
                    whole_slow_step: false,
                },
                true,
                false,
            ),
            (
                Due {
                    exchange: Exchange::SlowRound,
                    whole_slow_step: false,
                },
                true,
                true,
            ),
            (
                Due {
                    exchange: Exchange::Gossip,
                    whole_slow_step: true,
                },
                true,
                true,
            ),
            (
                Due {
                    exchange: Exchange::Average,
                    whole_slow_step: true,
                },
                true,
                true,
            ),
        ];
        for (due, boundary, slow) in cases {
            assert_eq!(
                (due.is_boundary(), due.takes_slow_step()),
                (boundary, slow),
                "{due:?}"
            );
        }
    }
}
