//! The bounds of lists and texts: what exceeds its own is refused, and the largest that do not
//! still fit a frame.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::changeable::ChangedSettings;
use crate::coordinator::{Base, Draft, Entry, Order, Outcome, Proposal, RoundKind, VOTERS_KEPT};
use crate::ident::{Epoch, GroupId, NodeId, ShardId, Step};
use crate::membership::settings::SETTINGS_BYTES_MAX;
use crate::model::ModelSize;
use crate::published::{Digest, PublicKey};
use crate::sampler::{DecidedRound, PENDING_MAX, Progress};
use crate::shards::SHARDS_MAX;
use crate::topology::{RATES_MAX, Rate};
use crate::view::{MEMBERS_MAX, Member};
use crate::wire::datagram::tests::packet;
use crate::wire::examples::{
    contributed, draft, frame, header, outcome, progress, retained, signed, standing, view, voter,
};
use crate::wire::hostile::{Decoder, MEMBER, SEAT, Wire, decodes, found_with, large_view};
use crate::wire::*;
use std::net::SocketAddr;

/// As many ranges left as there may be.
fn large_progress() -> Progress {
    let view = view();
    let round = DecidedRound {
        until: Step(PENDING_MAX as u64 + 9),
        contributors: &[NodeId(5)],
        members: view.members(),
    };
    Progress::new(progress().settings()).unwrap().after(&round)
}

#[test]
fn the_largest_messages_fit_a_control_frame() {
    let view = large_view(MEMBERS_MAX).unwrap();
    let everybody: Vec<NodeId> = view.ids().collect();
    let mut largest = outcome(RoundKind::Slow);
    largest.contributors.clone_from(&everybody);
    largest.absent = (0..SHARDS_MAX as u32).map(ShardId).collect();
    largest.view = view.clone();
    largest.samples = Some(large_progress());
    largest.order.clone_from(&everybody);
    largest.waiting.clone_from(&everybody);
    largest.retained = vec![retained(); VOTERS_KEPT];
    let rates = vec![
        Rate {
            to: NodeId(5),
            kilobytes: u32::MAX
        };
        RATES_MAX
    ];
    let contributed = ContributionNotice {
        samples: Some(large_progress()),
        rates,
        ..contributed()
    };
    let standing = MemberState {
        view: view.clone(),
        dead: everybody,
        ..standing()
    };
    let address = view.members()[0].address;
    let settings = "x".repeat(SETTINGS_BYTES_MAX);
    let model = Some(ModelSize::default());
    let hello = Hello {
        address,
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
        settings,
        model,
        standing: Some(standing),
        lineage: Some(header().lineage),
    };
    let all = [
        Message::Hello(hello),
        Message::Decide {
            entry: Entry::Whole(largest.clone()),
            leaves: true,
        },
        Message::Accept {
            entry: Entry::Whole(largest.clone()),
            signature: signed().signature,
        },
        Message::Promise {
            accepted: Some((header().term, largest.clone())),
            floor: header().term,
            contributed: Some(contributed),
        },
        Message::Fork {
            lineage: header().lineage,
            ordered: false,
            voters: vec![voter(); MEMBERS_MAX],
        },
        Message::Published(vec![(NodeId(5), signed()); MEMBERS_MAX]),
        Message::Attempt(replacing(&largest)),
        Message::Admit {
            parent: largest.clone(),
            draft: replacing(&largest),
        },
    ];
    for message in all {
        let largest = frame(message);
        assert_eq!(Frame::decode(&largest.write()), Ok(largest));
    }
    assert!(large_view(MEMBERS_MAX + 1).is_err());
}

/// The largest attempt that a leader can make: of a view of as many members as there may be one
/// takes part, and as many others join.
fn replacing(parent: &Outcome) -> Draft {
    let base = Base {
        round: parent.round.next(),
        view: &parent.view,
        order: &[],
        changed: ChangedSettings::default(),
        forks: &[],
    };
    let stays = parent.view.members()[0].clone();
    let members = parent.view.members().iter().map(|member| Member {
        id: NodeId(member.id.0 + MEMBERS_MAX as u64),
        ..member.clone()
    });
    let mut next: Vec<Member> = members.skip(1).collect();
    next.insert(0, stays.clone());
    let view = parent
        .view
        .succeeded_by(Epoch(parent.view.epoch().0 + 1), next)
        .unwrap();
    let order = view.ids().collect();
    let waiting = view.ids().skip(1).collect();
    let contributors = vec![stays.id];
    let outcome = Outcome {
        round: base.round,
        leader: stays.id,
        contributors,
        view,
        order,
        waiting,
        published: Digest::default(),
        ..parent.clone()
    };
    let proposal = Proposal {
        outcome,
        participants: vec![stays.id],
    };
    let draft = Draft::new(&proposal, base);
    assert_eq!(draft.resolve(base), Some(proposal));
    draft
}

