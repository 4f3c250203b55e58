//! The rules of a bootstrap, one function each.

use super::state::{Action, FOUNDERS, Founding, Heard, Node, State, bit, ids};
use super::{Bootstraps, Marker, Planted};

/// Bound on bootstraps: more than the faults of any space can cause.
const MOST_FOUNDINGS: usize = 6;

impl Bootstraps {
    pub(super) fn planted(&self, planted: Planted) -> bool {
        self.space.planted == Some(planted)
    }

    fn list(&self, id: u8) -> u8 {
        self.space.lists[usize::from(id)]
    }

    /// Number of addresses known to the process that have not answered it.
    fn unanswered(&self, id: u8, node: &Node) -> u32 {
        let heard = ids()
            .filter(|other| node.heard[usize::from(*other)].is_some())
            .fold(bit(id), |all, other| all | bit(other));
        (self.list(id) & !heard).count_ones() + u32::from(self.space.fourth_is_listed)
    }

    /// Whether the process must look for its run first: it was restarted and noticed that.
    pub(super) fn is_bound_to_look(&self, id: u8, node: &Node) -> bool {
        let noticed = if self.space.marker == Marker::Founder {
            node.marker
        } else {
            node.restarted
        };
        noticed && !self.planted(Planted::MarkerIgnored) && self.unanswered(id, node) > 0
    }

    /// Whether others may count the process as a bootstrap member.
    pub(super) fn founds(&self, id: u8, node: &Node) -> bool {
        !self.is_bound_to_look(id, node) || self.planted(Planted::RestartedIsFounder)
    }

    /// Whether the process is the bootstrapper as far as it knows: it has the smallest of the
    /// addresses that it knows or met.
    pub(super) fn bootstraps(&self, id: u8, node: &Node) -> bool {
        let met =
            ids().filter(|other| node.heard[usize::from(*other)].is_some_and(|heard| heard.founds));
        let known = met.fold(self.list(id) | bit(id), |all, other| all | bit(other));
        known.trailing_zeros() == u32::from(id)
    }

    /// Whether bootstrap `one` is preferred: of two undecided bootstraps the one whose lowest id is
    /// lower, then the one whose hashed name is lower.
    fn is_preferred(&self, state: &State, one: u8, other: u8) -> bool {
        let name = |number: u8| {
            if self.space.later_is_preferred {
                u8::MAX - number
            } else {
                number
            }
        };
        let key = |number: u8| {
            (
                state.founding(number).founders.trailing_zeros(),
                name(number),
            )
        };
        key(one) < key(other)
    }

    /// Whether what others say about themselves affects the process: its choice of bootstrapper, or
    /// whether it looks for its run.
    fn listens(&self, id: u8, node: &Node) -> bool {
        let bootstraps = self.list(id).trailing_zeros() == u32::from(id);
        bootstraps || node.restarted || (self.space.marker == Marker::Founder && node.marker)
    }

    fn hear(&self, state: &State, id: u8, other: u8) -> Option<State> {
        let node = *state.node(id);
        let peer = state.node(other);
        if id == other || !state.reaches(id, other) || node.run.is_some() {
            return None;
        }
        let stands_in = peer.stands_in();
        let founds = self.founds(other, peer) || stands_in.is_some() || peer.waits_for.is_some();
        let mut heard = node;
        if self.listens(id, &node) {
            heard.heard[usize::from(other)] = Some(Heard {
                start: peer.start,
                founds,
            });
        }
        if let Some(theirs) = stands_in {
            self.meet(state, id, &mut heard, other, theirs);
        }
        (heard != node).then(|| state.with(id, heard))
    }

    /// Updates a process that meets `other`, which takes part in `theirs`.
    fn meet(&self, state: &State, id: u8, node: &mut Node, other: u8, theirs: u8) {
        let decided = state.node(other).run.is_some();
        let counted = state.founding(theirs).counts_on(id, node);
        let Some(ours) = node.founding else {
            if !decided && counted && self.may_adopt(id, node, theirs) {
                node.adopts(theirs);
            } else if decided || node.waits_for.is_none() {
                node.waits_for = Some(theirs);
                node.waits_for_run = decided;
            }
            return;
        };
        let shares = state.founding(ours).founders & bit(other) != 0
            || state.founding(theirs).founders & bit(id) != 0;
        if decided && (ours != theirs || !node.ready) {
            // A process that was ready for it learns that it is decided; for any other, round 0 was
            // decided without it.
            node.waits_in(theirs, true);
        } else if !decided && ours != theirs && shares && self.is_preferred(state, theirs, ours) {
            match (counted, node.ready) {
                (true, false) => node.adopts(theirs),
                (false, false) => node.waits_in(theirs, false),
                (_, true) => {}
            }
        }
    }

