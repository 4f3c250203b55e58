//! The outer round as a state machine: reduce → slow step → publish → prepared → decide → apply, and how it goes on when
//! nodes join, leave and die.
//!
//! Round `t` is one decree among the members of the view that round `t−1` decided ([`crate::term`]). A proposal names the
//! contributors, the participants (who vote, own and receive) and the next view. It is chosen when all participants accepted,
//! and they accept only what they hold; so whatever was chosen is held by everybody who may have to prove it.
//!
//! # A steady round
//! The first term belongs to the lowest id and needs no promises; its plan (everybody contributes, everybody takes part)
//! needs no proposal either, so contributions flow at once. A decision costs one control round trip beyond the data.
//! ```text
//!   member A                owner of a shard              leader (lowest id)
//!      │ contribution (stream)    │                              │ Propose ──► all
//!      ├─────────────────────────►│ mean, slow step              │◄── Contribute (spec) ── all
//!      │◄─────────────────────────┤ parameters (stream, to all)  │
//!      │                          ├─ state (stream) ─► holders   │
//!      ├─ Prepared ──────────────────────────────────────────────►│ all participants prepared
//!      │◄───────────────────────────────────────────── Decide ───┤
//!    apply                      apply                          apply
//! ```
//!
//! # An owner dies in reduce
//! The frozen contributions are kept until the decision, so the round is made again without the dead node. Its shards are
//! averaged by the first of their replicas that lives. What the first attempt moved is thrown away with its term.
//! ```text
//!   A                        owner X           B                 leader
//!   ├─ contribution ────────►│ ✗ dies          │                    │ ◄─ X is lost (liveness)
//!   │◄──────────────────────────────────────── Prepare(b1) ─────────┤
//!   ├─ Promise{nothing accepted, contributed} ────────────────────►│ A or B accepted nothing: free to choose
//!   │◄──────────────── Propose(b1: contributors A, B, leader; next view without X) ┤
//!   ├─ contribution ──────────────────────────►│ acting owner of X's shards
//!   │              reduce, publish, prepared, decide as above; state moves to the next view's holders
//! ```
//!
//! # The leader dies after some members prepared
//! ```text
//!   leader L              B (lowest alive)         C
//!   │◄── Prepared ────────┤                        ├── Prepared ─► L
//!   ✗ dies, perhaps after it decided
//!                         ├─ Prepare(b1) ─────────►│
//!                         │◄── Promise{accepted: L's proposal} ───┤
//!        every participant that answers accepted it, so it may be chosen: it must be proposed again as it is (inherited)
//!                         ├─ Propose(b1, inherited) ─────────────►│ votes at once: its data is held
//!                         │◄── Prepared ───────────┤
//!                         ├─ Decide ──────────────►│       the next round leaves L out of its view
//! ```
//! If a participant that answers had *not* accepted, nothing was chosen and never can be (it promised a higher term): B makes
//! the round again without L, as above. So it does if L itself answers: it would know, and gives its attempt up with its promise.
//! Whoever begins to move the data of another attempt throws away what it holds of the one that it accepted; that other attempt
//! proves that the first one was not chosen, so the acceptance is forgotten with the data.
//!
//! A member that missed the decision asks with any frame of the old round and is answered with it; one that cannot hold its data
//! (it was thought dead) is *stranded* and joins again.
//!
//! # A node joins
//! ```text
//!   joiner J                members                       leader
//!   │◄─ connects, Hello ───►│  (all of them, both ways)    │
//!   ├─ Join(epoch) ────────►├─────────────────────────────►│ next proposal: the next view has J
//!   │◄───────────────────────── Admit{proposal, view} ─────┤
//!   │◄── parameters ────────┤ a part from each owner        │
//!   │◄── state ─────────────┤ of the shards J will hold     │
//!   │◄── buffers ───────────┤ the lowest contributor's, of the base optimizer (if joiners get a copy)
//!   ├─ Prepared ──────────────────────────────────────────►│ J holds all it must
//!   │                       │◄─────────────────── Prepared ─┤ all that join do: now the members accept
//!   │                       ├─ Prepared ───────────────────►│ all participants
//!   │◄─────────────────────────────────────────── Decide ──┤ J is a member and contributes to the next round
//! ```
//! J does not vote and does not contribute; if it dies, the round is made again without it. The members accept after J holds its
//! part: what all of them accepted may be decided by any later leader, and J's part would be lost if it were not held by then.
//!
//! # A node drains
//! ```text
//!   leaver D                 members                      leader
//!   ├─ Leave{contributes} ──►├───────────────────────────►│ next proposal: the next view lacks D
//!   ├─ contribution ────────►│ … reduce as always          │
//!   ├─ state of its shards ─►│ new holders                 │
//!   ├─ Prepared ────────────────────────────────────────►│ D still takes part
//!   │◄────────────────────────────────────────── Decide ──┤
//!   └ applies, drained: it may end
//! ```
//!
//! # Two members cannot reach each other
//! Liveness asks others too, so both are alive; a round that needs streams between them would wait for the link.
//! ```text
//!   A ──✗── B               leader L
//!   ├─ Broken(B) ────────────►│ another attempt: the break may be gone
//!   ├─ Broken(B) ────────────►│ the same pair under two terms: the next attempt is made without B, if the others are a quorum
//!   │◄─ Propose(A, L; next view without B) ┤      B joins again once it reaches every member
//! ```
//! A leader does so by itself where it cannot send to a member that has not accepted, and a member leads where it cannot send to its
//! leader; each waits a while first, as most connections are made anew at once (`machine::apart` has the times).
//!
//! # Stragglers, quorum, losses
//! After the grace the leader makes a proposal with those that contributed; the others take part, receive, and stay members.
//! Under [`crate::policy::Quorum::Majority`] the participants must be a quorum of the view. Where they are not, but account for all
//! of it together with members that came back as new starts, they go on under a new lineage, as survivors do: a later view, which
//! they missed, may have had others, who hold more; where these histories meet, the one with more rounds goes on. All holders of a shard lost: its momentum restarts at zero, counted in the
//! outcome.

mod acceptor;
mod draft;
mod error;
mod events;
mod machine;
mod outcome;
mod plan;
mod voters;

pub use acceptor::{Acceptor, Overtaken, Promise, TERM_COUNTER_MAX, bound, first_term};
pub use draft::{Base, Draft, Order};
pub use error::RoundError;
pub use events::{Effect, FOUNDING_KEPT, GivesUp, In, Settings};
pub use machine::{
    ATTEMPT_WAIT_MAX, ATTEMPTS_KEPT_MAX, AWAY_WAIT, Coordinator, EARLY_BYTES_MAX, EARLY_BYTES_PER_MEMBER_MAX, EARLY_FRAMES_MAX,
    EARLY_FRAMES_PER_MEMBER_MAX, FOLLOW_WAIT, LEAVE_ACKNOWLEDGED_WAIT, PAIRS_REPORTED_MAX, PROMISE_WAIT, REPORTS_TO_PART, STAND_IN_STEP,
    STAND_IN_STEPS_MAX, STREAM_BROKEN_WAIT,
};
pub use outcome::{Origin, Outcome, Proposal, RoundKind, RoundSpec};
pub use plan::{Attempt, Donation, Holders, Move, Plan, Publication, Published, losses};
pub use voters::{NextVoters, VOTERS_KEPT, Voter, Voters, Votes, next_voters};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
