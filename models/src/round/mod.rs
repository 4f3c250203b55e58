//! Rounds: terms, attempts, votes, take-over and views that change.

use crate::check::Report;

/// Runs the spaces of this model, the wide ones too if `long`.
#[must_use]
pub fn run(_long: bool) -> Vec<Report> {
    Vec::new()
}
