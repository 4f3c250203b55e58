//! The gossip machine: its rules one by one, and many machines on a simulated network.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod answers;
mod audit;
mod bench;
mod churn;
mod contraction;
mod faults;
mod network;
mod node;
mod rules;
mod scenario;
mod seen;
mod shell;
mod storm;
mod weights;
mod world;

use crate::ident::{ClusterId, Incarnation, NodeId};
use crate::machine::Identity;

fn identity(node: NodeId) -> Identity {
    Identity {
        cluster: ClusterId(1),
        node,
        incarnation: Incarnation(1),
    }
}
