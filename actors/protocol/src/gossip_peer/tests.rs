//! Many gossip machines on one numeric model: mass is conserved, weights stay one, nodes contract to the mean.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::ident::{ClusterId, Incarnation};
use crate::view::tests::view;
use proptest::prelude::*;
use std::collections::BTreeMap;

const WAITS: Waits = Waits { message: Span(1), leave: Span(1) };

/// Nodes with one float64 value each, exchanging through their machines in a chosen order.
struct Cluster {
    nodes: BTreeMap<NodeId, (GossipPeer, f64, f64)>,
}

impl Cluster {
    fn new(ids: &[u64], peers: u32) -> Self {
        let view = view(ids);
        let node = |id: NodeId| {
            let identity = Identity { cluster: ClusterId(1), node: id, incarnation: Incarnation(1) };
            (GossipPeer::new(identity, Lineage(1), &view, peers, WAITS), id.0 as f64, 1.0)
        };
        Self { nodes: view.ids().map(|id| (id, node(id))).collect() }
    }

    /// One gossip of every node; `order` permutes who completes first.
    fn gossip(&mut self, step: u64, order: &[usize]) {
        let mut out = Outbox::default();
        let mut sent: BTreeMap<(NodeId, NodeId), (f64, f64)> = BTreeMap::new();
        let mut plans = BTreeMap::new();
        for (id, (machine, value, weight)) in &mut self.nodes {
            machine.handle(In::Gossip { step: Step(step), turn: step, round: Round(1), weight: *weight }, Instant(0), &mut out);
            for effect in out.take() {
                let Effect::Exchange(plan) = effect else { panic!("unexpected {effect:?}") };
                let scale = 1.0 / (plan.out.len() as f64 + 1.0);
                for to in &plan.out {
                    sent.insert((*id, *to), (*value * scale, plan.split.share));
                }
                *value *= scale;
                plans.insert(*id, plan);
            }
        }
        let ids: Vec<_> = self.nodes.keys().copied().collect();
        for index in order {
            let id = ids[index % ids.len()];
            let Some(plan) = plans.remove(&id) else { continue };
            self.complete(id, &plan, &mut sent, &mut out);
        }
        for (id, plan) in plans {
            self.complete(id, &plan, &mut sent, &mut out);
        }
        assert!(sent.is_empty(), "a message was never mixed: {sent:?}");
    }

    fn complete(&mut self, id: NodeId, plan: &Plan, sent: &mut BTreeMap<(NodeId, NodeId), (f64, f64)>, out: &mut Outbox<Effect>) {
        let (machine, value, weight) = self.nodes.get_mut(&id).unwrap();
        let arrived: Vec<_> = plan.inward.iter().map(|from| (*from, sent.remove(&(*from, id)).unwrap())).collect();
        *value += arrived.iter().map(|(_, (value, _))| value).sum::<f64>();
        let arrived = arrived.into_iter().map(|(from, (_, weight))| (from, weight)).collect();
        machine.handle(In::Mixed { step: plan.step, arrived, returned: Vec::new() }, Instant(0), out);
        let mut acknowledgements = Vec::new();
        for effect in out.take() {
            match effect {
                Effect::Done { weight: now, .. } => *weight = now,
                Effect::Send { to, frame } => acknowledgements.push((to, frame)),
                other => panic!("unexpected {other:?}"),
            }
        }
        for (to, Frame::V1 { header, message }) in acknowledgements {
            self.nodes.get_mut(&to).unwrap().0.handle(In::Frame { header, message }, Instant(0), out);
        }
    }

    fn mass(&self) -> (f64, f64) {
        let held = self.nodes.values().fold((0.0, 0.0), |sum, (_, value, weight)| (sum.0 + value, sum.1 + weight));
        (held.0, held.1 + self.nodes.values().map(|(machine, ..)| machine.escrowed()).sum::<f64>())
    }

    fn deviation(&self) -> f64 {
        let debiased: Vec<f64> = self.nodes.values().map(|(_, value, weight)| value / weight).collect();
        let mean = debiased.iter().sum::<f64>() / debiased.len() as f64;
        debiased.iter().map(|value| (value - mean).powi(2)).sum::<f64>().sqrt()
    }

