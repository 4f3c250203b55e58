//! The settings that may change in a running job (`slowmo set`): reads what an operator asks for,
//! checks it as the configuration would, and shows the values in force. Pure.

use crate::config::keys::{CHANGEABLE, Key};
use crate::config::{Config, ConfigError};
use crate::printable::printable;
use serde::{Deserialize, Serialize};
use slowmo_actors::context::NodeSettings;
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::changeable::SettingValues;
use std::num::NonZeroU64;
use std::time::Duration;

/// A setting that may change in a running job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingStatus {
    /// The configuration's key.
    pub key: String,
    /// The value in force, as the configuration writes it.
    pub value: String,
    /// The value that the nodes were configured with.
    pub configured: String,
}

/// Reason why a setting was not changed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// The value, or its combination with the others in force, is not allowed.
    #[error("{}; nothing was changed", printable(&.0.to_string()))]
    Refused(#[from] ConfigError),
    /// The key may only be set before a job starts.
    #[error(
        "{key} does not change in a running job: set it before the nodes start; these may change: \
         {}", CHANGEABLE.join(", ")
    )]
    Fixed {
        /// The key.
        key: &'static str,
    },
    /// The job does not use the setting.
    #[error("{key} has no effect in this job: {why}; nothing was changed")]
    Unused {
        /// The key.
        key: &'static str,
        /// The reason: it names the setting that would have to be otherwise.
        why: &'static str,
    },
    /// The node is not a member.
    #[error(
        "this node is not a member of the cluster now: ask a member, or ask again later; nothing \
         was changed"
    )]
    NotAMember,
}

/// The values that `value` of `key` stands for, in a job of nodes with these settings in which
/// `in_force` has changed already.
///
/// # Errors
/// The key is unknown, fixed or unused, or the value is not allowed.
pub(crate) fn read(
    node: &NodeSettings,
    in_force: SettingValues,
    key: &str,
    value: &str,
) -> Result<SettingValues, SettingError> {
    let mut config = config_in_force(node, in_force);
    config.order(key, value)?;
    let Some(key) = CHANGEABLE.iter().copied().find(|name| *name == key) else {
        let key = Key::find(key).map_or("this key", |key| key.name);
        return Err(SettingError::Fixed { key });
    };
    if let Some(why) = unused(node, key, &config) {
        return Err(SettingError::Unused { key, why });
    }
    config.check_running()?;
    Ok(named(key, &config))
}

/// Why the job does not use a setting.
fn unused(node: &NodeSettings, key: &str, config: &Config) -> Option<&'static str> {
    let algorithm = &node.algorithm;
    match key {
        "tau" if algorithm.outer.is_none() => Some("it has no outer optimizer"),
        "frequency" if !matches!(algorithm.base, Base::LocalSgd { .. }) => {
            Some("its base is not local_sgd")
        }
        "gossip_wire" if !matches!(algorithm.base, Base::Sgp(_)) => Some("its base is not sgp"),
        "checkpoint_every" if node.checkpoint_every == 0 => {
            Some("its nodes were started without checkpoint_every")
        }
        "checkpoint_every" if config.checkpoint_every.is_none() => {
            Some("checkpoints are not switched off while it runs; set a large number")
        }
        _ => None,
    }
}

/// The value of `key` in `config`, and no other.
fn named(key: &str, config: &Config) -> SettingValues {
    let all = SettingValues {
        tau: NonZeroU64::new(config.tau),
        frequency: NonZeroU64::new(config.frequency),
        grace_ms: NonZeroU64::new(config.grace_ms),
        gossip_wire: Some(config.gossip_wire),
        round_wire: Some(config.round_wire),
        checkpoint_every: config.checkpoint_every.and_then(NonZeroU64::new),
    };
    let none = SettingValues::default();
    match key {
        "tau" => SettingValues {
            tau: all.tau,
            ..none
        },
        "frequency" => SettingValues {
            frequency: all.frequency,
            ..none
        },
        "grace_ms" => SettingValues {
            grace_ms: all.grace_ms,
            ..none
        },
        "gossip_wire" => SettingValues {
            gossip_wire: all.gossip_wire,
            ..none
        },
        "round_wire" => SettingValues {
            round_wire: all.round_wire,
            ..none
        },
        "checkpoint_every" => SettingValues {
            checkpoint_every: all.checkpoint_every,
            ..none
        },
        _ => none,
    }
}

/// The settings of this node that may change, with the values in force.
pub(crate) fn shown(node: &NodeSettings, in_force: SettingValues) -> Vec<SettingStatus> {
    let configured = config_in_force(node, SettingValues::default());
    let now = config_in_force(node, in_force);
    let shown = |key: &&str| {
        Key::find(key).map(|key| SettingStatus {
            key: key.name.to_owned(),
            value: key.shown(&now),
            configured: key.shown(&configured),
        })
    };
    CHANGEABLE.iter().filter_map(shown).collect()
}

/// The configuration that the nodes share, with the values in force.
fn config_in_force(node: &NodeSettings, in_force: SettingValues) -> Config {
    let mut config = Config::default();
    let configured = node
        .shared
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(key, value)| (key, value.to_owned()));
    for (key, value) in configured.chain(in_force.texts()) {
        // What this node was configured with, and what was decided, is allowed. Lines that are no
        // keys are about resuming.
        let _ = config.set(key, &value);
    }
    config.round_timeout_ms = milliseconds(node.round_timeout);
    config
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_changeable_key_is_one_that_all_nodes_share_and_keeps_its_text() {
        let config = Config {
            checkpoint_every: Some(7),
            ..Config::default()
        };
        for name in CHANGEABLE {
            let key = Key::find(name).unwrap();
            assert!(key.shared, "{name}");
            let expected = vec![(name, key.shown(&config))];
            assert_eq!(named(name, &config).texts(), expected);
        }
    }

    #[test]
    fn a_refused_order_shows_what_it_was_given() {
        for (key, value) in [("\x1b[31m", "12"), ("tau", "\x1b[31m\u{202e}")] {
            let refused = Config::default().order(key, value).unwrap_err();
            let error = SettingError::from(refused).to_string();
            assert!(error.contains("\\u{1b}[31m"), "{error}");
            assert_eq!(printable(&error), error);
        }
    }
}
