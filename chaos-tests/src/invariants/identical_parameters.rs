//! 2. After applying round `t` every member has bit-identical parameters.

use super::{Checked, History, Invariant};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::trace::{Event, Line, Place};
use std::collections::BTreeMap;

/// The parameter digests of all nodes after a round are equal.
#[derive(Default)]
pub struct IdenticalParameters {
    digests: BTreeMap<Place, (u64, NodeId)>,
    checked: u64,
}

impl Invariant for IdenticalParameters {
    fn name(&self) -> &'static str {
        "identical_parameters"
    }

    fn observe(&mut self, line: &Line, _: &History) -> Result<(), String> {
        let Event::Applied {
            start,
            decided,
            digest,
            ..
        } = &line.event
        else {
            return Ok(());
        };
        let (known, first) = *self
            .digests
            .entry(decided.place)
            .or_insert((*digest, start.node));
        self.checked += 1;
        if known == *digest {
            return Ok(());
        }
        let round = decided.place.round;
        Err(format!(
            "{} holds other values after {round} than {first}: {digest:016x} instead of \
             {known:016x}",
            start.node
        ))
    }

    fn finish(&mut self, _: &History) -> Result<Checked, String> {
        Ok(Checked::Times(self.checked))
    }
}