    fn spread(&self) -> f64 {
        let debiased = || self.nodes.values().map(|(_, value, weight)| value / weight);
        debiased().fold(f64::MIN, f64::max) - debiased().fold(f64::MAX, f64::min)
    }
}

#[test]
fn a_full_cycle_over_a_power_of_two_is_the_exact_mean() {
    for (ids, cycle) in [(vec![3, 8], 1), (vec![1, 2, 5, 9], 2), ((0..8).collect(), 3)] {
        let mut cluster = Cluster::new(&ids, 1);
        (0..cycle).for_each(|step| cluster.gossip(step, &[]));
        assert!(cluster.spread() < 1e-12, "{ids:?}");
    }
}

#[test]
fn other_sizes_contract_at_the_graphs_rate() {
    // W = 3: a quarter per two steps, exactly.
    let mut cluster = Cluster::new(&[1, 2, 3], 1);
    for cycle in 0..4 {
        let before = cluster.spread();
        (0..2).for_each(|step| cluster.gossip(2 * cycle + step, &[]));
        assert!((cluster.spread() / before - 0.25).abs() < 1e-9);
    }
}

#[test]
fn six_nodes_contract_by_about_a_fifth_per_cycle() {
    // Per cycle of three the norm of the deviation shrinks by 0.19..0.22 in the long run.
    let mut cluster = Cluster::new(&[1, 2, 3, 4, 5, 6], 1);
    let (cycles, before) = (8, cluster.deviation());
    (0..3 * cycles).for_each(|step| cluster.gossip(step, &[]));
    let rate = (cluster.deviation() / before).powf(1.0 / cycles as f64);
    assert!((0.15..0.25).contains(&rate), "{rate}");
}

#[test]
fn what_could_not_be_sent_stays_here() {
    let mut cluster = Cluster::new(&[1, 2, 3, 4], 2);
    let machine = &mut cluster.nodes.get_mut(&NodeId(1)).unwrap().0;
    let mut out = Outbox::default();
    machine.handle(In::Gossip { step: Step(0), turn: 0, round: Round(1), weight: 1.0 }, Instant(0), &mut out);
    assert!(machine.escrowed() > 0.6);
    out.take();
    let (arrived, returned) = (vec![(NodeId(4), 1.0 / 3.0)], vec![NodeId(3)]);
    machine.handle(In::Mixed { step: Step(0), arrived, returned }, Instant(1), &mut out);
    let Some(Effect::Done { weight, contributors: 2, .. }) = out.take().pop() else { panic!() };
    assert!((weight - 1.0).abs() < 1e-12, "{weight}");
    assert!((machine.escrowed() - 1.0 / 3.0).abs() < 1e-12);
}

#[test]
fn acknowledgements_of_strangers_and_other_histories_release_nothing() {
    let mut cluster = Cluster::new(&[1, 2], 1);
    let machine = &mut cluster.nodes.get_mut(&NodeId(1)).unwrap().0;
    let mut out = Outbox::default();
    machine.handle(In::Gossip { step: Step(0), turn: 0, round: Round(1), weight: 1.0 }, Instant(0), &mut out);
    let identity = Identity { cluster: ClusterId(1), node: NodeId(2), incarnation: Incarnation(1) };
    let place = Place { lineage: Lineage(1), epoch: Epoch(1), round: Round(1), ballot: Ballot::default() };
    let good = identity.header(place);
    let headers = [Header { lineage: Lineage(2), ..good }, Header { epoch: Epoch(2), ..good }, Header { sender: NodeId(3), ..good }];
    for header in headers {
        machine.handle(In::Frame { header, message: Box::new(Message::GossipMixed { step: Step(0) }) }, Instant(0), &mut out);
        assert_eq!(machine.escrowed(), 0.5);
    }
    machine.handle(In::Frame { header: good, message: Box::new(Message::GossipMixed { step: Step(0) }) }, Instant(0), &mut out);
    assert_eq!(machine.escrowed(), 0.0);
}

