//! placeholder
use super::{Examined, Report};
/// The page.
#[must_use]
pub fn page(_report: &Report, _run: &Examined) -> String {
    String::new()
}