    /// Whether the process becomes a member of a bootstrap that counts on it: it waits for no run,
    /// except for the run of this very bootstrap.
    fn may_adopt(&self, id: u8, node: &Node, number: u8) -> bool {
        let outside = node.waits_for.is_some_and(|known| {
            let other_run = node.waits_for_run && known != number;
            other_run || self.planted(Planted::OnceOutsideAlwaysOutside)
        });
        // The process re-enters a bootstrap that it left only to finish what was decided without
        // it.
        let left = node.left & bit(number) != 0 && node.waits_for != Some(number);
        !outside && !left && self.founds(id, node)
    }

    fn forget(&self, state: &State, id: u8, other: u8) -> Option<State> {
        let mut node = *state.node(id);
        let heard = node.heard[usize::from(other)]?;
        let same = state.reaches(id, other) && state.node(other).start == heard.start;
        if same || !node.alive || node.run.is_some() {
            return None;
        }
        node.heard[usize::from(other)] = None;
        Some(state.with(id, node))
    }

    fn found(&self, state: &State, id: u8) -> Option<State> {
        let mut node = *state.node(id);
        let idle =
            node.alive && node.run.is_none() && node.founding.is_none() && node.waits_for.is_none();
        if !idle
            || state.foundings.len() >= MOST_FOUNDINGS
            || self.is_bound_to_look(id, &node)
            || !self.bootstraps(id, &node)
        {
            return None;
        }
        // All reachable processes answer within the second in which all known addresses are asked.
        let heard = |other: u8| node.heard[usize::from(other)];
        let answered =
            |other: u8| heard(other).is_some_and(|heard| heard.start == state.node(other).start);
        let silent = ids().any(|other| {
            other != id
                && self.list(id) & bit(other) != 0
                && state.reaches(id, other)
                && !answered(other)
        });
        if silent && !self.planted(Planted::NobodyAsked) {
            return None;
        }
        let mut starts = [0; FOUNDERS];
        starts[usize::from(id)] = node.start;
        let mut founders = bit(id);
        for other in ids().filter(|other| *other != id) {
            if let Some(heard) = heard(other).filter(|heard| heard.founds) {
                founders |= bit(other);
                starts[usize::from(other)] = heard.start;
            }
        }
        if founders.count_ones() < self.space.min_nodes {
            return None;
        }
        let mut next = state.clone();
        // A bootstrap is named by its members and their incarnations.
        let same = |known: &Founding| (known.founders, known.starts) == (founders, starts);
        let number = state
            .foundings
            .iter()
            .position(same)
            .unwrap_or(state.foundings.len());
        if number == state.foundings.len() {
            next.foundings.push(Founding {
                founders,
                starts,
                ready: 0,
                yes: 0,
                decided: false,
            });
        }
        node.adopts(number as u8);
        node.formed = true;
        Some(next.with(id, node))
    }

    fn adopt(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let founding = state.foundings.get(usize::from(number))?;
        let mut node = *state.node(id);
        let able = node.alive
            && node.run.is_none()
            && founding.counts_on(id, &node)
            && self.may_adopt(id, &node, number);
        let free = match node.founding {
            None => true,
            Some(ours) => {
                let bound = node.ready && !self.planted(Planted::GoesOverWhenReady);
                ours != number && !bound && self.is_preferred(state, number, ours)
            }
        };
        // Once both are connected, a new incarnation of the bootstrap member ends whatever was in
        // flight from the previous one.
        let founder = founding.founders.trailing_zeros() as u8;
        let sender = state.node(founder);
        let over = sender.start != founding.starts[usize::from(founder)]
            && sender.heard[usize::from(id)].is_some();
        if !able || !free || over {
            return None;
        }
        node.adopts(number);
        Some(state.with(id, node))
    }

    fn form(state: &State, id: u8) -> Option<State> {
        let mut node = *state.node(id);
        if node.formed {
            return None;
        }
        let founding = state.founding(node.founding?);
        let all = ids()
            .filter(|other| founding.founders & bit(*other) != 0)
            .all(|other| state.reaches(id, other));
        node.formed = true;
        all.then(|| state.with(id, node))
    }

    fn ready(&self, state: &State, id: u8) -> Option<State> {
        let mut node = *state.node(id);
        if !node.formed || node.ready {
            return None;
        }
        let number = node.founding?;
        if state.founding(number).decided {
            return None;
        }
        node.ready = true;
        node.marker |= self.space.marker == Marker::Founder;
        let mut next = state.with(id, node);
        next.foundings[usize::from(number)].ready |= bit(id);
        Some(next)
    }

    fn vote(&self, state: &State, id: u8) -> Option<State> {
        let node = state.node(id);
        let number = node.ready_for()?;
        let founding = state.founding(number);
        let half = |among: u8| {
            let lowest = among & bit(founding.founders.trailing_zeros() as u8) != 0;
            self.planted(Planted::TieBreaker)
                && lowest
                && among.count_ones() * 2 == founding.founders.count_ones()
        };
        let enough = |among: u8| founding.is_quorum(among) || half(among);
        if founding.yes & bit(id) != 0 || !enough(founding.ready) {
            return None;
        }
        let mut next = state.clone();
        let voted = &mut next.foundings[usize::from(number)];
        voted.yes |= bit(id);
        voted.decided = enough(voted.yes);
        Some(next)
    }