#[test]
fn one_node_alone_keeps_everything() {
    let mut cluster = Cluster::new(&[5], 1);
    cluster.gossip(0, &[]);
    assert_eq!(cluster.mass(), (5.0, 1.0));
}

#[test]
fn a_lost_or_late_in_peer_is_given_up_and_its_mass_not_counted() {
    for event in [In::MemberLost(NodeId(2)), In::Tick] {
        let mut cluster = Cluster::new(&[1, 2], 1);
        let machine = &mut cluster.nodes.get_mut(&NodeId(1)).unwrap().0;
        let mut out = Outbox::default();
        machine.handle(In::Gossip { step: Step(0), turn: 0, round: Round(1), weight: 1.0 }, Instant(0), &mut out);
        out.take();
        machine.handle(event, Instant(1), &mut out);
        assert_eq!(out.take(), [Effect::GiveUp { step: Step(0), round: Round(1), nodes: vec![NodeId(2)] }]);
        machine.handle(In::Mixed { step: Step(0), arrived: Vec::new(), returned: vec![NodeId(2)] }, Instant(1), &mut out);
        assert_eq!(out.take(), [Effect::Done { step: Step(0), weight: 1.0, contributors: 1 }]);
    }
}

/// A gossip of node 1 of two whose message is still under way.
fn under_way() -> (GossipPeer, Outbox<Effect>) {
    let mut machine = Cluster::new(&[1, 2], 1).nodes.remove(&NodeId(1)).unwrap().0;
    let mut out = Outbox::default();
    machine.handle(In::Gossip { step: Step(0), turn: 0, round: Round(1), weight: 1.0 }, Instant(0), &mut out);
    machine.handle(In::Mixed { step: Step(0), arrived: vec![(NodeId(2), 0.5)], returned: Vec::new() }, Instant(0), &mut out);
    out.take();
    (machine, out)
}

#[test]
fn a_node_leaves_when_its_last_message_was_mixed_or_its_receiver_is_gone_or_the_wait_is_over() {
    let (mut acknowledged, mut out) = under_way();
    acknowledged.handle(In::Leave(Round(1)), Instant(0), &mut out);
    assert_eq!(out.take(), [], "node 2 may be behind and still need the message");
    let identity = Identity { cluster: ClusterId(1), node: NodeId(2), incarnation: Incarnation(1) };
    let place = Place { lineage: Lineage(1), epoch: Epoch::FOUNDING, round: Round(1), ballot: Ballot::default() };
    let (header, message) = (identity.header(place), Box::new(Message::GossipMixed { step: Step(0) }));
    acknowledged.handle(In::Frame { header, message }, Instant(0), &mut out);
    assert_eq!(out.take(), [Effect::Left]);

    let (mut lost, mut out) = under_way();
    lost.handle(In::Leave(Round(1)), Instant(0), &mut out);
    lost.handle(In::MemberLost(NodeId(2)), Instant(0), &mut out);
    assert_eq!(out.take(), [Effect::Left]);

    let (mut late, mut out) = under_way();
    late.handle(In::Leave(Round(1)), Instant(0), &mut out);
    assert_eq!(late.next_deadline(), Some(Instant(1)));
    late.handle(In::Tick, Instant(1), &mut out);
    assert_eq!(out.take(), [Effect::Left]);
}

