//! Names that an operator gives with certificates of their own: the cluster's, and those that the
//! certificates of its nodes must carry. Pure.

use slowmo_protocol::ident::{ClusterId, NodeId};
use std::fmt;
use std::str::FromStr;

/// Longest name of a cluster or a group, in bytes.
const PLAIN_NAME_BYTES_MAX: usize = 64;
/// Longest pattern of a name, in bytes: that of a DNS name.
const PEER_NAME_BYTES_MAX: usize = 253;
/// Separates the id that a name makes from other digests of it.
const CLUSTER_LABEL: &[u8] = b"slowmo cluster name 1";
/// Stands for a node's id in a pattern.
const ID: &str = "{id}";

/// The name of a cluster whose nodes have certificates of the operator's own CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterName(String);

impl ClusterName {
    /// The id of the cluster with this name.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        context.update(CLUSTER_LABEL);
        context.update(self.0.as_bytes());
        let mut id = [0; 8];
        id.copy_from_slice(&context.finish().as_ref()[..8]);
        ClusterId(u64::from_le_bytes(id))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that an operator makes up: 1 to 64 letters, digits, dots, dashes and underscores, but not
/// `none`.
///
/// # Errors
/// The text is no such name.
pub fn plain_name(text: &str) -> Result<String, NotAName> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_right = (1..=PLAIN_NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(is_part)
        && text != "none";
    if is_right {
        Ok(text.to_owned())
    } else {
        Err(NotAName)
    }
}

/// The text has not the form of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has not the form of a name")]
pub struct NotAName;

impl FromStr for ClusterName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        plain_name(text).map(Self)
    }
}

/// A pattern of which one alternative name of a node's certificate (DNS name or URI) must be.
///
/// `*` stands for one or more characters other than a dot, a slash and a star; `{id}` for the id of
/// the node. With `{id}`, whoever has the certificate of one node cannot claim to be another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName(String);

impl PeerName {
    /// The pattern for one node: `{id}` is its id.
    #[must_use]
    pub fn of(&self, node: NodeId) -> String {
        self.0.replace(ID, &node.0.to_string())
    }

    /// Whether a node's certificate may carry this name.
    #[must_use]
    pub fn admits(&self, name: &str, node: NodeId) -> bool {
        let expected = self.of(node).to_ascii_lowercase();
        let name = name.to_ascii_lowercase();
        let Some((before, after)) = expected.split_once('*') else {
            return name == expected;
        };
        let any = name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after));
        any.is_some_and(|any| !any.is_empty() && !any.contains(['.', '/', '*']))
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PeerName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let rest = text.replacen(ID, "", 1).replacen('*', "", 1);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
        let is_right = (1..=PEER_NAME_BYTES_MAX).contains(&text.len())
            && rest.bytes().all(is_name)
            && text != "none";
        is_right.then(|| Self(text.to_owned())).ok_or(NotAName)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> PeerName {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_admits_the_names_of_its_node_only() {
        let bound = pattern("node-{id}.train.example");
        assert!(bound.admits("node-3.train.example", NodeId(3)));
        assert!(bound.admits("NODE-3.Train.example", NodeId(3)));
        for wrong in [
            "node-5.train.example",
            "node-33.train.example",
            "node-03.train.example",
            "node-*.train.example",
            "node-3.train.example.org",
            "",
        ] {
            assert!(!bound.admits(wrong, NodeId(3)), "{wrong}");
        }
        let any = pattern("*.train.example");
        assert!(any.admits("a.train.example", NodeId(3)));
        for wrong in [
            "a.b.train.example",
            ".train.example",
            "*.train.example",
            "train.example",
        ] {
            assert!(!any.admits(wrong, NodeId(3)), "{wrong}");
        }
        let spiffe = pattern("spiffe://train.example/*/{id}");
        assert!(spiffe.admits("spiffe://train.example/node/3", NodeId(3)));
        assert!(!spiffe.admits("spiffe://train.example/a/b/3", NodeId(3)));
        assert!(!pattern("*{id}").admits("3", NodeId(3)));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for wrong in ["", "none", "a b", "*.*", "{id}{id}", "{node}", "a\u{e4}"] {
            assert!(wrong.parse::<PeerName>().is_err(), "{wrong}");
        }
        for wrong in ["", "none", "a b", "*", &"a".repeat(65)] {
            assert!(wrong.parse::<ClusterName>().is_err(), "{wrong}");
        }
        let name = |text: &str| text.parse::<ClusterName>().unwrap().cluster_id();
        assert_eq!(name("run-7"), name("run-7"));
        assert_ne!(name("run-7"), name("run-8"));
    }
}
