//! placeholder
use super::Report;
/// The page.
#[must_use]
pub fn page(_report: &Report, _run: &super::super::measure::Observed) -> String {
    String::new()
}
