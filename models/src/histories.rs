//! Forks of a history, and how histories come together again.

use crate::check::Report;

/// Runs the spaces of this model, the wide ones too if `long`.
#[must_use]
pub fn run(_long: bool) -> Vec<Report> {
    Vec::new()
}
