//! The state of the processes, and the steps that change it.

/// Number of processes that may bootstrap a run.
pub(super) const FOUNDERS: usize = 3;

/// The last message that a process received from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Heard {
    /// Incarnation of the other process.
    pub start: u8,
    /// Whether the other process may be counted as a bootstrap member.
    pub founds: bool,
}

/// A process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub alive: bool,
    /// Incarnation of the process.
    pub start: u8,
    /// Whether the process has a marker file.
    pub marker: bool,
    /// Whether the process found a marker when it started.
    pub restarted: bool,
    /// The last message of each other process.
    pub heard: [Option<Heard>; FOUNDERS],
    /// The run, or the bootstrap, that the process wants to be admitted to.
    pub waits_for: Option<u8>,
    /// Whether the process heard that `waits_for` is decided.
    pub waits_for_run: bool,
    /// The bootstrap that the process is a member of.
    pub founding: Option<u8>,
    /// Whether the process takes part: since it adopted the bootstrap it could send to every member
    /// of it.
    pub formed: bool,
    /// Whether the process said that it is ready for round 0 of this bootstrap.
    pub ready: bool,
    /// The run that the process is a member of.
    pub run: Option<u8>,
    /// The bootstraps that the process left, one bit each.
    pub left: u8,
}

/// A bootstrap, as the bootstrapper sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Founding {
    /// The bootstrap members, which are the voters of round 0, in the incarnations `starts`.
    pub founders: u8,
    pub starts: [u8; FOUNDERS],
    /// Members that said they are ready for round 0.
    pub ready: u8,
    /// Members that voted for round 0.
    pub yes: u8,
    /// Whether enough members voted; possibly no process knows it.
    pub decided: bool,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) nodes: [Node; FOUNDERS],
    pub(super) foundings: Vec<Founding>,
    /// The run of the fourth process, which never ends and which nobody can reach.
    pub(super) outside: Option<u8>,
    /// The process that is cut off from the two others, if any.
    pub(super) cut: Option<u8>,
    pub(super) kills: u8,
    pub(super) cuts: u8,
}

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The first process hears what the second takes part in.
    Hear(u8, u8),
    /// The first process notices that it can no longer send to the incarnation of the second that
    /// it heard of.
    Forget(u8, u8),
    /// The bootstrapper bootstraps, with the processes that it heard from.
    Found(u8),
    /// A process is told of a bootstrap that counts on it.
    Adopt(u8, u8),
    /// A bootstrap member can send to all others.
    Form(u8),
    /// A bootstrap member says that it holds all of round 0's data.
    Ready(u8),
    /// A bootstrap member votes for round 0.
    Vote(u8),
    /// A bootstrap member leaves a bootstrap that nobody can decide any more.
    Leave(u8),
    /// A process stops waiting for a run that no process takes part in.
    GiveUp(u8),
    /// A bootstrap member learns that round 0 is decided.
    Learn(u8),
    /// A member makes its marker.
    Mark(u8),
    /// The second process, a member, admits the first.
    Join(u8, u8),
    /// A run admits the fourth process.
    Admit(u8),
    /// A process is killed.
    Kill(u8),
    /// A killed process is restarted with empty memory.
    Restart(u8),
    /// A process is cut off.
    Cut(u8),
    /// All processes can reach each other again.
    Heal,
}

pub(super) fn bit(id: u8) -> u8 {
    1 << id
}

pub(super) fn ids() -> impl Iterator<Item = u8> {
    0..FOUNDERS as u8
}

impl Node {
    pub(super) fn stands_nowhere(&mut self) {
        self.left |= self.founding.map_or(0, bit);
        self.founding = None;
        self.formed = false;
        self.ready = false;
    }

    pub(super) fn adopts(&mut self, founding: u8) {
        self.stands_nowhere();
        self.left &= !bit(founding);
        self.founding = Some(founding);
        self.waits_for = None;
        self.waits_for_run = false;
    }

    /// Gives up what the process takes part in, to be admitted elsewhere.
    pub(super) fn waits_in(&mut self, number: u8, decided: bool) {
        self.stands_nowhere();
        self.waits_for = Some(number);
        self.waits_for_run = decided;
    }

    pub(super) fn is_member(&mut self, run: u8) {
        let Self {
            alive,
            start,
            marker,
            restarted,
            ..
        } = *self;
        *self = Self {
            alive,
            start,
            marker,
            restarted,
            run: Some(run),
            ..Self::default()
        };
    }

    /// The bootstrap that the process is ready for.
    pub(super) fn ready_for(&self) -> Option<u8> {
        if self.ready { self.founding } else { None }
    }

    /// The run or bootstrap that the process says it takes part in.
    pub(super) fn stands_in(&self) -> Option<u8> {
        let formed = if self.formed { self.founding } else { None };
        self.run.or(formed)
    }
}

impl Founding {
    pub(super) fn counts_on(&self, id: u8, node: &Node) -> bool {
        self.founders & bit(id) != 0 && self.starts[usize::from(id)] == node.start
    }

    /// Whether the members in the set are more than half.
    pub(super) fn is_quorum(&self, among: u8) -> bool {
        (among & self.founders).count_ones() * 2 > self.founders.count_ones()
    }
}

impl State {
    pub(super) fn node(&self, id: u8) -> &Node {
        &self.nodes[usize::from(id)]
    }

    pub(super) fn founding(&self, number: u8) -> &Founding {
        &self.foundings[usize::from(number)]
    }

    pub(super) fn with(&self, id: u8, node: Node) -> Self {
        let mut next = self.clone();
        next.nodes[usize::from(id)] = node;
        next
    }

    /// Whether both processes live and can reach each other.
    pub(super) fn reaches(&self, one: u8, other: u8) -> bool {
        self.is_near(one, other) && self.node(one).alive && self.node(other).alive
    }

    /// Like `reaches`, whether or not the other process lives.
    pub(super) fn is_near(&self, one: u8, other: u8) -> bool {
        one == other || (self.cut != Some(one) && self.cut != Some(other))
    }

    /// The bootstrap members that live in the incarnation that bootstraps.
    pub(super) fn living(&self, founding: &Founding) -> u8 {
        ids()
            .filter(|id| self.node(*id).alive && founding.counts_on(*id, self.node(*id)))
            .fold(0, |all, id| all | bit(id))
    }
}