/// An encoded message up to the length of one of its lists or texts, the rest behind it, its
/// decoder, its bound.
struct Counted {
    name: &'static str,
    before: Vec<u8>,
    behind: Vec<u8>,
    decode: Decoder,
    bound: usize,
}

/// Two messages that differ in the length of one list or text alone; the first is empty there.
fn counted<T: Wire>(name: &'static str, bound: usize, empty: &T, longer: &T) -> Counted {
    let empty = empty.write();
    let longer = longer.write();
    let at = empty
        .iter()
        .zip(&longer)
        .position(|(empty, longer)| empty != longer)
        .unwrap();
    assert_eq!(empty[at..at + 8], [0; 8], "{name}");
    Counted {
        name,
        before: empty[..at].to_vec(),
        behind: empty[at + 8..].to_vec(),
        decode: decodes::<T>,
        bound,
    }
}

/// The lists of a view, which are never empty.
fn lists_of_a_view() -> [Counted; 2] {
    let found = found_with(&[3]);
    let members = found.len() - 16 - (8 + SEAT) - (8 + MEMBER);
    let slots = members + 8 + MEMBER;
    [("members", members), ("slots", slots)].map(|(name, at)| {
        let before = found[..at].to_vec();
        let behind = found[at + 8..].to_vec();
        Counted {
            name,
            before,
            behind,
            decode: decodes::<Frame>,
            bound: MEMBERS_MAX,
        }
    })
}

fn lists() -> Vec<Counted> {
    let decide = |change: &dyn Fn(&mut Outcome)| {
        let mut outcome = outcome(RoundKind::Slow);
        change(&mut outcome);
        frame(Message::Decide {
            entry: Entry::Whole(outcome),
            leaves: false,
        })
    };
    let hello = |dead| {
        let address = SocketAddr::from(([10, 0, 0, 9], 7400));
        let settings = String::new();
        let standing = Some(MemberState { dead, ..standing() });
        frame(Message::Hello(Hello {
            address,
            devices: 1,
            group: GroupId::default(),
            key: PublicKey::default(),
            settings,
            model: None,
            standing,
            lineage: None,
        }))
    };
    let contribute = |contributors: &[NodeId]| {
        let view = view();
        let round = DecidedRound {
            until: Step(2),
            contributors,
            members: view.members(),
        };
        let samples = Some(Progress::new(progress().settings()).unwrap().after(&round));
        frame(Message::Contribute(ContributionNotice {
            samples,
            ..contributed()
        }))
    };
    let rated = |count| {
        let rates = vec![
            Rate {
                to: NodeId(5),
                kilobytes: 7
            };
            count
        ];
        frame(Message::Contribute(ContributionNotice {
            rates,
            ..contributed()
        }))
    };
    let published = |list| frame(Message::Published(list));
    let swim = |updates| Datagram::V1(Content::Swim(packet(SwimMessage::Gossip, updates)));
    let nobody = Vec::new();
    let one = vec![NodeId(5)];
    vec![
        counted("alive", MEMBERS_MAX, &hello(nobody), &hello(one)),
        counted(
            "published",
            MEMBERS_MAX,
            &published(vec![]),
            &published(vec![(NodeId(5), signed())]),
        ),
        counted(
            "contributors",
            MEMBERS_MAX,
            &decide(&|outcome| outcome.contributors.clear()),
            &decide(&|outcome| outcome.contributors.truncate(1)),
        ),
        counted(
            "absent",
            SHARDS_MAX,
            &decide(&|outcome| outcome.absent.clear()),
            &decide(&|outcome| outcome.absent.truncate(1)),
        ),
        counted(
            "order",
            MEMBERS_MAX,
            &decide(&|outcome| outcome.order.clear()),
            &decide(&|outcome| outcome.order.truncate(1)),
        ),
        counted(
            "waiting",
            MEMBERS_MAX,
            &decide(&|outcome| outcome.waiting.clear()),
            &decide(&|_| {}),
        ),
        counted(
            "retained",
            VOTERS_KEPT,
            &decide(&|outcome| outcome.retained.clear()),
            &decide(&|_| {}),
        ),
        counted("rates", RATES_MAX, &rated(0), &rated(1)),
        counted(
            "samples",
            PENDING_MAX,
            &contribute(&[NodeId(5), NodeId(9)]),
            &contribute(&[NodeId(9)]),
        ),
        counted("updates", LIFE_UPDATES_MAX, &swim(0), &swim(1)),
    ]
}

