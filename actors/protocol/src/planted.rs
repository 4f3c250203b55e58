//! Bugs that are here on purpose, to prove that the simulation finds such: each is switched on by a
//! test, for its own thread. Without the feature `planted`, which only tests turn on, nothing of
//! them is compiled in.

/// One bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Whoever lives decides, be it a quorum or not.
    DecideWithoutQuorum,
    /// Momentum does not travel to nodes that join.
    MomentumNotHandedOver,
    /// A node contributes what it computed before it heard of the round that it was passed over in.
    FreshDonor,
    /// A decided outcome is applied by nodes that do not hold its data.
    ApplyWithoutData,
    /// The samples of a round are dealt again, whoever used them.
    SamplerRepeats,
    /// A promise that was lost is not told again.
    PromiseUntold,
    /// Frames of an earlier round and its view are taken for those of this one.
    StaleEpoch,
    /// A message stays with what is to be mixed after it was.
    MixedTwice,
    /// What was sent to a node that died is not taken back.
    EscrowNotReclaimed,
    /// Messages that their receivers have are kept all the same, however many there are.
    UnboundedEscrow,
    /// Nobody notices that streams were lost with a connection that was made anew.
    LostStreamsUnnoticed,
    /// A leader makes another attempt after it asked for votes under the same term.
    AttemptAfterAccept,
    /// A leader asks for votes while one receiver is not ready.
    AcceptBeforeReady,
    /// A node drops the data of earlier terms when it hears of an attempt of a later one.
    DroppedForLaterAttempt,
    /// A leader says that a quorum knows its term to be open when only one voter does.
    ClosedTooEarly,
    /// A voter acknowledges that a term is open though it promised a higher one.
    OpenedBelowPromise,
    /// A voter does not tell which term it knows to have been open.
    FloorUntold,
    /// A leader is bound to what was accepted below the floor.
    VoidIgnored,
}

/// Those that the simulation finds.
pub const BUGS: [Bug; 11] = [
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
];

/// Those that need an order of events which the simulation meets too seldom: the model of rounds
/// finds them.
pub const MODEL_BUGS: [Bug; 7] = [
    Bug::AttemptAfterAccept,
    Bug::AcceptBeforeReady,
    Bug::DroppedForLaterAttempt,
    Bug::ClosedTooEarly,
    Bug::OpenedBelowPromise,
    Bug::FloorUntold,
    Bug::VoidIgnored,
];

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
