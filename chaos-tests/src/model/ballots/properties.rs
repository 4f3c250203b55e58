//! What must never be in a decree, and what must be possible.

use super::{Choice, Decree, Letter, State};
use slowmo_protocol::ballot::first_ballot;
use slowmo_protocol::ident::{Ballot, NodeId};
use stateright::Property;
use std::collections::BTreeSet;

/// What must never be.
pub(super) fn invariants() -> Vec<Property<Decree>> {
    vec![
        Property::always("at most one value is decided", |_, state: &State| {
            let values: BTreeSet<Ballot> = state.decided.iter().map(|(_, choice)| choice.value).collect();
            values.len() <= 1
        }),
        Property::always("what is proposed above a decided ballot is what was decided", |_, state: &State| {
            let binds = |(ballot, decided): &(Ballot, Choice)| {
                state.letters.iter().all(|letter| match letter {
                    Letter::Proposed(higher, choice) => higher <= ballot || choice.value == decided.value,
                    _ => true,
                })
            };
            state.decided.iter().all(binds)
        }),
        Property::always("a ballot has one motion", |_, state: &State| {
            let proposed: Vec<Ballot> = state
                .letters
                .iter()
                .filter_map(|letter| if let Letter::Proposed(ballot, _) = letter { Some(*ballot) } else { None })
                .collect();
            proposed.windows(2).all(|pair| pair[0] != pair[1])
        }),
        Property::always("who decides is a quorum", |model: &Decree, state: &State| {
            state.decided.iter().all(|(_, choice)| model.view.is_quorum(choice.voters.iter().copied()))
        }),
    ]
}

/// What must be possible.
pub(super) fn possibilities() -> Vec<Property<Decree>> {
    vec![
        Property::sometimes("decided under the first ballot", |model: &Decree, state: &State| {
            state.decided.iter().any(|(ballot, _)| *ballot == first_ballot(&model.view))
        }),
        Property::sometimes("decided under a second ballot, own choice", |_, state: &State| {
            state.decided.iter().any(|(ballot, choice)| ballot.counter > 0 && !choice.inherited)
        }),
        Property::sometimes("decided under a second ballot, inherited", |_, state: &State| {
            state.decided.iter().any(|(ballot, choice)| ballot.counter > 0 && choice.inherited)
        }),
        Property::sometimes("decided twice, the same", |_, state: &State| state.decided.len() > 1),
        Property::sometimes("decided without a node that crashed", |model: &Decree, state: &State| {
            let alive = |id: &NodeId| model.view.rank(*id).and_then(|rank| state.nodes.get(rank)).is_some_and(Option::is_some);
            let without = |(_, choice): &(Ballot, Choice)| choice.voters.iter().all(alive);
            model.setup.crashes == 0 || (Decree::crashed(state) > 0 && state.decided.iter().any(without))
        }),
    ]
}
