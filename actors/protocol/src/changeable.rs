//! Settings that may change in a running job. A member asks for a change, an entry decides it, and
//! all apply it with that entry, so they are equal on all nodes at every step. A bootstrap begins
//! with the settings that its nodes were configured with, also one that resumes.
//!
//! The values are [`SettingValues`]; `coordinator::machine::asked_settings` decides which are asked
//! for. In runtime, `CHANGEABLE` (`config/keys.rs`) names their keys, and `changes` reads and
//! checks an order.

use crate::algorithm::{Algorithm, Base, WireType};
use crate::ident::Round;
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU64;

/// Values of the settings that may change in a running job; `None`: not named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SettingValues {
    /// `τ`, inner steps of an outer round.
    pub tau: Option<NonZeroU64>,
    /// LocalSGD's `f`, inner steps from one exact average to the next.
    pub frequency: Option<NonZeroU64>,
    /// How long a round, or a gossip, waits for a live straggler, in milliseconds.
    pub grace_ms: Option<NonZeroU64>,
    /// Encoding of gossip messages.
    pub gossip_wire: Option<WireType>,
    /// Encoding of parameters in rounds.
    pub round_wire: Option<WireType>,
    /// Outer rounds from one checkpoint to the next.
    pub checkpoint_every: Option<NonZeroU64>,
}

/// The settings that the entries of a history changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChangedSettings {
    /// Number of entries that changed settings.
    pub number: u32,
    /// The round of the last one of them.
    pub round: Round,
    /// The values in force after it; `None`: as configured.
    pub values: SettingValues,
}

impl ChangedSettings {
    /// Whether the entry of this round changed settings.
    #[must_use]
    pub fn are_by(&self, round: Round) -> bool {
        self.number > 0 && self.round == round
    }
}

impl SettingValues {
    /// Whether no setting is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These values, and those of `others` for the settings that these do not name.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            tau: self.tau.or(others.tau),
            frequency: self.frequency.or(others.frequency),
            grace_ms: self.grace_ms.or(others.grace_ms),
            gossip_wire: self.gossip_wire.or(others.gossip_wire),
            round_wire: self.round_wire.or(others.round_wire),
            checkpoint_every: self.checkpoint_every.or(others.checkpoint_every),
        }
    }

    /// Those of these values that differ from `others`.
    #[must_use]
    pub fn unlike(self, others: Self) -> Self {
        Self {
            tau: unlike(self.tau, others.tau),
            frequency: unlike(self.frequency, others.frequency),
            grace_ms: unlike(self.grace_ms, others.grace_ms),
            gossip_wire: unlike(self.gossip_wire, others.gossip_wire),
            round_wire: unlike(self.round_wire, others.round_wire),
            checkpoint_every: unlike(self.checkpoint_every, others.checkpoint_every),
        }
    }

    /// These values without those of settings that `others` name.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self {
            tau: unless(others.tau.is_some(), self.tau),
            frequency: unless(others.frequency.is_some(), self.frequency),
            grace_ms: unless(others.grace_ms.is_some(), self.grace_ms),
            gossip_wire: unless(others.gossip_wire.is_some(), self.gossip_wire),
            round_wire: unless(others.round_wire.is_some(), self.round_wire),
            checkpoint_every: unless(others.checkpoint_every.is_some(), self.checkpoint_every),
        }
    }

    /// The settings that these values name, as the configuration's keys and texts.
    #[must_use]
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let number = |value: Option<NonZeroU64>| value.map(|value| value.to_string());
        let wire = |wire: Option<WireType>| wire.map(|wire| wire.word().to_owned());
        let all = [
            ("tau", number(self.tau)),
            ("frequency", number(self.frequency)),
            ("grace_ms", number(self.grace_ms)),
            ("gossip_wire", wire(self.gossip_wire)),
            ("round_wire", wire(self.round_wire)),
            ("checkpoint_every", number(self.checkpoint_every)),
        ];
        all.into_iter()
            .filter_map(|(key, text)| Some((key, text?)))
            .collect()
    }

    /// The algorithm with these values where it has the settings that they are of.
    #[must_use]
    pub fn applied_to(self, mut algorithm: Algorithm) -> Algorithm {
        match &mut algorithm.base {
            Base::LocalSgd { frequency } => {
                *frequency = self.frequency.map_or(*frequency, NonZeroU64::get);
            }
            Base::Sgp(gossip) => gossip.wire = self.gossip_wire.unwrap_or(gossip.wire),
            Base::AllReduce | Base::None => {}
        }
        if let Some(outer) = &mut algorithm.outer {
            outer.frequency = self.tau.map_or(outer.frequency, NonZeroU64::get);
        }
        algorithm.round_wire = self.round_wire.unwrap_or(algorithm.round_wire);
        algorithm
    }

    /// The grace time, if these values name one.
    #[must_use]
    pub fn grace(self) -> Option<Span> {
        self.grace_ms
            .map(|grace| Span(grace.get().saturating_mul(1_000)))
    }

    /// Outer rounds from one checkpoint to the next where `configured` was given; 0 stays 0: the
    /// node writes none.
    #[must_use]
    pub fn checkpoint_every(self, configured: u64) -> u64 {
        match self.checkpoint_every {
            Some(every) if configured > 0 => every.get(),
            _ => configured,
        }
    }
}