fn lists_of_an_attempt() -> Vec<Counted> {
    let list = |name, bound, clear: &dyn Fn(&mut Draft)| {
        let mut empty = draft(RoundKind::Slow);
        let longer = draft(RoundKind::Slow);
        clear(&mut empty);
        counted(
            name,
            bound,
            &frame(Message::Attempt(empty)),
            &frame(Message::Attempt(longer)),
        )
    };
    let fork = |voters| {
        frame(Message::Fork {
            lineage: header().lineage,
            ordered: false,
            voters,
        })
    };
    vec![
        list("absent members", MEMBERS_MAX, &|draft| {
            draft.absent_members.clear()
        }),
        list("idle members", MEMBERS_MAX, &|draft| {
            draft.idle_members.clear()
        }),
        list("leaving members", MEMBERS_MAX, &|draft| {
            draft.leaving_members.clear()
        }),
        list("joining", MEMBERS_MAX, &|draft| draft.joining.clear()),
        list("waiting of an attempt", MEMBERS_MAX, &|draft| {
            draft.waiting.clear()
        }),
        list("retained of an attempt", VOTERS_KEPT, &|draft| {
            draft.retained.clear()
        }),
        list("absent shards", SHARDS_MAX, &|draft| {
            draft.absent_shards.clear()
        }),
        list("order of an attempt", MEMBERS_MAX, &|draft| {
            draft.order = Some(Order(Vec::new()))
        }),
        counted(
            "voters of a fork",
            MEMBERS_MAX,
            &fork(Vec::new()),
            &fork(vec![voter()]),
        ),
    ]
}

#[test]
fn a_list_beyond_its_bound_is_refused_before_an_entry_is_read() {
    let all = lists()
        .into_iter()
        .chain(lists_of_an_attempt())
        .chain(lists_of_a_view());
    for Counted {
        name,
        before,
        decode,
        bound,
        ..
    } in all
    {
        let claimed =
            |length: u64| match decode(&[before.as_slice(), &length.to_le_bytes()].concat()) {
                Err(DecodeError::Malformed(reason)) => {
                    reason.contains(&format!("exceeds the bound of {bound}"))
                }
                other => panic!("{name}: {other:?}"),
            };
        for length in [bound as u64 + 1, 1 << 32, u64::MAX] {
            assert!(claimed(length), "{name}: {length}");
        }
        assert!(
            !claimed(bound as u64),
            "{name}: as long as it may be, only its entries are missing"
        );
    }
}

fn texts() -> Vec<Counted> {
    let hello = |settings: &str| {
        let address = SocketAddr::from(([10, 0, 0, 9], 7400));
        let settings = settings.to_owned();
        frame(Message::Hello(Hello {
            address,
            devices: 1,
            group: GroupId::default(),
            key: PublicKey::default(),
            settings,
            model: None,
            standing: None,
            lineage: None,
        }))
    };
    let refused = |text: &str| {
        frame(Message::Refused(JoinRefusal::SettingsDiffer {
            differences: text.to_owned(),
        }))
    };
    let abandon = |one: &str, other: &str| {
        let one_spec = one.to_owned();
        let other_spec = other.to_owned();
        frame(Message::Abandon(RefusalReason::SpecsDiffer {
            one: NodeId(1),
            one_spec,
            other: NodeId(2),
            other_spec,
        }))
    };
    vec![
        counted("settings", SETTINGS_BYTES_MAX, &hello(""), &hello("x")),
        counted(
            "differences",
            DIFFERENCES_BYTES_MAX,
            &refused(""),
            &refused("x"),
        ),
        counted(
            "one's spec",
            SPEC_BYTES_MAX,
            &abandon("", ""),
            &abandon("x", ""),
        ),
        counted(
            "the other's spec",
            SPEC_BYTES_MAX,
            &abandon("", ""),
            &abandon("", "x"),
        ),
    ]
}

#[test]
fn a_text_beyond_its_bound_is_refused() {
    for Counted {
        name,
        before,
        behind,
        decode,
        bound,
    } in texts()
    {
        let bytes = |length: usize| {
            [
                before.as_slice(),
                &(length as u64).to_le_bytes(),
                &vec![b'x'; length],
                &behind,
            ]
            .concat()
        };
        assert_eq!(decode(&bytes(bound)), Ok(bytes(bound)), "{name}");
        let Err(DecodeError::Malformed(reason)) = decode(&bytes(bound + 1)) else {
            panic!("{name} was accepted")
        };
        assert!(
            reason.contains(&format!("exceeds the bound of {bound}")),
            "{name}: {reason}"
        );
        // A length alone reads nothing.
        let claimed = [before.as_slice(), &u64::MAX.to_le_bytes()].concat();
        assert!(
            matches!(decode(&claimed), Err(DecodeError::Malformed(_))),
            "{name}"
        );
    }
}

#[test]
fn a_senders_explanation_is_cut_between_characters() {
    let reason = |one_spec: String, other_spec: String| {
        frame(Message::Abandon(RefusalReason::SpecsDiffer {
            one: NodeId(1),
            one_spec,
            other: NodeId(2),
            other_spec,
        }))
    };
    let long = format!("a{}", "é".repeat(1 << 18));
    let cut = format!("a{}", "é".repeat(99));
    assert_eq!(
        Frame::decode(&reason(long, "short".to_owned()).write()),
        Ok(reason(cut, "short".to_owned()))
    );
}
