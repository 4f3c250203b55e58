//! Compares the settings that all nodes must share. Pure; examines a bounded part of what a peer
//! sent.

use crate::printable::printable;
use std::collections::BTreeSet;

/// Bytes of a peer's settings that are examined; also bounds what an error can show.
pub const SETTINGS_BYTES_MAX: usize = 4096;
/// Most bytes shown of one value.
const VALUE_BYTES_MAX: usize = 200;
/// Key of the checkpoint that a bootstrap resumes from. The run decides where it begins: nodes that
/// come later need not agree.
pub const RESUME_KEY: &str = "resume";
/// Keys that say when a bootstrap is complete and where it begins. A node that never bootstraps has
/// no such line and agrees with all.
pub const BOOTSTRAP_KEYS: [&str; 2] = ["min_nodes", RESUME_KEY];
/// Text shown where one side does not have a key.
const ABSENT: &str = "(not set)";

/// One setting on which two nodes disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The setting's key.
    pub key: String,
    /// This node's value.
    pub ours: String,
    /// The other node's value.
    pub theirs: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} is {} here, {} there",
            printable(&self.key),
            printable(&self.ours),
            printable(&self.theirs)
        )
    }
}

/// The settings on which two lists of `key = value` lines differ: ours in our order, then keys that
/// only they have. Empty if the nodes may train together.
#[must_use]
pub fn differing_settings(ours: &str, theirs: &str) -> Vec<Difference> {
    let ours = lines(ours);
    let theirs = lines(theirs);
    let mut seen = BTreeSet::new();
    let keys = ours
        .iter()
        .chain(&theirs)
        .map(|(key, _)| *key)
        .filter(|key| seen.insert(*key));
    let is_compared = |key: &&str| {
        !BOOTSTRAP_KEYS.contains(key)
            || (value(&ours, key).is_some() && value(&theirs, key).is_some())
    };
    keys.filter(is_compared)
        .filter_map(|key| difference(key, value(&ours, key), value(&theirs, key)))
        .collect()
}

/// Like [`differing_settings`], for a node that joins a running cluster: the checkpoint that it
/// would resume from may differ. Its `min_nodes` may not, although the bootstrap is over: a node
/// that waits for fewer nodes than the others could bootstrap a second cluster after a restart.
pub(super) fn differing_from_cluster(joiner: &str, cluster: &str) -> Vec<Difference> {
    let mut differences = differing_settings(joiner, cluster);
    differences.retain(|difference| difference.key != RESUME_KEY);
    differences
}

/// The part of a peer's settings that is examined.
pub(super) fn bounded(settings: &str) -> &str {
    prefix(settings, SETTINGS_BYTES_MAX)
}

fn lines(settings: &str) -> Vec<(&str, &str)> {
    let nonempty = bounded(settings)
        .lines()
        .filter(|line| !line.trim().is_empty());
    nonempty
        .map(|line| {
            line.split_once('=')
                .map_or((line.trim(), ""), |(key, value)| (key.trim(), value.trim()))
        })
        .collect()
}

fn value<'a>(lines: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    lines
        .iter()
        .find(|(name, _)| *name == key)
        .map(|(_, value)| *value)
}

fn difference(key: &str, ours: Option<&str>, theirs: Option<&str>) -> Option<Difference> {
    let shown = |value: Option<&str>| prefix(value.unwrap_or(ABSENT), VALUE_BYTES_MAX).to_owned();
    let key = prefix(key, VALUE_BYTES_MAX).to_owned();
    (ours != theirs).then(|| Difference {
        key,
        ours: shown(ours),
        theirs: shown(theirs),
    })
}

/// At most `bytes` of a text, cut between characters.
pub(crate) fn prefix(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(ours: &str, theirs: &str) -> Vec<String> {
        differing_settings(ours, theirs)
            .iter()
            .map(Difference::to_string)
            .collect()
    }

    #[test]
    fn who_could_bootstrap_agrees_on_min_nodes_and_who_only_joins_does_not_say() {
        let found = |joiner| {
            let differences = differing_from_cluster(joiner, "tau = 12\nmin_nodes = 3");
            let shown = differences.iter().map(Difference::to_string);
            shown.collect::<Vec<_>>()
        };
        assert_eq!(found("tau = 12"), [""; 0]);
        assert_eq!(found("tau = 48"), ["tau is 48 here, 12 there"]);
        assert_eq!(
            found("min_nodes = 1\ntau = 12"),
            ["min_nodes is 1 here, 3 there"]
        );
    }

    #[test]
    fn bootstrap_nodes_go_on_from_the_same_checkpoint_and_joiners_from_none() {
        assert_eq!(
            shown("tau = 48\nresume = a", "tau = 48\nresume = b"),
            ["resume is a here, b there"]
        );
        assert_eq!(
            shown("tau = 48\nresume = a", "tau = 48"),
            Vec::<String>::new()
        );
        assert_eq!(
            differing_from_cluster("tau = 48\nresume = a", "tau = 48\nresume = b"),
            []
        );
    }

    #[test]
    fn names_every_difference_in_order() {
        assert_eq!(
            shown("tau = 48\nbeta = 0.5\n", "tau = 48\nbeta = 0.5\n"),
            Vec::<String>::new()
        );
        assert_eq!(
            shown("tau = 48\nbeta = 0.5\n", "beta=0.4\ntau = 12"),
            ["tau is 48 here, 12 there", "beta is 0.5 here, 0.4 there"]
        );
        assert_eq!(shown("tau = 48", ""), ["tau is 48 here, (not set) there"]);
        assert_eq!(
            shown("", "new_key = 1"),
            ["new_key is (not set) here, 1 there"]
        );
        assert_eq!(shown("peers = ", "peers"), Vec::<String>::new());
    }

    #[test]
    fn hostile_settings_stay_bounded() {
        let long = "ä".repeat(1 << 20);
        let found = differing_settings("tau = 48", &format!("tau = {long}\n{long}"));
        assert_eq!(found.len(), 1);
        assert!(found[0].theirs.len() <= VALUE_BYTES_MAX);
    }
}
