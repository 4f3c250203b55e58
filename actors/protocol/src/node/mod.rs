//! The composition of a node's machines, driven by both the actors and the simulator.
//!
//! A node has parts, each with a mailbox. A part takes a message and the time, and requests
//! effects: a control frame, a message to another part, a data movement. Its driver (an actor, or
//! the simulator) executes them and decides nothing. So the machine decides, the part joins it with
//! the node's data, and the code that is simulated is what ships. The driver chooses the kind of
//! data that moves ([`Data`]): buffers and streams of a process, or vectors in simulation.
//!
//! | part | machines | decides or keeps besides |
//! |---|---|---|
//! | [`MembershipPart`] | membership, liveness | messages between the two and to the other parts |
//! | [`RoundsPart`] | coordinator | attempts and their streams, updates of shard states |
//! | [`GossipPart`] | gossip peer | which messages are read, mixed and sent when |
//! | [`AggregatorPart`] | aggregator | results of rounds and gossip, until workers take them |
//!
//! | file | is |
//! |---|---|
//! | `mail` | messages between parts, and the routing of frames and streams to parts |
//! | `data` | types and operations that a driver provides for its values |
//! | `parked` | streams that wait for their attempt |
//! | `attempt` | the data of one attempt |
//! | `shards` | the decided state of the shards that a node holds |
//! | `vectors` | nodes of small vectors, for simulations and tests |

mod aggregator;
mod attempt;
mod data;
mod gossip;
mod mail;
mod membership;
mod parked;
mod rounds;
mod shards;
#[cfg(any(test, feature = "testing"))]
pub mod vectors;

pub use aggregator::{AggregatorEffect, AggregatorPart, ContributionDraft, Released, Source};
pub use attempt::{Applied, GroupSum, Reduced, Reduction};
pub use data::{Arrived, Data, StreamKind};
pub use gossip::{GossipEffect, GossipPart, settle_wait};
pub use mail::{
    Arrive, ContributionMail, DecidedRound, Failure, GossipDone, Made, Mail, Moved, ToAggregator,
    ToGossip, ToMembership, ToRounds, route,
};
pub use membership::{MembershipEffect, MembershipPart, Notice, SignsOfLife};
pub use parked::PARKED_MAX;
pub use rounds::{RoundsEffect, RoundsPart};
pub use shards::{Shards, parameters_of};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
