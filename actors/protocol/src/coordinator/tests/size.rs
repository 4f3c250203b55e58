//! The bytes that a leader sends in a steady round grow with the members, not with their square.

use super::*;
use crate::coordinator::VOTES_WAIT;
use crate::ident::GroupId;
use crate::published::PublicKey;
use std::net::SocketAddr;

/// Members are known by large numbers, as random ids are.
const FIRST_ID: u64 = 1 << 60;

fn large_view(nodes: u64) -> View {
    let member = |index: u64| Member {
        id: NodeId(FIRST_ID + index * 977),
        incarnation: Incarnation(1_700_000_000_000_000 + index),
        address: SocketAddr::from(([10, 1, (index >> 8) as u8, index as u8], 7400)),
        devices: 8,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    View::new(Epoch::BOOTSTRAP, (0..nodes).map(member).collect()).unwrap()
}

/// Lengths of the control frames that the leader of `nodes` sends to decide one round, each member
/// contributing.
fn frames_of_a_round(nodes: u64) -> Vec<usize> {
    let view = large_view(nodes);
    let others: Vec<u64> = view.ids().skip(1).map(|id| id.0).collect();
    let mut leader = Bench::outside(view.clone(), FIRST_ID, |settings| {
        settings.votes_wait = VOTES_WAIT;
    });
    let lineage = Lineage::of_bootstrap(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
    let mut effects = leader.tell(In::Formed { view, lineage });
    effects.extend(leader.lead(RoundSpec {
        kind: RoundKind::Average,
        step: Step(47),
        gamma: 0.1,
        elements: 25_000_000,
    }));
    effects.extend(leader.hear_all(&others, &leader.vote()));
    let applies = |effect: &Effect| matches!(effect, Effect::Apply { .. });
    assert!(
        effects.iter().any(applies),
        "the round of {nodes} members was decided"
    );
    let frames = effects.iter().filter_map(|effect| match effect {
        Effect::Send { frame, .. } => Some(frame.encode().unwrap().len()),
        _ => None,
    });
    frames.collect()
}

fn bytes_of_a_round(nodes: u64) -> usize {
    frames_of_a_round(nodes).iter().sum()
}

/// The attempt, the request for a vote, and the decision. Votes that members send each other go
/// beside those, so the decision waits for nothing that the leader would have to answer.
#[test]
fn a_leader_sends_three_frames_to_each_member() {
    for nodes in [4u64, 64] {
        assert_eq!(frames_of_a_round(nodes).len() as u64, 3 * (nodes - 1));
    }
}

#[test]
fn a_member_sends_one_vote_to_each_node() {
    for nodes in [4u64, 16] {
        let ids: Vec<u64> = (1..=nodes).collect();
        let doubts = |settings: &mut Settings| settings.votes_wait = VOTES_WAIT;
        let (mut member, entry) = Bench::ready(&ids, 2, doubts);
        let voted = member.hear(1, ask(Entry::Held(entry.digest())));
        let frames = messages(&voted).filter(|(.., message)| **message == accepted(&entry));
        assert_eq!(frames.count() as u64, nodes - 1);
    }
}

#[test]
fn the_bytes_that_a_leader_sends_grow_with_the_members() {
    let sizes = [16u64, 64, 256, 500, 1_000];
    let per_member: Vec<f64> = sizes
        .iter()
        .map(|nodes| bytes_of_a_round(*nodes) as f64 / (*nodes - 1) as f64)
        .collect();
    println!("bytes a member of {sizes:?}: {per_member:.0?}");
    for (nodes, bytes) in sizes.iter().zip(&per_member) {
        assert!(
            (bytes / per_member[0] - 1.0).abs() < 0.2,
            "{nodes}: {bytes} bytes a member, {} of 16",
            per_member[0]
        );
    }
}
