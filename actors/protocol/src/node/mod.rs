//! One composition of a node's machines, which the actors and the simulator both drive.
//!
//! A node has parts, each with a mailbox. A part takes a message and the time and asks for effects:
//! a control frame, a message to another part, a movement of data. Its driver (an actor, or the
//! simulator) carries these out and decides nothing. What moves is of the driver's kind ([`Data`]):
//! buffers and streams of a process, or vectors in simulation.
//!
//! | part | machines | decides beside them |
//! |---|---|---|
//! | [`MembershipPart`] | membership, liveness | what the two tell each other and the rest |
//! | [`RoundsPart`] | coordinator | slots of attempts, which streams wait for which attempt, what becomes of shard states |
//! | [`GossipPart`] | gossip peer | which messages are read, mixed and sent when |
//! | [`AggregatorPart`] | aggregator | what decided rounds and gossip brought, until the workers take it |
//!
//! | file | is |
//! |---|---|
//! | `mail` | what parts tell each other, and which part a frame or stream is for |
//! | `data` | what a driver says of its values |
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

pub use aggregator::{AggregatorEffect, AggregatorPart, Contributing, Released, Source};
pub use attempt::{Applied, Reduced, Reduction};
pub use data::{Arrived, Data, StreamKind};
pub use gossip::{GossipEffect, GossipPart};
pub use mail::{
    Arrive, Contribute, Decided, Failure, GossipDone, Made, Mail, Moved, ToAggregator, ToGossip,
    ToMembership, ToRounds, route,
};
pub use membership::{MembershipEffect, MembershipPart, Notice, SignsOfLife};
pub use parked::PARKED_MAX;
pub use rounds::{RoundsEffect, RoundsPart};
pub use shards::{Shards, parameters_of};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
