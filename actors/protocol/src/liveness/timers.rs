//! foca's timers as deadlines. Touches nothing.

use crate::time::{Instant, Span};
use crate::wire::Life;
use foca::Timer;
use std::collections::BTreeMap;

/// Pending timers, by the time they are due. foca has one of a kind at a time, so that they are
/// few.
#[derive(Default)]
pub(super) struct Timers {
    due: BTreeMap<(Instant, u64), Timer<Life>>,
    armed: u64,
}

impl Timers {
    /// Arms a timer. A probe may take as long as an answer may: the question, then the question by
    /// way of others.
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

    /// Takes the next timer that is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<Timer<Life>> {
        let first = self
            .due
            .first_entry()
            .filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Moves every timer.
    pub(super) fn shift(&mut self, by: Span) {
        self.due = std::mem::take(&mut self.due)
            .into_iter()
            .map(|((at, order), timer)| ((at.after(by), order), timer))
            .collect();
    }
}
