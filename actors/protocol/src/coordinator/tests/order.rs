//! The order of the gossip graph: decided with the view, the same on every member, whoever leads.

use super::streams::{Leader, SPEC, founded, says};
use super::world::Fault;
use super::{LONG, assert_finished, world};
use crate::coordinator::plan::Attempt;
use crate::coordinator::{Effect, In, Outcome, RoundKind, RoundSpec};
use crate::ident::{NodeId, Round};
use crate::topology::hops;
use crate::wire::Message;

fn ids<const N: usize>(ids: [u64; N]) -> Vec<NodeId> {
    ids.map(NodeId).into()
}

/// The links that cross between sites in one cycle of the graph; ids below 15 are a site, and those
/// above.
fn crossings(order: &[NodeId]) -> usize {
    let size = order.len();
    let crosses =
        |place: usize, hop: usize| (order[place].0 < 15) != (order[(place + hop) % size].0 < 15);
    hops(size, 1)
        .into_iter()
        .map(|hop| (0..size).filter(|place| crosses(*place, hop)).count())
        .sum()
}

/// The oracle compares every node's outcomes.
#[test]
fn sites_are_dealt_in_turn_whoever_leads() {
    for seed in 0..40 {
        let mut world = world(seed, 6, 1);
        if seed % 2 == 1 {
            world.fault_at(40_000 + seed * 211, Fault::Kill(NodeId(2)));
        }
        world.run(LONG);
        assert_finished(&world, if seed % 2 == 1 { 5 } else { 6 });
        let entries = world.oracle.longest();
        let first = &entries.first().unwrap().outcome;
        let last = &entries.last().unwrap().outcome;
        // Under the first term the founding is proposed before the others told their rates.
        let dealt = ids([2, 17, 12, 27, 7, 22]);
        assert!(first.order.is_empty() || first.order == dealt);
        if seed % 2 == 0 {
            assert_eq!(last.order, dealt, "seed {seed}");
        } else {
            // Two and three members share a link in every turn in any order, and ascending ids are
            // as good as any.
            assert!(
                [ids([17, 12, 27, 7, 22]), ids([])].contains(&last.order),
                "seed {seed}: {:?}",
                last.order
            );
        }
    }
}

#[test]
fn a_joiner_stands_in_its_site() {
    for seed in 0..20 {
        let mut world = world(seed, 6, 1);
        world.fault_at(20_000 + seed * 211, Fault::Start(NodeId(40)));
        world.run(LONG);
        assert_finished(&world, 7);
        let order = &world.oracle.longest().last().unwrap().outcome.order;
        // No order of three and four has fewer.
        assert!(
            order.is_empty() || (crossings(order) == 12 && order.contains(&NodeId(40))),
            "seed {seed}: {order:?}"
        );
    }
}

/// An attempt's order is no reason to refuse it: whatever it says, every member makes the same of
/// it.
#[test]
fn a_malformed_order_breaks_no_member() {
    for order in [
        ids([]),
        ids([2, 1]),
        ids([7]),
        ids([1, 1]),
        ids([2, 1, 2]),
        ids([0; 40]),
    ] {
        let mut member = Leader::of(&[1, 2], 2);
        let spec = RoundSpec {
            kind: RoundKind::Average,
            ..SPEC
        };
        member.tell(In::Contribute {
            round: Round::BOOTSTRAP,
            spec,
            samples: None,
            rates: vec![],
            buffers: 0,
        });
        let outcome = Outcome {
            spec,
            contributors: ids([1, 2]),
            order,
            ..founded(&member.view, NodeId(1))
        };
        member.hear_attempt(1, &outcome, &[1, 2]);
        let attempt = Attempt::at(&member.machine.place());
        member.tell(In::Reduced(attempt));
        let held: Vec<Effect> = (1..=2)
            .flat_map(|owner| member.tell(In::ParametersHeld(attempt, NodeId(owner))))
            .collect();
        assert!(
            says(&held, |message| matches!(message, Message::Ready)),
            "{held:?}"
        );
        let applied = member.hear(
            1,
            Message::Decide {
                entry: None,
                leaves: false,
            },
        );
        assert!(applied.iter().any(
            |effect| matches!(effect, Effect::Apply { outcome: decided, .. } if *decided == outcome)
        ));
        // It leads the next round alone, after whatever order.
        member.lose(1, false);
        assert_eq!(member.machine.place().round, Round::BOOTSTRAP.next());
    }
}
