//! What is explored, how far, and with which rule broken.

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
    /// One acknowledged `Open` is enough to drop what is older.
    SafeAfterOne,
    /// A leader never says that `Open` was acknowledged.
    NeverSafe,
    /// `Open` is acknowledged below a promise.
    AcknowledgeBelowPromise,
    /// A promise does not tell the floor.
    FloorNotReported,
    /// What was accepted below the floor counts.
    VoidIgnored,
    /// What was accepted at the floor is void too.
    VoidAtFloor,
    /// A voter accepts below its promise.
    AcceptBelowPromise,
    /// A promise does not tell what was accepted.
    PromiseForgetsAccepted,
    /// One promise is enough to go on.
    ProposeWithoutQuorum,
    /// One vote less than a quorum decides.
    DecideWithoutQuorum,
    /// Half of the voters are a quorum without the tie-breaker too.
    HalfDecides,
    /// A process that starts again takes its old place, with empty memory.
    RestartKeepsPlace,
    /// A process that starts again uses the lowest term that its predecessor may have used.
    LowestTermShared,
    /// A joiner votes in the round that admits it.
    JoinerVotes,
    /// All joiners vote in the next round, however many.
    TooManyNewVoters,
    /// Who is silent is no voter any more, below three too.
    SilentBelowThree,
    /// An attempt includes who was in none of the term before.
    ParticipantsGrow,
    /// A leaver goes as soon as it knows itself that it may.
    LeavesEarly,
    /// The last member that holds the outcome leaves like any other: rule 1 as the page had it.
    LastLeaves,
    /// Who went on to the next round still votes in the last one.
    VotesInOldRound,
}

/// What is explored, and how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Founders: members and voters of the first round.
    pub founders: usize,
    /// Processes that may join.
    pub joiners: usize,
    /// Whether who was left out may join again.
    pub rejoin: bool,
    /// Rounds.
    pub rounds: u8,
    /// Attempts of a term.
    pub attempts: u8,
    /// Terms beside the lowest ones, in all rounds.
    pub take_overs: u8,
    /// Processes that may stop.
    pub crashes: u8,
    /// Live processes that a leader may take for dead.
    pub verdicts: u8,
    /// Live processes that a leader may take for ended.
    pub ends: u8,
    /// Processes that may start again, with empty memory.
    pub restarts: u8,
    /// Members that may leave.
    pub leavers: u8,
    /// Whether a voter that refuses `Open` raises its floor all the same.
    pub refused_raises: bool,
    /// Whether the next members say `Ready` in one step, or none does: fewer states, see the
    /// module's notes.
    pub at_once: bool,
    /// From one of how many states the continuation without faults is tried; 0: from none.
    pub settle_every: u64,
    /// A broken rule.
    pub planted: Option<Planted>,
}

impl Setup {
    /// Three founders and one round without faults.
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

    /// The same with a rule broken.
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