    fn leave(state: &State, id: u8) -> Option<State> {
        let mut node = *state.node(id);
        let founding = state.founding(node.founding?);
        // A new incarnation shows that the previous one ended; so does the machine of a killed
        // process.
        let ended = |other: &u8| {
            state.is_near(id, *other) && !founding.counts_on(*other, state.node(*other))
        };
        let killed = |other: &u8| state.is_near(id, *other) && !state.node(*other).alive;
        let left = ids().filter(|other| {
            founding.founders & bit(*other) != 0 && !ended(other) && !killed(other)
        });
        let left = left.fold(0, |all, other| all | bit(other));
        if founding.is_quorum(left) {
            return None;
        }
        node.stands_nowhere();
        Some(state.with(id, node))
    }

    fn give_up(&self, state: &State, id: u8) -> Option<State> {
        let mut node = *state.node(id);
        if node.run.is_some() || self.planted(Planted::WaitsForTheVoid) {
            return None;
        }
        let number = node.waits_for?;
        // A process that is cut off may still take part: a broken connection does not prove an end.
        let stands =
            |other: u8| !state.is_near(id, other) || state.node(other).stands_in() == Some(number);
        node.waits_for = None;
        node.waits_for_run = false;
        (!ids().any(stands)).then(|| state.with(id, node))
    }

    /// A process learns the outcome of the vote from the process that asked for the votes, now or
    /// later, or by asking those that voted.
    pub(super) fn learn(state: &State, id: u8, needs_witness: bool) -> Option<State> {
        let mut node = *state.node(id);
        let number = node.ready_for()?;
        let founding = state.founding(number);
        let knows = |other: u8| state.node(other).run == Some(number);
        let stands = |other: &u8| state.node(*other).founding == Some(number) || knows(*other);
        let reached = || ids().filter(|other| state.reaches(id, *other));
        let witness = reached().any(knows);
        let quorum = founding.is_quorum(
            reached()
                .filter(stands)
                .fold(0, |all, other| all | bit(other))
                & state.living(founding),
        );
        if !founding.decided || (needs_witness && !witness && !quorum) {
            return None;
        }
        node.is_member(number);
        Some(state.with(id, node))
    }

    fn mark(&self, state: &State, id: u8) -> Option<State> {
        let mut node = *state.node(id);
        if node.run.is_none() || node.marker || self.space.marker == Marker::None {
            return None;
        }
        node.marker = true;
        Some(state.with(id, node))
    }

    fn join(state: &State, id: u8, by: u8) -> Option<State> {
        let mut node = *state.node(id);
        let wants = node.run.is_none() && node.founding.is_none() && state.reaches(id, by);
        let run = state
            .node(by)
            .run
            .filter(|run| node.waits_for == Some(*run) && wants)?;
        node.is_member(run);
        Some(state.with(id, node))
    }

    fn admit(&self, state: &State, number: u8) -> Option<State> {
        let lives = state.nodes.iter().any(|node| node.run == Some(number));
        (self.space.fourth && state.outside.is_none() && lives).then(|| State {
            outside: Some(number),
            ..state.clone()
        })
    }

    pub(super) fn apply(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::Hear(id, other) => self.hear(state, id, other),
            Action::Forget(id, other) => self.forget(state, id, other),
            Action::Found(id) => self.found(state, id),
            Action::Adopt(id, number) => self.adopt(state, id, number),
            Action::Form(id) => Self::form(state, id),
            Action::Ready(id) => self.ready(state, id),
            Action::Vote(id) => self.vote(state, id),
            Action::Leave(id) => Self::leave(state, id),
            Action::GiveUp(id) => self.give_up(state, id),
            Action::Learn(id) => Self::learn(state, id, false),
            Action::Mark(id) => self.mark(state, id),
            Action::Join(id, by) => Self::join(state, id, by),
            Action::Admit(number) => self.admit(state, number),
            Action::Kill(id) => {
                let Node {
                    alive,
                    start,
                    marker,
                    ..
                } = *state.node(id);
                (alive && state.kills > 0).then(|| {
                    let killed = state.with(
                        id,
                        Node {
                            start,
                            marker,
                            ..Node::default()
                        },
                    );
                    State {
                        kills: state.kills - 1,
                        ..killed
                    }
                })
            }
            Action::Restart(id) => {
                let Node {
                    alive,
                    start,
                    marker,
                    ..
                } = *state.node(id);
                (!alive).then(|| {
                    state.with(
                        id,
                        Node {
                            alive: true,
                            start: start + 1,
                            marker,
                            restarted: marker,
                            ..Node::default()
                        },
                    )
                })
            }
            Action::Cut(id) => (state.cut.is_none() && state.cuts > 0).then(|| State {
                cut: Some(id),
                cuts: state.cuts - 1,
                ..state.clone()
            }),
            Action::Heal => state.cut.is_some().then(|| State {
                cut: None,
                ..state.clone()
            }),
        }
    }
}
