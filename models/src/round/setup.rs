//! The bounds of what is explored, and the rule that is broken, if any.

/// A rule that the model breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Planted {
    /// A leader asks for votes though one next member did not say `Ready`.
    ReadyMissing,
    /// A leader starts another attempt after it asked for votes.
    AttemptAfterAccept,
    /// A leader drops the data of an attempt after it asked for votes on it.
    DropAfterAccept,
    /// A node drops undecided data when it promises a higher term.
    DropOnPrepare,
    /// A node drops the data of lower terms when it says `Ready` in a higher one.
    DropOnLaterAttempt,
    /// One acknowledged `Open` is enough to drop older data.
    SafeAfterOne,
    /// A leader never says that `Open` was acknowledged.
    NeverSafe,
    /// A voter acknowledges `Open` below its promise.
    AcknowledgeBelowPromise,
    /// A promise does not report the floor.
    FloorNotReported,
    /// A term that was accepted below the floor counts.
    VoidIgnored,
    /// A term that was accepted at the floor is void too.
    VoidAtFloor,
    /// A voter accepts below its promise.
    AcceptBelowPromise,
    /// A promise does not report what was accepted.
    PromiseForgetsAccepted,
    /// One promise is enough to continue.
    ProposeWithoutQuorum,
    /// One vote less than a quorum decides.
    DecideWithoutQuorum,
    /// Half of the voters are a quorum even without the tie-breaker.
    HalfDecides,
    /// A restarted process takes its old slot, with empty memory.
    RestartKeepsPlace,
    /// A restarted process uses the lowest term, which its predecessor may have used.
    LowestTermShared,
    /// A joiner votes in the round that admits it.
    JoinerVotes,
    /// All joiners vote in the next round, however many they are.
    TooManyNewVoters,
    /// A silent voter is dropped even below three voters.
    SilentBelowThree,
    /// An attempt includes a process that took no part in the term's previous attempt.
    ParticipantsGrow,
    /// A leaver leaves as soon as it knows itself that it may.
    LeavesEarly,
    /// The last member that holds the outcome leaves like any other, as an earlier version of rule
    /// 1 allowed.
    LastLeaves,
    /// A process that moved to the next round still votes in the previous one.
    VotesInOldRound,
}

/// The bounds of a search space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Number of bootstrap members: members and voters of the first round.
    pub founders: usize,
    /// Number of processes that may join.
    pub joiners: usize,
    /// Whether a process that was left out may join again.
    pub rejoin: bool,
    /// Number of rounds.
    pub rounds: u8,
    /// Number of attempts per term.
    pub attempts: u8,
    /// Number of terms beside the lowest ones, in all rounds together.
    pub take_overs: u8,
    /// Number of processes that may stop.
    pub crashes: u8,
    /// Number of live processes that a leader may take for dead.
    pub verdicts: u8,
    /// Number of live processes that a leader may take for ended.
    pub ends: u8,
    /// Number of processes that may restart, with empty memory.
    pub restarts: u8,
    /// Number of members that may leave.
    pub leavers: u8,
    /// Whether a voter that refuses `Open` raises its floor all the same.
    pub refused_raises: bool,
    /// Whether the next members say `Ready` all in one step or not at all. This means fewer states;
    /// see the module's notes.
    pub at_once: bool,
    /// The continuation without faults is tried from one of this many states; 0: from none.
    pub settle_every: u64,
    /// The rule that is broken, if any.
    pub planted: Option<Planted>,
}

impl Setup {
    /// One round without faults.
    #[must_use]
    pub fn calm(founders: usize) -> Self {
        Self {
            founders,
            joiners: 0,
            rejoin: false,
            rounds: 1,
            attempts: 2,
            take_overs: 0,
            crashes: 0,
            verdicts: 0,
            ends: 0,
            restarts: 0,
            leavers: 0,
            refused_raises: false,
            at_once: false,
            settle_every: 1,
            planted: None,
        }
    }

    /// The same space with a rule broken.
    #[must_use]
    pub fn breaking(&self, planted: Planted) -> Self {
        Self {
            planted: Some(planted),
            ..self.clone()
        }
    }

    /// Whether this rule is broken.
    #[must_use]
    pub fn breaks(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }
}
