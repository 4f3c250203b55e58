//! What a key file holds: a cluster key, or two while they rotate, and the cluster's id if it comes
//! from an earlier key. Pure.

use super::identity::{ClusterKey, IdentityError};
use slowmo_protocol::ident::ClusterId;
use std::fmt;
use std::str::FromStr;

/// The first word of the line with the cluster's id.
const CLUSTER_WORD: &str = "cluster";
/// Hexadecimal digits of a cluster's id.
const CLUSTER_DIGITS: usize = 16;

/// The keys of a cluster. Certificates of each are accepted; the newest one issues this node's.
///
/// A cluster keeps its id when its key is rotated, because the id stands in every frame: nodes that
/// started before, between and after the steps of a rotation belong to one cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    newest: ClusterKey,
    older: Option<ClusterKey>,
    cluster: ClusterId,
}

impl ClusterKeys {
    /// One key, from which the cluster's id is derived.
    #[must_use]
    pub fn of(key: ClusterKey) -> Self {
        Self {
            cluster: key.cluster_id(),
            newest: key,
            older: None,
        }
    }

    /// The id of the cluster; it reveals nothing about the keys.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster
    }

    /// The keys, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.newest).chain(&self.older)
    }

    /// The keys with which nodes seal the manifests of checkpoints, the newest first.
    #[must_use]
    pub fn checkpoint_keys(&self) -> Vec<[u8; 32]> {
        self.iter().map(ClusterKey::checkpoint_key).collect()
    }

    /// Adds a newer key: the first step of a rotation.
    ///
    /// # Errors
    /// There are two keys already.
    pub fn rotated(self, newer: ClusterKey) -> Result<Self, IdentityError> {
        if self.older.is_some() {
            return Err(IdentityError::RotationUnderWay);
        }
        Ok(Self {
            newest: newer,
            older: Some(self.newest),
            cluster: self.cluster,
        })
    }

    /// Removes the older key: the last step of a rotation.
    ///
    /// # Errors
    /// There is one key only.
    pub fn retired(self) -> Result<Self, IdentityError> {
        if self.older.is_none() {
            return Err(IdentityError::NoRotation);
        }
        Ok(Self {
            older: None,
            ..self
        })
    }

    /// The text of a key file: secret. [`ClusterKeys::from_str`] reads it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text: String = self.iter().map(|key| key.to_hex() + "\n").collect();
        if self.cluster != derived(&self.newest, self.older.as_ref()) {
            text.push_str(&format!("{CLUSTER_WORD} {:016x}\n", self.cluster.0));
        }
        text
    }
}

/// The id of a cluster whose file does not tell it: that of its first key, which is the oldest.
fn derived(newest: &ClusterKey, older: Option<&ClusterKey>) -> ClusterId {
    older.unwrap_or(newest).cluster_id()
}

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterKeys")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl FromStr for ClusterKeys {
    type Err = IdentityError;

    /// Parses the lines of a key file; empty lines are ignored.
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let newest: ClusterKey = lines.next().unwrap_or_default().parse()?;
        let mut rest = lines.next();
        let mut older = None;
        if let Some(line) = rest
            && !line.starts_with(CLUSTER_WORD)
        {
            older = Some(line.parse::<ClusterKey>()?);
            rest = lines.next();
        }
        if older.as_ref() == Some(&newest) || lines.next().is_some() {
            return Err(IdentityError::NotAKeyFile);
        }
        let cluster = match rest {
            None => derived(&newest, older.as_ref()),
            Some(line) => cluster_in(line).ok_or(IdentityError::NotAKeyFile)?,
        };
        Ok(Self {
            newest,
            older,
            cluster,
        })
    }
}

fn cluster_in(line: &str) -> Option<ClusterId> {
    let digits = line.strip_prefix(CLUSTER_WORD)?.trim_start();
    let all = digits.len() == CLUSTER_DIGITS && digits.bytes().all(|d| d.is_ascii_hexdigit());
    all.then(|| u64::from_str_radix(digits, 16).ok().map(ClusterId))?
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const OLD: ClusterKey = ClusterKey::from_bytes([1; 32]);
    const NEW: ClusterKey = ClusterKey::from_bytes([2; 32]);
    const NEWER: ClusterKey = ClusterKey::from_bytes([3; 32]);

    fn read(text: &str) -> ClusterKeys {
        text.parse().unwrap()
    }

    #[test]
    fn a_cluster_keeps_its_id_over_rotations() {
        let id = OLD.cluster_id();
        let first = read(&OLD.to_hex());
        assert_eq!(first, ClusterKeys::of(OLD));
        let both = read(&first.rotated(NEW).unwrap().to_text());
        assert!(both.iter().eq([&NEW, &OLD]));
        assert_eq!(both.cluster_id(), id);
        assert_eq!(
            both.clone().rotated(NEWER),
            Err(IdentityError::RotationUnderWay)
        );
        let second = read(&both.retired().unwrap().to_text());
        assert!(second.iter().eq([&NEW]));
        assert_eq!(second.cluster_id(), id);
        assert_eq!(second.clone().retired(), Err(IdentityError::NoRotation));
        let third = second
            .rotated(NEWER)
            .and_then(ClusterKeys::retired)
            .unwrap();
        assert_eq!(read(&third.to_text()).cluster_id(), id);
        assert!(!format!("{third:?}").contains(&NEWER.to_hex()));
    }

    #[test]
    fn what_is_no_key_file_is_refused() {
        let old = OLD.to_hex();
        let new = NEW.to_hex();
        for wrong in [
            String::new(),
            format!("{old}\n{old}\n"),
            format!("{new}\n{old}\n{new}\n"),
            format!("{new}\ncluster\n"),
            format!("{new}\ncluster 12\n"),
            format!("{new}\ncluster +23456789abcdef0\n"),
            format!("{new}\ncluster 0123456789abcdef\n{old}\n"),
            format!("{new}\n{}\n", &old[..40]),
        ] {
            assert!(wrong.parse::<ClusterKeys>().is_err(), "{wrong}");
        }
    }
}
