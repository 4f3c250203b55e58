//! Errors of values that were read from another node's stream, and the check for the one that is
//! its sender's fault.

use crate::ports::transport::BulkError;
use slowmo_protocol::sound::{Unsound, first_beyond};

/// Error of values that could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReadError {
    /// The stream broke.
    #[error(transparent)]
    Stream(#[from] BulkError),
    /// No correct node sends such a value.
    #[error("{0}")]
    Unsound(Unsound),
}

/// Refuses values of which one is not finite, or beyond `most`. The first one is element `start` of
/// the model.
///
/// # Errors
/// The first such value.
pub fn check(values: &[f32], start: usize, most: f32) -> Result<(), ReadError> {
    first_beyond(values, most).map_or(Ok(()), |index| Err(unsound(start + index, values[index])))
}

/// The error for one value.
pub fn unsound(element: usize, value: f32) -> ReadError {
    ReadError::Unsound(Unsound::Value { element, value })
}
