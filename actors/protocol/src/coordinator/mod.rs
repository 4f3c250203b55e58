//! The outer round as a state machine: reduce → slow step → publish → prepared → decide → apply.
//!
//! ```text
//!   member A                owner of a shard              leader (lowest id)
//!      │ contribution (stream)    │                              │ Propose ──► all
//!      ├─────────────────────────►│ mean, slow step              │
//!      │◄─────────────────────────┤ parameters (stream, to all)  │
//!      │                          ├─ momentum (stream) ─► replicas
//!      ├─ Prepared ──────────────────────────────────────────────►│ all holders prepared, quorum
//!      │◄───────────────────────────────────────────── Decide ───┤
//!    apply                      apply                          apply
//! ```
//!
//! The proposal travels while the data moves, so a round costs one control round trip (Prepared, Decide) beyond its data.

mod error;
mod events;
mod machine;
mod outcome;
mod plan;

pub use error::RoundError;
pub use events::{Effect, In, Settings};
pub use machine::{BROKEN_ATTEMPTS_MAX, Coordinator, EARLY_FRAMES_PER_MEMBER_MAX, FOLLOW_WAIT, STREAM_BROKEN_WAIT};
pub use outcome::{Outcome, Proposal, RoundKind, Terms};
pub use plan::{Attempt, Holders, Move, Plan, Publication, Published, losses};
