//! What the processes know, and the steps that change it.

/// Processes that may found a run.
pub(super) const FOUNDERS: usize = 3;

/// What a process was told by another one last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Heard {
    /// Which start of the other one.
    pub start: u8,
    /// Whether it may be counted as a founder.
    pub founds: bool,
}

/// A process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub alive: bool,
    /// Which start of it this is.
    pub start: u8,
    /// Its marker file.
    pub marker: bool,
    /// It found the marker at its start.
    pub restarted: bool,
    /// What the others said.
    pub heard: [Option<Heard>; FOUNDERS],
    /// The run, or the founding, that it wants to be admitted to.
    pub waits_for: Option<u8>,
    /// It heard that this one is decided.
    pub waits_for_run: bool,
    /// The founding that it is a founder of.
    pub founding: Option<u8>,
    /// It could send to every founder since: it takes part.
    pub formed: bool,
    /// It said that it is ready for round 0 of this founding.
    pub ready: bool,
    /// The run that it is a member of.
    pub run: Option<u8>,
    /// The foundings that it left, a bit each.
    pub left: u8,
}

/// A founding: the view of the process that bootstraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Founding {
    /// The founders: voters of round 0, in these starts.
    pub founders: u8,
    pub starts: [u8; FOUNDERS],
    /// Who was ready for round 0.
    pub ready: u8,
    /// Who voted for it.
    pub yes: u8,
    /// Whether enough voted; nobody may know.
    pub decided: bool,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) nodes: [Node; FOUNDERS],
    pub(super) foundings: Vec<Founding>,
    /// The run of the fourth process, which never ends and which nobody reaches.
    pub(super) outside: Option<u8>,
    /// Who is cut off from the two others.
    pub(super) cut: Option<u8>,
    pub(super) kills: u8,
    pub(super) cuts: u8,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The first hears where the second stands.
    Hear(u8, u8),
    /// The first notices that the start of the second, of which it heard, cannot be sent to any
    /// more.
    Forget(u8, u8),
    /// The process that bootstraps founds, with those that it heard from.
    Found(u8),
    /// A founder is told of a founding that counts on it.
    Adopt(u8, u8),
    /// A founder can send to all of its founding.
    Form(u8),
    /// A founder says that it holds all of round 0's data.
    Ready(u8),
    /// A founder votes for round 0.
    Vote(u8),
    /// A founder leaves a founding that nobody can decide any more.
    Leave(u8),
    /// A process waits no more for what nobody stands in.
    GiveUp(u8),
    /// A founder learns that round 0 is decided.
    Learn(u8),
    /// A member makes its marker.
    Mark(u8),
    /// The second, a member, admits the first.
    Join(u8, u8),
    /// A run admits the fourth process.
    Admit(u8),
    /// A process is killed.
    Kill(u8),
    /// It is started again with an empty memory.
    Restart(u8),
    /// A process is cut off.
    Cut(u8),
    /// Everybody reaches everybody again.
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

    /// Gives up what it stands in, to be admitted elsewhere.
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

    /// The founding that it is ready for.
    pub(super) fn ready_for(&self) -> Option<u8> {
        if self.ready { self.founding } else { None }
    }

    /// Where it says that it stands.
    pub(super) fn stands_in(&self) -> Option<u8> {
        let formed = if self.formed { self.founding } else { None };
        self.run.or(formed)
    }
}

impl Founding {
    pub(super) fn counts_on(&self, id: u8, node: &Node) -> bool {
        self.founders & bit(id) != 0 && self.starts[usize::from(id)] == node.start
    }

    /// More than half.
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

    /// Whether both live and nothing is between them.
    pub(super) fn reaches(&self, one: u8, other: u8) -> bool {
        self.is_near(one, other) && self.node(one).alive && self.node(other).alive
    }

    /// The same, whether the other one lives or not.
    pub(super) fn is_near(&self, one: u8, other: u8) -> bool {
        one == other || (self.cut != Some(one) && self.cut != Some(other))
    }

    /// The founders that live in the start that founds.
    pub(super) fn living(&self, founding: &Founding) -> u8 {
        ids()
            .filter(|id| self.node(*id).alive && founding.counts_on(*id, self.node(*id)))
            .fold(0, |all, id| all | bit(id))
    }
}
