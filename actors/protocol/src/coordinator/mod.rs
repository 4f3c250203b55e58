//! Decision of a round: the data first, then the vote.
//!
//! A round moves contributions, new parameters and state between nodes (an *attempt*). The leader
//! asks for votes only when every next member holds all data that it must hold. So an entry that a
//! quorum accepted is held by every node that will rely on it: nothing decided must be fetched, and
//! a vote needs no data. Each *entry* (the decision of a round) names the members and the voters of
//! the next round.
//!
//! # Promises
//! - **P1** One outcome per round and history.
//! - **P2** Every member of a decided view holds that outcome's data: all parameters, and its
//!   shards of anchor and momentum.
//! - **P3** While one member of the newest view lives, the model is not lost; while no more than R
//!   holders of a shard die between two decisions, no momentum is lost.
//! - **P4** Nodes that live, can reach each other and are a quorum decide the next round within a
//!   bounded time after faults stop.
//! - **P5** No node gives up state that an undecided round may still need. A node that moves from
//!   one history to another can go back.
//! - **P6** Under `quorum = "majority"` two groups never both continue, not even when nodes restart
//!   with the same ids and empty memories.
//! - **P7** Weights of a fresh process become the model only in a bootstrap, and a bootstrap never
//!   replaces a living run ([`crate::membership`]).
//!
//! # The steps of a round
//! 1. Each member freezes its parameters, says `Contribute` to the leader, and streams each shard
//!    to its owner.
//! 2. The previous entry names the leader. It begins an attempt: contributors, next members, next
//!    voters.
//! 3. Owners sum in ascending id, divide by the total weight, take the slow step, and publish to
//!    every member, with a signature of the values' digest. The key belongs to the incarnation; the
//!    view names it.
//! 4. Owners send new momentum to the other holders. Joiners receive the model and the state that
//!    they will hold.
//! 5. Each node that takes part or joins says `Ready` once it holds all data that it must, with the
//!    digest of the entry, which has the *root* of all that was published.
//! 6. Only when all are ready with one digest does the leader ask the voters to `Accept` the entry,
//!    signed. A quorum of votes decides. If digests differ, lists of what owners published are
//!    compared: an owner that signed two is left out.
//! 7. Votes go to everybody, with the leader's signature: every member sees that all voted for one
//!    entry before it applies it: parameters, view, voters, next leader. The leader sends `Decide`
//!    for those that do not vote, or miss votes.
//! 8. If a node dies, lags past the grace or is unreachable before the vote, the leader begins
//!    another attempt.
//! 9. If the leader dies, the lowest living voter takes a higher term (Paxos). If an entry may have
//!    been chosen, it asks for votes for that one first.
//! 10. The bootstrap is round 0: only the lowest id that takes part contributes; more than half of
//!     the members must vote.
//!
//! # A steady round
//! The previous entry names the leader. The lowest term needs no promises, because nothing can lie
//! below it. The first attempt (everybody contributes, everybody takes part) needs no proposal
//! either, so contributions are sent at once.
//! ```text
//!   member A                owner of a shard                     leader
//!      │ contribution (stream)    │             Attempt(1st term) ─┤──► all
//!      ├─────────────────────────►│ mean, slow step                │◄── Contribute ── all
//!      │◄─────────────────────────┤ parameters (stream, to all)    │
//!      │                          ├─ state (stream) ─► holders     │
//!      ├─ Ready(root): I hold all that I must ────────────────────►│ all are ready, with one root
//!      │◄───────────────────────────────────────────────── Accept ─┤──► voters
//!      ├─ Accepted ─► all ────────────────────────────────────────►│ a quorum of voters: decided
//!    apply, once all that live voted for the same               apply
//!      │◄───────────────────────────────────────────────── Decide ─┤──► all, for who missed votes
//! ```
//!
//! # An owner publishes different values to different nodes
//! Each receiver tells the leader the root of what all owners published ([`crate::published`]). The
//! leader asks for votes only if all told the same; else it finds the owner by comparison
//! (`machine::comparing`). So a decided entry stands for one model, whatever an owner does.
//!
//! # A leader has two entries voted for
//! It signs what it asks votes for, and voters send that with their votes to everybody. So both
//! sides hold both signatures, before they apply what it says is decided (`machine::votes`). A
//! member believes no single node what was decided.
//!
//! # An owner dies before the vote
//! Nobody has voted, so the leader drops the attempt and begins another one in the same term, from
//! the frozen contributions: no promises, no new quorum. Within a term the participants only become
//! fewer.
//! ```text
//!   A                     owner X           B                    leader
//!   ├─ contribution ─────►│ ✗ dies          │                       │ ◄─ X is lost (liveness)
//!   │◄──────────────────────────────────────┼─ Attempt(term, 1) ────┤ without X; its shards
//!   │    reduce, publish, Ready, Accept, Decide as above            │ go to living replicas
//! ```
//!
//! # Take-over before anybody voted
//! The leader dies, or is unreachable. The next member that votes takes a higher term.
//! ```text
//!   leader L              B                        C (a voter)
//!   ✗ dies                ├─ Prepare(t) ──────────►│ accepts nothing below t any more
//!                         │◄─ Promise{nothing} ────┤ a quorum: none below t is or can be chosen
//!                         ├─ Open(t), Attempt(t, 1) ►│
//!                         │◄─ Opened ──────────────┤ unless it promised more than t
//!                         │        a quorum of these: no leader can be bound to anything below t
//!                         ├─ Closed(t) ───────────►│ the data of attempts below t may go
//! ```
//!
//! # Take-over after somebody voted
//! ```text
//!   leader L              B                        C
//!   ├─ Accept ────────────┼───────────────────────►│ accepted under L's term
//!   ✗ dies, perhaps after it decided
//!                         ├─ Prepare(t) ──────────►│
//!                         │◄─ Promise{accepted} ───┤ it may be chosen: B asks for votes for it
//!                         ├─ Accept(t, that) ─────►│ nothing moves: next members hold its data
//!                         ├─ Decide ──────────────►│ the next round excludes the dead
//! ```
//! An entry accepted below the highest *floor* of the promising quorum (the highest term known to
//! be open) is void: the leader of an open term has shown that nothing older was chosen. Of the
//! remaining entries the one with the highest term counts.
//!
//! # Why that is safe
//! - P1 is Paxos with one decree per round: the votes of a quorum choose, and a higher term learns
//!   from a quorum what may be chosen. The floor voids only entries that a quorum has shown not to
//!   be chosen: its term was open, so that quorum had accepted nothing at or above the floors it
//!   reported, and refuses everything below since.
//! - P2: a leader asks for votes only after every receiver of the attempt was ready. A receiver
//!   keeps the data until it learns the decision, or the attempt's own leader begins another
//!   attempt (it asked for no vote on the first), or a quorum acknowledged that a higher term is
//!   open (then no later leader can be bound to it, because each quorum has a voter with a higher
//!   floor).
//! - P6: voters are incarnations of nodes. A restarted process has no vote until an entry admits
//!   its new incarnation.
//!
//! # A node joins
//! ```text
//!   joiner J                members                       leader
//!   │◄─ connects, Hello ───►│  (all of them, both ways)    │
//!   ├─ Join(epoch) ────────►├─────────────────────────────►│ next attempt: the next view has J
//!   │◄─────────────────── Admit{entry before, attempt} ────┤
//!   │◄── parameters ────────┤ a part from each owner        │
//!   │◄── state ─────────────┤ of the shards J will hold     │
//!   │◄── buffers ───────────┤ the lowest contributor's, of the base optimizer (if copied)
//!   ├─ Ready ─────────────────────────────────────────────►│ votes wait until J is ready too
//!   │◄─────────────────────────────────────────── Decide ──┤ member and voter from the next round
//! ```
//! An entry admits no more new voters than there are continuing ones; further joiners vote one
//! entry later ([`next_voters`]). If J dies or is too slow, the next attempt is made without it.
//! If J was a member in its own eyes when it was admitted, it parked the streams and ignored
//! `Admit`. It asks anew; `Admit` is sent again, and J counts once it says that it is ready.
//!
//! # A node drains
//! ```text
//!   leaver D                 members                      leader
//!   ├─ Leave{contributes} ──►├───────────────────────────►│ next attempt: the next view lacks D
//!   ├─ contribution ────────►│ … reduce as always          │
//!   ├─ state of its shards ─►│ new holders                 │
//!   ├─ Ready, Accepted ──────────────────────────────────►│ D takes part and votes
//!   │◄─────────────────────────────────────────── Decide ──┤
//!   ├─ Decide{leaves} ──────►│ next voters
//!   │◄── Learned ────────────┤ a quorum of them: the entry outlives D, which may end
//! ```
//!
//! # Survivors
//! Under `quorum = "survivors"`, if no quorum answers for a while, the living members continue in a
//! history of their own (`machine::forking`).
//! ```text
//!   leader                       the others that it reaches
//!     ├─ Fork{history, voters} ─────▶│ they vote in the new history, on the same round
//!     │◀─────────── Promise{accepted}┤ an accepted entry counts if one is its next member
//!     ├─ Accept, or an attempt ─────▶│
//! ```
//! If two nodes fork from one entry at the same time, every node switches to the fork of the higher
//! term until either decides. If two decided histories of one bootstrap meet, [`crate::forks`] says
//! which one continues, and the members of the other join it. They keep all their data until they
//! are admitted; if nobody is left to admit them, they take their places again
//! (`machine::returning`). So does a survivor that the others excluded, and a joiner continues with
//! the entry that admits it: either may hold the only copy of the model.
//!
//! Under a majority an operator may order a fork ([`Coordinator::recovery`]): the members that the
//! node reaches follow it.
//!
//! # Bootstrap
//! Round 0 is an ordinary round whose voters are the members of the first view; more than half must
//! vote, as no entry names a tie-breaker. The lowest id that takes part contributes, so its
//! parameters reach every node through the same reduce and publish as in any other round, one part
//! from each owner.
//!
//! # The rules
//! Each rule with the file that holds it and the promises that it serves:
//!
//! - The leader asks for votes when every receiver is ready, and then proposes nothing else under
//!   this term (`leading`; P1, P2).
//! - An attempt is dropped when a node that it needs is dead, late, or unreachable (`leading`; P4).
//! - Within a term the participants only become fewer (`leading`; P2).
//! - A leader is bound by a quorum's promises: to the highest accepted entry that no floor voids
//!   (`acceptor`; P1).
//! - An open term is acknowledged only if no higher one was promised (`acceptor`; P2).
//! - Data of a ready attempt is kept until it is decided, dropped by its leader, or closed by a
//!   quorum; of at most two attempts (`data`; P2, P5).
//! - The next voters are the members, with no more new ones than continuing ones; below three,
//!   excluded ones that may live stay (`voters`; P4, P6).
//! - Only incarnations that an entry names vote, and lead (`following`; P6).
//! - The named leader leads, else the next member that votes; a node that promised another node's
//!   term waits a moment (`leading`; P4).
//! - Another member stands in for an unreachable leader; of two partitioned members one is excluded
//!   (`links`; P4).
//! - Who sends what no correct node sends, abandons a round, or expects another one than this node
//!   is left out; the run ends once these are half of the voters (`following`, `links`; P4).
//! - Streams of a new connection may be lost: a node waits for them, then asks again (`links`; P4).
//! - After the grace the round is made with the nodes that contributed; slow joiners wait longer
//!   each time (`leading`, `peers`; P4).
//! - A round does not wait for a member that missed several in a row, until its training goes on
//!   (`stragglers`; P4).
//! - A change of settings that a member asked for is decided by the next entry with parameters, and
//!   in force with it; an order is void once an entry changed settings, and given again by whoever
//!   does not find it decided (`asked_settings`).
//! - A checkpoint that a member asked for is made after the round that follows, if that allows one;
//!   if all members leave, they leave with such a round (`asked_checkpoint`).
//! - A node that asks about an older round is told the newest entry, also if it asks from a fork of
//!   the same bootstrap. A node that is ahead is asked, and a silent leader is asked repeatedly
//!   (`learning`; P4).
//! - A node whose data was not decided, or that was excluded, joins again, and keeps voting if it
//!   is a voter (`learning`; P2, P4).
//! - A leaving node waits until a quorum of the next voters knows the entry (`learning`; P4).
//! - Survivors fork if no quorum answers for a while; a node takes part in one fork at a time:
//!   until one has decided, in that of the highest term (`forking`; P3, P4).
//! - Receivers tell the digest of the entry with what they got, and votes are asked for one; a
//!   leader that asks for another one lies (`comparing`, `voting`; P1, P2).
//! - Votes go to everybody with the leader's signature; a decision is applied once the votes of all
//!   living voters are seen, or a quorum and a wait is over, or two nodes say so (`believing`; P1).
//! - Two entries signed under one term prove that their leader lies; who applied one of them only
//!   with its vote stops (`votes`; P1, P4).
//! - Of two entries accepted under one term a leader finishes one that is a quorum's without the
//!   liar, or none (`taking_over`; P1).
//! - An entry that names this node a next member without its data was not attempted: it is not
//!   voted for (`voting`; P2).
//! - An owner that signed two digests of one attempt is proved to equivocate: everybody names it,
//!   and goes on without it (`comparing`; P4).
//! - A leader whose attempt admits or keeps a node that is proved to lie is shown the proof
//!   (`proofs`; P4).
//! - In a fork that has decided nothing only the nodes that it began with take part; a next member
//!   of an entry that it finishes follows it, and tells those of the fork that it leaves (`forking`,
//!   `links`; P2, P4).
//! - A node keeps the history that it was in until it is admitted elsewhere; it goes back if nobody
//!   can admit it, and only to an entry whose data it holds (`returning`; P3, P5).
//! - A term is led once: a leader that stepped down, or resigned and returned, takes a higher one
//!   (`leading`; P1, P2).
//! - Survivors: if nobody else of that history is left, a joiner continues with the entry that
//!   admits it, and an excluded node from its previous place (`returning`; P3, P4).
//! - Frames of the next round are kept within bounds; only frames from members, voters and joiners
//!   count (`early`, `following`; P4).
//! - Messages that a peer may have missed are sent again when it can be sent to again (`following`;
//!   P4).
//!
//! Losses: if all holders of a shard are lost, its momentum restarts at zero, counted in the entry
//! (or the run stops).

