//! The name of a group of nodes.

use crate::transport::quic::{NotAName, plain_name};
use slowmo_protocol::ident::GroupId;
use slowmo_protocol::published::Hasher;
use std::fmt;
use std::str::FromStr;

/// Separates the number that a name makes from other digests of it.
const LABEL: &[u8] = b"slowmo group name 1";

/// The name of a group of nodes with fast links among them, such as a site or a rack: up to 64
/// letters, digits, dots, dashes and underscores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupName(String);

impl GroupName {
    /// The number that stands for the name between nodes. Two names have the same number with a
    /// probability of 2⁻³². Then their nodes count as one group, which costs bytes and nothing else.
    #[must_use]
    pub fn id(&self) -> GroupId {
        let mut digest = Hasher::default();
        digest.update(LABEL);
        digest.update(self.0.as_bytes());
        let mut number = [0; 4];
        number.copy_from_slice(&digest.finish().0[..4]);
        // 0 is the group of the nodes without a name.
        GroupId(u32::from_le_bytes(number).max(1))
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for GroupName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        plain_name(text).map(Self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_makes_one_number() {
        let id = |text: &str| text.parse::<GroupName>().unwrap().id();
        assert_eq!(id("rack-1"), id("rack-1"));
        assert_ne!(id("rack-1"), id("rack-2"));
        assert_ne!(id("rack-1"), GroupId::default());
        for wrong in ["", "none", "a b", "ä", "a/b", &"x".repeat(65)] {
            assert_eq!(wrong.parse::<GroupName>(), Err(NotAName), "{wrong:?}");
        }
    }
}
