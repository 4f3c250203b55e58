//! foca's timers, as deadlines. Performs no I/O.

use crate::time::{Instant, Span};
use crate::wire::Life;
use foca::Timer;
use std::collections::BTreeMap;

/// Pending timers, by due time. foca has one of each kind at a time, so there are few.
#[derive(Default)]
pub(super) struct Timers {
    due: BTreeMap<(Instant, u64), Timer<Life>>,
    armed: u64,
}

impl Timers {
    /// Arms a timer. A probe may take as long as answers may: one `answer_bound` for the direct
    /// probe, another for the indirect one.
    pub(super) fn arm(
        &mut self,
        timer: Timer<Life>,
        after: Span,
        answer_bound: Span,
        now: Instant,
    ) {
        let after = match timer {
            Timer::SendIndirectProbe { .. } => after.max(answer_bound),
            Timer::ProbeRandomMember(_) => after.max(Span(answer_bound.0 * 2)),
            _ => after,
        };
        self.armed += 1;
        self.due.insert((now.after(after), self.armed), timer);
    }

    pub(super) fn earliest(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes and returns the next timer that is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<Timer<Life>> {
        let first = self
            .due
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Postpones every timer by `by`.
    pub(super) fn shift(&mut self, by: Span) {
        self.due = std::mem::take(&mut self.due)
            .into_iter()
            .map(|((at, order), timer)| ((at.after(by), order), timer))
            .collect();
    }
}
