//! 9. Memory, queues and streams stay within their named bounds.

use super::{Checked, History, Invariant};
use slowmo_protocol::trace::{Event, Line};

/// Nothing exceeds its bound.
#[derive(Default)]
pub struct Bounds {
    checked: u64,
}

impl Invariant for Bounds {
    fn name(&self) -> &'static str {
        "bounds"
    }

    fn observe(&mut self, line: &Line, _: &History) -> Result<(), String> {
        let Event::Gauge {
            start,
            name,
            value,
            bound,
        } = &line.event
        else {
            return Ok(());
        };
        self.checked += 1;
        if value <= bound {
            Ok(())
        } else {
            Err(format!(
                "{name} of {} is {value}, over its bound of {bound}",
                start.node
            ))
        }
    }

    fn finish(&mut self, _: &History) -> Result<Checked, String> {
        Ok(if self.checked > 0 {
            Checked::Times(self.checked)
        } else {
            Checked::NotShown("the trace has no gauges")
        })
    }
}
