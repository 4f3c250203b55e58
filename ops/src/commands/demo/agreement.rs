//! Whether all nodes hold the same bits after a round. Pure.

use std::collections::BTreeMap;

/// Two nodes hold different parameters after the same round.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the nodes differ after round {round}: node {one} has digest {one_digest}, node {other} has {other_digest}; this is a defect of the runtime"
)]
pub struct Disagreement {
    round: u64,
    one: usize,
    one_digest: String,
    other: usize,
    other_digest: String,
}

/// Collects the digests of each round until all nodes have told theirs.
#[derive(Clone, Debug)]
pub struct Agreement {
    nodes: usize,
    /// By round, the digests told so far. A node is at most a round ahead of the others, since a round takes all.
    told: BTreeMap<u64, BTreeMap<usize, String>>,
    agreed: u64,
}

impl Agreement {
    /// Between `nodes` nodes, counted from 1.
    pub fn new(nodes: usize) -> Self {
        Self { nodes, told: BTreeMap::new(), agreed: 0 }
    }

    /// Rounds after which all nodes told the same digest.
    pub fn agreed(&self) -> u64 {
        self.agreed
    }

    /// Notes one node's digest; returns it when it is the last of the round.
    pub fn note(&mut self, node: usize, round: u64, digest: String) -> Result<Option<String>, Disagreement> {
        let told = self.told.entry(round).or_default();
        if let Some((one, one_digest)) = told.iter().find(|(_, other)| **other != digest) {
            return Err(Disagreement { round, one: *one, one_digest: one_digest.clone(), other: node, other_digest: digest });
        }
        told.insert(node, digest.clone());
        if told.len() < self.nodes {
            return Ok(None);
        }
        self.told.remove(&round);
        self.agreed += 1;
        Ok(Some(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_agreed_when_all_told_the_same() {
        let mut agreement = Agreement::new(2);
        assert_eq!(agreement.note(1, 0, "a".into()), Ok(None));
        assert_eq!(agreement.note(1, 1, "b".into()), Ok(None), "a node may be a round ahead");
        assert_eq!(agreement.note(2, 0, "a".into()), Ok(Some("a".into())));
        assert_eq!(agreement.agreed(), 1);
        let text = agreement.note(2, 1, "c".into()).map_err(|error| error.to_string());
        assert!(text.is_err_and(|text| text.starts_with("the nodes differ after round 1: node 1 has digest b, node 2 has c")));
    }
}
