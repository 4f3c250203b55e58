//! The order of the gossip graph: decided with the view, the same on every member, whoever leads.

use super::streams::{LINEAGE, Leader, TERMS, says};
use super::world::Fault;
use super::{LONG, assert_finished, world};
use crate::coordinator::plan::Attempt;
use crate::coordinator::{Effect, In, Outcome, Proposal, RoundKind, Terms};
use crate::ident::{Ballot, NodeId, Round};
use crate::wire::Message;

fn ids<const N: usize>(ids: [u64; N]) -> Vec<NodeId> {
    ids.map(NodeId).into()
}

/// Even and odd ids are a site each. The oracle compares every node's outcomes.
#[test]
fn sites_stand_in_a_row_whoever_leads() {
    for seed in 0..40 {
        let mut world = world(seed, 6, 1);
        if seed % 2 == 1 {
            world.fault_at(40_000 + seed * 211, Fault::Kill(NodeId(2)));
        }
        world.run(LONG);
        assert_finished(&world, if seed % 2 == 1 { 5 } else { 6 });
        let (_, first) = world.oracle.outcomes.first_key_value().unwrap();
        let (_, last) = world.oracle.outcomes.last_key_value().unwrap();
        // Under the first ballot the founding is proposed before the others told their rates.
        assert!(first.order.is_empty() || first.order == ids([2, 12, 22, 7, 17, 27]));
        let expected = if seed % 2 == 1 { ids([12, 22, 7, 17, 27]) } else { ids([2, 12, 22, 7, 17, 27]) };
        assert_eq!(last.order, expected, "seed {seed}");
    }
}

#[test]
fn a_joiner_stands_in_its_site() {
    for seed in 0..20 {
        let mut world = world(seed, 6, 1);
        world.fault_at(20_000 + seed * 211, Fault::Start(NodeId(40)));
        world.run(LONG);
        assert_finished(&world, 7);
        let order = &world.oracle.outcomes.last_key_value().unwrap().1.order;
        let changes = (0..7).filter(|i| order[*i].0 % 2 != order[(i + 1) % 7].0 % 2).count();
        assert!(changes <= 4 && order.contains(&NodeId(40)), "seed {seed}: {order:?}");
    }
}

/// A proposal's order is no reason to refuse it: whatever it says, every member makes the same of it.
#[test]
fn a_malformed_order_breaks_no_member() {
    for order in [ids([]), ids([2, 1]), ids([7]), ids([1, 1]), ids([2, 1, 2]), ids([0; 40])] {
        let mut member = Leader::of(&[1, 2], 2);
        let (view, ballot) = (member.view.clone(), Ballot { counter: 0, node: NodeId(1) });
        let terms = Terms { kind: RoundKind::Average, ..TERMS };
        member.tell(In::Contribute { round: Round::FOUNDING, terms, samples: None, rates: vec![], buffers: 0 });
        let contributors = ids([1, 2]);
        let (participants, absent) = (contributors.clone(), vec![]);
        let (lineage, round) = (LINEAGE, Round::FOUNDING);
        let outcome = Outcome { lineage, round, terms, contributors, view, absent, momentum_lost: 0, samples: None, order };
        let proposal = Proposal { outcome: outcome.clone(), participants, inherited: false };
        member.hear(1, ballot, Message::Propose(proposal));
        let attempt = Attempt { round, ballot };
        member.tell(In::Reduced(attempt));
        let held: Vec<Effect> = (1..=2).flat_map(|owner| member.tell(In::ParametersHeld(attempt, NodeId(owner)))).collect();
        assert!(says(&held, |message| matches!(message, Message::Prepared)), "{held:?}");
        let applied = member.hear(1, ballot, Message::Decide(outcome.clone()));
        assert!(applied.iter().any(|effect| matches!(effect, Effect::Apply { outcome: decided, .. } if *decided == outcome)));
        // It leads the next round alone, after whatever order.
        member.tell(In::Lost(NodeId(1), member.view.member(NodeId(1)).map(|member| member.incarnation).unwrap()));
        assert_eq!(member.machine.place().round, round.next());
    }
}