mod acceptor;
mod draft;
mod error;
mod events;
mod machine;
mod outcome;
mod plan;
mod relays;
mod voters;

pub use acceptor::{Acceptor, Overtaken, Promise, TERM_COUNTER_MAX, bound, first_term};
pub use draft::{Base, Draft, Order};
pub use error::{RecoveryError, RoundError};
pub use events::{
    ASK_AGAIN_EVERY, Effect, GivesUp, In, MemberOrder, Settings, Straggler, capped_grace,
};
pub use machine::{
    ATTEMPT_WAIT_MAX, ATTEMPTS_KEPT_MAX, AWAITED_TOLD_MAX, AWAY_WAIT, COMPARE_WAIT, COMPARED_MAX,
    Claim, Coordinator, DOUBTFUL_MAX, EARLY_BYTES_MAX, EARLY_BYTES_PER_MEMBER_MAX,
    EARLY_FRAMES_MAX, EARLY_FRAMES_PER_MEMBER_MAX, FOLLOW_WAIT, LEAVE_ACKNOWLEDGED_WAIT, LEFT_MAX,
    MISSES_WAITED_FOR, OVER_WAIT, PAIRS_REPORTED_MAX, PROMISE_WAIT, PROOFS_MAX, REPORTS_TO_PART,
    ROUNDS_UNWAITED_MAX, Recovery, STAND_IN_STEP, STAND_IN_STEPS_MAX, STREAM_BROKEN_WAIT,
    Statement, TOLD_MAX, VOTES_WAIT,
};
pub use outcome::{Entry, Origin, Outcome, Proposal, RoundKind, RoundSpec};
pub use plan::{
    Attempt, Holders, Move, OptimizerTransfer, Plan, Publication, Published, Way, losses,
};
pub use voters::{NextVoters, VOTERS_KEPT, Voter, Voters, Votes, next_voters};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