#[test]
fn a_dead_member_is_done_without() {
    let mut machine = Cluster::new(&[1, 2, 3, 4, 5], 1).nodes.remove(&NodeId(1)).unwrap().0;
    let mut out = Outbox::default();
    machine.handle(In::Gossip { step: Step(0), turn: 0, round: Round(1), weight: 1.0 }, Instant(0), &mut out);
    out.take();
    machine.handle(In::MemberLost(NodeId(3)), Instant(0), &mut out);
    assert_eq!(out.take(), [], "hop 1 concerns nodes 2 and 5");
    machine.handle(In::Mixed { step: Step(0), arrived: vec![(NodeId(5), 0.5)], returned: Vec::new() }, Instant(0), &mut out);
    out.take();
    machine.handle(In::Gossip { step: Step(1), turn: 1, round: Round(1), weight: 1.0 }, Instant(0), &mut out);
    let Some(Effect::Exchange(plan)) = out.take().pop() else { panic!() };
    assert_eq!((plan.out, plan.inward, plan.split.kept), (vec![], vec![NodeId(4)], 1.0), "hop 2 would need node 3");
    // It was only away for a moment: no round was decided without it, so the view is the same.
    machine.handle(In::MemberBack(NodeId(3)), Instant(0), &mut out);
    machine.handle(In::Gossip { step: Step(2), turn: 1, round: Round(1), weight: 1.0 }, Instant(0), &mut out);
    let Some(Effect::Exchange(plan)) = out.take().pop() else { panic!() };
    assert_eq!((plan.out, plan.inward), (vec![NodeId(3)], vec![NodeId(4)]));
}

#[test]
fn another_view_has_a_graph_of_its_own() {
    let mut machine = Cluster::new(&[1, 2, 3, 4, 5], 1).nodes.remove(&NodeId(1)).unwrap().0;
    let mut out = Outbox::default();
    let gossip = |step| In::Gossip { step: Step(step), turn: step, round: Round(1), weight: 1.0 };
    let done = |step| In::Mixed { step: Step(step), arrived: Vec::new(), returned: Vec::new() };
    (0..3).flat_map(|step| [gossip(step), done(step)]).for_each(|event| machine.handle(event, Instant(0), &mut out));
    let view = View::new(Epoch(2), view(&[1, 2, 7]).members().to_vec()).unwrap();
    machine.handle(In::View { view, lineage: Lineage(1), round: Round(2) }, Instant(0), &mut out);
    assert_eq!(machine.escrowed(), 0.0);
    out.take();
    machine.handle(gossip(3), Instant(0), &mut out);
    let Some(Effect::Exchange(plan)) = out.take().pop() else { panic!() };
    assert_eq!((plan.out, plan.inward, plan.place.epoch), (vec![NodeId(7)], vec![NodeId(2)], Epoch(2)), "hop 2");
}

#[test]
fn what_a_closed_round_made_void_is_not_waited_for() {
    let (mut machine, mut out) = under_way();
    machine.handle(In::Leave(Round(2)), Instant(0), &mut out);
    assert_eq!(out.take(), [Effect::Left]);
    let (mut machine, mut out) = under_way();
    machine.handle(In::Gossip { step: Step(4), turn: 3, round: Round(2), weight: 1.0 }, Instant(0), &mut out);
    assert_eq!(machine.escrowed(), 0.5, "only what this gossip sends");
}

#[test]
fn a_peer_may_be_several_rounds_ahead() {
    let (machine, _) = under_way();
    let identity = Identity { cluster: ClusterId(1), node: NodeId(2), incarnation: Incarnation(1) };
    let at = |round| identity.header(Place { lineage: Lineage(1), epoch: Epoch::FOUNDING, round: Round(round), ballot: Ballot::default() });
    assert_eq!([0, 1, 2, 3].map(|round| machine.admits(&at(round))), [false, true, true, true]);
}

proptest! {
    #[test]
    fn mass_is_conserved_in_any_order(
        size in 1usize..12,
        peers in 1u32..4,
        steps in 1u64..10,
        order in proptest::collection::vec(0usize..12, 0..12),
    ) {
        let ids: Vec<u64> = (0..size as u64).map(|i| i * 3 + 1).collect();
        let mut cluster = Cluster::new(&ids, peers);
        let before = cluster.mass();
        for step in 0..steps {
            cluster.gossip(step, &order);
        }
        let after = cluster.mass();
        prop_assert!((before.0 - after.0).abs() < 1e-9 && (before.1 - after.1).abs() < 1e-9);
        for (_, _, weight) in cluster.nodes.values() {
            prop_assert!((weight - 1.0).abs() < 1e-12, "a regular graph keeps every weight at one");
        }
    }
}
