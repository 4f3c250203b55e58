//! Which samples a worker trains on: a function of seed, epoch, view and decided round. Pure.

use serde::{Deserialize, Serialize};

/// Which samples of the data set were not yet used in the decided history: what a joiner needs to go on from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {}
