//! Checks that all nodes hold the same bits after a round. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// Rounds remembered after all averaged nodes have reported; a node that reports even later is
/// still compared with them.
const ROUNDS_KEPT: usize = 64;

/// Two nodes hold different parameters after the same round.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the nodes differ after round {round}: node {one} has digest {one_digest}, node {other} has \
     {other_digest}; this is a defect of the runtime"
)]
pub struct Disagreement {
    round: u64,
    one: usize,
    one_digest: String,
    other: usize,
    other_digest: String,
}

/// Collects the digests of each round until all averaged nodes have reported theirs.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    told: BTreeMap<u64, Told>,
    /// Nodes that died, with the last round in which they may have been averaged.
    dead: BTreeMap<usize, u64>,
    agreed: u64,
}

#[derive(Clone, Debug)]
struct Told {
    digest: String,
    contributors: usize,
    nodes: BTreeSet<usize>,
    agreed: bool,
}

/// A round after which all live nodes that were averaged reported the same digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Number of the round.
    pub round: u64,
    /// Nodes that were averaged.
    pub contributors: usize,
    /// Digest of the parameters.
    pub digest: String,
}

impl Agreement {
    /// Number of agreed rounds.
    pub fn agreed(&self) -> u64 {
        self.agreed
    }

    /// Rounds for which some averaged nodes have not reported yet.
    pub fn open(&self) -> usize {
        self.told.values().filter(|told| !told.agreed).count()
    }

    /// Records a node's death: it is not waited for in rounds in which it may have been averaged.
    pub fn dead(&mut self, node: usize) {
        // The nodes may have begun the round after the newest one known here.
        let newest = self.told.keys().next_back().map_or(0, |round| round + 1);
        self.dead.insert(node, newest);
    }

    /// Records one node's digest; returns the round when this node is the last one of it.
    pub fn note(
        &mut self,
        node: usize,
        round: u64,
        contributors: usize,
        digest: String,
    ) -> Result<Option<Agreed>, Disagreement> {
        let fresh = || Told {
            digest: digest.clone(),
            contributors,
            nodes: BTreeSet::new(),
            agreed: false,
        };
        let told = self.told.entry(round).or_insert_with(fresh);
        if told.digest != digest {
            let one = told.nodes.first().copied().unwrap_or(0);
            let one_digest = told.digest.clone();
            return Err(Disagreement {
                round,
                one,
                one_digest,
                other: node,
                other_digest: digest,
            });
        }
        told.nodes.insert(node);
        let excused = self
            .dead
            .iter()
            .filter(|(dead, last)| **last >= round && !told.nodes.contains(dead))
            .count();
        if told.agreed || told.nodes.len() + excused < told.contributors {
            return Ok(None);
        }
        told.agreed = true;
        let agreed = Agreed {
            round,
            contributors: told.contributors,
            digest,
        };
        self.agreed += 1;
        while self.told.len() > ROUNDS_KEPT {
            self.told.pop_first();
        }
        Ok(Some(agreed))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_agreed_when_all_who_were_averaged_told_the_same() {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.note(1, 0, 2, "a".into()), Ok(None));
        assert_eq!(
            agreement.note(1, 1, 2, "b".into()),
            Ok(None),
            "a node may be a round ahead"
        );
        let agreed = Agreed {
            round: 0,
            contributors: 2,
            digest: "a".into(),
        };
        assert_eq!(agreement.note(2, 0, 2, "a".into()), Ok(Some(agreed)));
        assert_eq!((agreement.agreed(), agreement.open()), (1, 1));
        let text = agreement
            .note(2, 1, 2, "c".into())
            .map_err(|error| error.to_string());
        assert!(text.is_err_and(|text| {
            text.starts_with("the nodes differ after round 1: node 1 has digest b, node 2 has c")
        }));
    }

    #[test]
    fn the_dead_are_not_waited_for_in_the_rounds_they_may_have_been_in() {
        let mut agreement = Agreement::default();
        agreement.note(2, 0, 3, "a".into()).unwrap();
        agreement.dead(1);
        assert!(agreement.note(3, 0, 3, "a".into()).unwrap().is_some());
        assert!(agreement.note(2, 1, 3, "b".into()).unwrap().is_none());
        assert!(
            agreement.note(3, 1, 3, "b".into()).unwrap().is_some(),
            "decided before it died"
        );
        assert!(agreement.note(2, 2, 2, "c".into()).unwrap().is_none());
        assert!(agreement.note(3, 2, 2, "c".into()).unwrap().is_some());
        agreement.note(2, 3, 3, "d".into()).unwrap();
        assert!(
            agreement.note(3, 3, 3, "d".into()).unwrap().is_none(),
            "a node that joined is waited for"
        );
        assert!(agreement.note(4, 3, 3, "x".into()).is_err());
    }
}
