//! 1. One outcome per round and lineage.

use super::{Checked, History, Invariant};
use slowmo_protocol::trace::{Decided, Event, Line};

/// Every node that applies a round's outcome applies the same outcome.
#[derive(Default)]
pub struct OneOutcome {
    checked: u64,
}

impl Invariant for OneOutcome {
    fn name(&self) -> &'static str {
        "one_outcome"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let Event::Applied { start, decided, .. } = &line.event else {
            return Ok(());
        };
        self.checked += 1;
        let Some(known) = history.outcomes().get(&decided.place) else {
            return Ok(());
        };
        if same(&known.decided, decided) {
            return Ok(());
        }
        let round = decided.place.round;
        let node = start.node;
        let one = format!("{decided:?}");
        let other = format!("{:?}", known.decided);
        let same = one
            .bytes()
            .zip(other.bytes())
            .take_while(|(one, other)| one == other)
            .count();
        Err(format!(
            "two outcomes of {round}: {node} applies …{}, others applied …{}",
            &one[same..],
            &other[same..]
        ))
    }

    fn finish(&mut self, _: &History) -> Result<Checked, String> {
        Ok(Checked::Times(self.checked))
    }
}

/// Whether two outcomes are the same. Learning rates are compared by their bits, so NaN equals
/// itself. Two attempts with different participants may have made the same outcome: a node holds
/// the attempt that it took part in, and applies that.
fn same(one: &Decided, other: &Decided) -> bool {
    let rates = one.gamma.to_bits() == other.gamma.to_bits();
    let rest = |decided: &Decided| Decided {
        gamma: 0.0,
        participants: Vec::new(),
        ..decided.clone()
    };
    rates && rest(one) == rest(other)
}
