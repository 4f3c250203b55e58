//! Size of the model that a node trains, by kind of value. Nodes that train together have the same
//! sizes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Size of a model, in float32 values.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ModelSize {
    /// Parameters.
    pub parameters: u64,
    /// Values in the model's buffers, which are averaged with the parameters.
    pub buffers: u64,
    /// Values in the base optimizer's buffers, if these are averaged or copied to joiners; 0 if
    /// they are never sent.
    pub optimizer: u64,
}

impl ModelSize {
    /// A model of which no buffers are sent.
    #[must_use]
    pub fn of(parameters: u64) -> Self {
        Self {
            parameters,
            buffers: 0,
            optimizer: 0,
        }
    }
}

impl fmt::Display for ModelSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            parameters,
            buffers,
            optimizer,
        } = self;
        write!(
            f,
            "{parameters} parameters, {buffers} model and {optimizer} optimizer buffer values"
        )
    }
}
