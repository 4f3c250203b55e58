//! Deliberate bugs that prove that the simulation finds such bugs. A test switches one on for its
//! own thread. Without the feature `planted`, which only a build of `slowmo-chaos` enables, none of
//! them is compiled in.
//!
//! `tests/planted.rs` and `tests/model.rs` of `slowmo-chaos` find them.

/// One deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The live nodes decide a round, with or without a quorum.
    DecideWithoutQuorum,
    /// Momentum is not sent to joiners.
    MomentumNotHandedOver,
    /// A node contributes values that it computed before it heard of a round that excluded it.
    FreshDonor,
    /// A decided outcome is applied by nodes that do not hold its data.
    ApplyWithoutData,
    /// The samples of a round are handed out again although contributors used them.
    SamplerRepeats,
    /// A lost promise is not sent again.
    PromiseUntold,
    /// Frames of an earlier round and view are accepted as frames of the current one.
    StaleEpoch,
    /// A message stays in the inbox after it was mixed, so it is mixed twice.
    MixedTwice,
    /// The mass of messages to a dead node is not reclaimed from escrow.
    EscrowNotReclaimed,
    /// Messages are kept after their receivers have them, without bound.
    UnboundedEscrow,
    /// Streams lost with a connection that was re-established go unnoticed.
    LostStreamsUnnoticed,
    /// A relay sums up before all contributions of its group are there.
    SumsTooEarly,
    /// A leader makes another attempt after it asked for votes under the same term.
    AttemptAfterAccept,
    /// A leader asks for votes while one receiver is not ready yet.
    AcceptBeforeReady,
    /// A node drops the data of earlier terms when it hears of an attempt of a later one.
    DroppedForLaterAttempt,
    /// A leader says that a quorum knows its term to be open when only one voter does.
    ClosedTooEarly,
    /// A voter acknowledges that a term is open though it promised a higher one.
    OpenedBelowPromise,
    /// A voter does not report the highest term that it knows to have been open (the floor).
    FloorUntold,
    /// A leader treats entries accepted below the floor as binding.
    VoidIgnored,
}

/// Bugs that the simulation finds.
pub const BUGS: [Bug; 12] = [
    Bug::DecideWithoutQuorum,
    Bug::MomentumNotHandedOver,
    Bug::FreshDonor,
    Bug::ApplyWithoutData,
    Bug::SamplerRepeats,
    Bug::PromiseUntold,
    Bug::StaleEpoch,
    Bug::MixedTwice,
    Bug::EscrowNotReclaimed,
    Bug::UnboundedEscrow,
    Bug::LostStreamsUnnoticed,
    Bug::SumsTooEarly,
];

/// Bugs that need an order of events too rare in the simulation: the model of rounds finds them.
pub const MODEL_BUGS: [Bug; 7] = [
    Bug::AttemptAfterAccept,
    Bug::AcceptBeforeReady,
    Bug::DroppedForLaterAttempt,
    Bug::ClosedTooEarly,
    Bug::OpenedBelowPromise,
    Bug::FloorUntold,
    Bug::VoidIgnored,
];

/// Whether this build can be made to have a bug. What ships refuses to be built with it.
pub const COMPILED_IN: bool = cfg!(feature = "planted");

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Switches a bug on for this thread, or all of them off.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub(crate) use switch::has;
#[cfg(feature = "planted")]
pub use switch::plant;

#[cfg(not(feature = "planted"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}
