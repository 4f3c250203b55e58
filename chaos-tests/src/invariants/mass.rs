//! 5. Push-sum mass: over live nodes, mass that is held, in escrow and in
//!    flight adds up to the expected mass.

use super::{Checked, History, Invariant};
use slowmo_protocol::trace::{Event, Line};

/// Tolerance of the balance, relative to the largest mass.
const EXACT: f64 = 1e-9;

/// The mass found equals the mass expected.
#[derive(Default)]
pub struct Mass {
    checked: u64,
}

impl Invariant for Mass {
    fn name(&self) -> &'static str {
        "push_sum_mass"
    }

    fn observe(&mut self, line: &Line, _: &History) -> Result<(), String> {
        let Event::Mass {
            start,
            place,
            found,
            expected,
        } = &line.event
        else {
            return Ok(());
        };
        self.checked += 1;
        let scale = expected
            .iter()
            .fold(1.0f64, |most, value| most.max(value.abs()));
        let balanced = found.len() == expected.len()
            && found
                .iter()
                .zip(expected)
                .all(|(one, other)| (one - other).abs() <= EXACT * scale);
        if balanced {
            Ok(())
        } else {
            Err(format!(
                "{} in {}: its mass is {found:?} and should be {expected:?}",
                start.node, place.round
            ))
        }
    }

    fn finish(&mut self, _: &History) -> Result<Checked, String> {
        Ok(if self.checked > 0 {
            Checked::Times(self.checked)
        } else {
            Checked::NotShown("the trace has no push-sum masses")
        })
    }
}