impl fmt::Display for SettingValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.texts().into_iter();
        let texts: Vec<_> = texts.map(|(key, text)| format!("{key} = {text}")).collect();
        f.write_str(&texts.join(", "))
    }
}

fn unlike<T: PartialEq>(value: Option<T>, other: Option<T>) -> Option<T> {
    unless(value == other, value)
}

fn unless<T>(dropped: bool, value: Option<T>) -> Option<T> {
    if dropped { None } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{BufferStrategy, Gossip, Outer, OuterOptimizer};

    fn values(tau: u64, grace_ms: u64) -> SettingValues {
        SettingValues {
            tau: NonZeroU64::new(tau),
            grace_ms: NonZeroU64::new(grace_ms),
            ..SettingValues::default()
        }
    }

    #[test]
    fn sets_of_values_are_combined_by_setting() {
        assert_eq!(values(12, 0).or(values(48, 7)), values(12, 7));
        assert_eq!(values(12, 7).unlike(values(12, 8)), values(0, 7));
        assert_eq!(values(12, 7).unlike(values(0, 7)), values(12, 0));
        assert_eq!(values(12, 7).without(values(48, 0)), values(0, 7));
        assert!(values(12, 7).without(values(1, 1)).is_empty());
    }

    fn algorithm(base: Base) -> Algorithm {
        Algorithm {
            base,
            outer: Some(Outer {
                frequency: 48,
                optimizer: OuterOptimizer::SlowMo {
                    alpha: 1.0,
                    beta: 0.5,
                },
                sharded: true,
                average: true,
            }),
            average_every: None,
            buffers: BufferStrategy::Maintain,
            round_wire: WireType::Float32,
        }
    }

    #[test]
    fn an_algorithm_changes_where_it_has_the_setting() {
        let all = SettingValues {
            frequency: NonZeroU64::new(5),
            gossip_wire: Some(WireType::Int8),
            round_wire: Some(WireType::BFloat16),
            ..values(12, 7)
        };
        let local = all.applied_to(algorithm(Base::LocalSgd { frequency: 3 }));
        assert_eq!(local.base, Base::LocalSgd { frequency: 5 });
        assert_eq!(local.outer.map(|outer| outer.frequency), Some(12));
        assert_eq!(local.round_wire, WireType::BFloat16);
        let gossip = Gossip::default();
        let gossips = all.applied_to(algorithm(Base::Sgp(gossip)));
        let wire = WireType::Int8;
        assert_eq!(gossips.base, Base::Sgp(Gossip { wire, ..gossip }));
        let none = SettingValues::default();
        let before = algorithm(Base::None);
        assert_eq!(none.applied_to(before), before);
    }

    #[test]
    fn a_node_that_writes_no_checkpoints_begins_with_none() {
        let every = SettingValues {
            checkpoint_every: NonZeroU64::new(4),
            ..SettingValues::default()
        };
        assert_eq!(
            (every.checkpoint_every(10), every.checkpoint_every(0)),
            (4, 0)
        );
        assert_eq!(SettingValues::default().checkpoint_every(10), 10);
    }
}
