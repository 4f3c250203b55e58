//! What a node brings to train: how many values, of which kind. Nodes that train together bring the
//! same.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How large a model is, in float32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ModelSize {
    /// Parameters.
    pub parameters: u64,
    /// Values of the model's buffers, which are averaged with the parameters.
    pub buffers: u64,
    /// Values of the base optimizer's buffers, where they are averaged or copied to joiners; 0
    /// where they never travel.
    pub optimizer: u64,
}

impl ModelSize {
    /// A model without buffers that travel.
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
