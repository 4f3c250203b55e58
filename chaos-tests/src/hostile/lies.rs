//! The lies of a hostile member: each is a change of what it sends anyway, and frames of its own.

use crate::random::Random;
use clap::ValueEnum;
use parking_lot::Mutex;
use serde::Serialize;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator::{
    Attempt, Draft, Entry, Origin, Outcome, RoundKind, RoundSpec, Voter,
};
use slowmo_protocol::forks::Fork;
use slowmo_protocol::ident::{
    Epoch, GroupId, Incarnation, Lineage, NodeId, Round, ShardId, Step, Term,
};
use slowmo_protocol::published::{Digest, PublicKey, Signature, Signed};
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{
    Bulk, BulkHeader, ContributionNotice, Frame, Header, Hello, JoinRefusal, MemberState, Message,
    RefusalReason,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The first round in which a member lies: the bootstrap and the first rounds are honest.
pub const LIES_FROM: u64 = 3;
/// Frames that are kept to be sent again later.
const FRAMES_KEPT: usize = 512;
/// Old frames that are sent with each frame.
const REPLAYED: usize = 3;
/// Messages of a flood that go to each node at once.
const FLOOD: usize = 50;

/// A lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Lie {
    /// Tells none: how long rounds take beside a member that is honest.
    Nothing,
    /// Says that the round is abandoned.
    Abandon,
    /// Says that streams between it and honest nodes break, or that they send it what no correct node
    /// sends.
    Broken,
    /// Sends frames in the name of others.
    OtherSender,
    /// Sends frames whose header names another cluster.
    OtherCluster,
    /// Sends old frames again.
    Replay,
    /// Rounds, terms, epochs, attempts and incarnations near the end of their range.
    Absurd,
    /// Every kind of message, with random fields.
    Random,
    /// Many small messages.
    Flood,
    /// Asks to be admitted, although it is a member, and never takes the model.
    Join,
    /// Expects another round than everybody else.
    OtherSpec,
    /// Publishes other values to each node.
    EquivocateValues,
    /// Tells another root of the published values than it holds.
    FalseRoot,
    /// Proposes another entry to each node, if it leads.
    EquivocateDrafts,
    /// Proposes another entry and publishes other values to half of the nodes, if it leads, and has
    /// each half vote for its own.
    TwoEntries,
    /// Says that another entry is decided.
    Decide,
    /// Says that an entry of a later round is decided.
    DecideAhead,
    /// Says that an operator ordered to continue without a quorum.
    Fork,
    /// Takes the lead, and asks for votes for an entry that nobody attempted.
    TakeOver,
    /// Introduces itself as a member of a history that ranks higher.
    Histories,
}

impl Lie {
    /// Returns the known gap in the defence against this lie, as SECURITY.md lists it. `None` if
    /// the lie does no harm and its teller is named.
    #[must_use]
    pub fn gap(self) -> Option<Gap> {
        Some(match self {
            Self::Abandon
            | Self::OtherSender
            | Self::OtherCluster
            | Self::Absurd
            | Self::OtherSpec
            | Self::EquivocateValues
            | Self::FalseRoot
            | Self::Replay
            | Self::TwoEntries => return None,
            Self::Nothing
            | Self::Broken
            | Self::Flood
            | Self::Fork
            | Self::Random
            | Self::Decide
            | Self::DecideAhead => Gap::Unnamed,
            Self::Join | Self::EquivocateDrafts | Self::TakeOver | Self::Histories => Gap::Harms,
        })
    }

    /// Whether the liar must lead for this lie.
    #[must_use]
    pub fn leads(self) -> bool {
        matches!(self, Self::EquivocateDrafts | Self::TwoEntries)
    }
}

/// A gap in the defence against a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// It does no harm, and what is seen of it need not prove a lie: its teller may not be named,
    /// or only after a while.
    Unnamed,
    /// It may hold rounds up, leave honest nodes out, or make them decide differently.
    Harms,
}

/// A member that lies.
#[derive(Debug)]
pub struct Liar {
    lie: Lie,
    id: NodeId,
    honest: Vec<NodeId>,
    drawn: Mutex<Drawn>,
    lies: AtomicBool,
    /// Lies told.
    told: AtomicU64,
}

/// The material from which the liar draws.
#[derive(Debug)]
struct Drawn {
    random: Random,
    /// Header of the last frame that it sent as a member of a decided history.
    header: Option<Header>,
    /// Its place in history, as it introduced itself last.
    standing: Option<MemberState>,
    hello: Option<Hello>,
    spec: Option<RoundSpec>,
    kept: VecDeque<Frame>,
    /// The data that the others hold of each attempt, as they said.
    ready: BTreeMap<(Attempt, NodeId), Digest>,
    /// Their incarnations.
    starts: BTreeMap<NodeId, Incarnation>,
}

impl Liar {
    /// A liar among honest nodes; what it draws follows from the seed.
    #[must_use]
    pub fn new(lie: Lie, id: NodeId, honest: Vec<NodeId>, seed: u64) -> Self {
        Self {
            lie,
            id,
            honest,
            drawn: Mutex::new(Drawn {
                random: Random::new(seed, 0x11e),
                header: None,
                standing: None,
                hello: None,
                spec: None,
                kept: VecDeque::new(),
                ready: BTreeMap::new(),
                starts: BTreeMap::new(),
            }),
            lies: AtomicBool::new(false),
            told: AtomicU64::new(0),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Number of lies told so far.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    fn tell(&self) {
        self.told.fetch_add(1, Ordering::Relaxed);
    }

    /// The frames that it sends in place of one.
    pub fn tamper(&self, to: NodeId, genuine: &Frame) -> Vec<Frame> {
        let Frame::V1 { header, message } = genuine;
        let mut drawn = self.drawn.lock();
        let drawn = &mut *drawn;
        match &**message {
            Message::Hello(hello) if hello.standing.is_some() => {
                drawn.standing.clone_from(&hello.standing);
                drawn.hello = Some(hello.clone());
            }
            Message::Contribute(notice) => drawn.spec = Some(notice.spec),
            Message::Attempt(draft) => drawn.spec = Some(draft.spec),
            _ => {}
        }
        if header.lineage.is_decided() {
            drawn.header = Some(*header);
        }
        if drawn.kept.len() == FRAMES_KEPT {
            drawn.kept.pop_front();
        }
        drawn.kept.push_back(genuine.clone());
        if header.round.0 >= LIES_FROM {
            self.lies.store(true, Ordering::Relaxed);
        }
        if !self.lies.load(Ordering::Relaxed) {
            return vec![genuine.clone()];
        }
        let other = |header: Header, message: &Message| Frame::V1 {
            header,
            message: Box::new(message.clone()),
        };
        match self.lie {
            Lie::Nothing => {
                self.tell();
                vec![genuine.clone()]
            }
            Lie::OtherSender => {
                self.tell();
                let named = self.honest.iter().find(|node| **node != to);
                let sender = named.copied().unwrap_or(to);
                let forged = Header { sender, ..*header };
                vec![other(forged, message), genuine.clone()]
            }
            Lie::OtherCluster => {
                self.tell();
                let mut forged = *header;
                forged.cluster.0 ^= 1;
                vec![other(forged, message), genuine.clone()]
            }
            Lie::Replay => {
                self.tell();
                let mut frames = vec![genuine.clone()];
                for _ in 0..REPLAYED {
                    let at = drawn.random.below(drawn.kept.len() as u64) as usize;
                    frames.extend(drawn.kept.get(at).cloned());
                }
                frames
            }
            Lie::OtherSpec => match &**message {
                Message::Contribute(notice) => {
                    self.tell();
                    let spec = another(notice.spec);
                    let notice = ContributionNotice {
                        spec,
                        ..notice.clone()
                    };
                    vec![other(*header, &Message::Contribute(notice))]
                }
                _ => vec![genuine.clone()],
            },
            Lie::FalseRoot => match &**message {
                Message::Ready(published) => {
                    self.tell();
                    let mut published = *published;
                    published.0[0] ^= 1;
                    vec![other(*header, &Message::Ready(published))]
                }
                // A leader tells it when it asks for votes.
                Message::Accept {
                    entry: Entry::Held(digest),
                    ..
                } => {
                    self.tell();
                    let mut digest = *digest;
                    digest.0[0] ^= 1;
                    vec![other(*header, &ask(Entry::Held(digest)))]
                }
                _ => vec![genuine.clone()],
            },
            Lie::TwoEntries if self.deceives(to) => {
                let told = || drawn.ready.get(&(Attempt::of(header), to)).copied();
                let message = match &**message {
                    Message::Attempt(draft) => {
                        self.tell();
                        Message::Attempt(Draft {
                            momentum_lost: draft.momentum_lost + 1,
                            ..draft.clone()
                        })
                    }
                    Message::Accept { .. } if told().is_some() => {
                        ask(Entry::Held(told().unwrap_or_default()))
                    }
                    Message::Decide { leaves, .. } if told().is_some() => Message::Decide {
                        entry: Entry::Held(told().unwrap_or_default()),
                        leaves: *leaves,
                    },
                    _ => return vec![genuine.clone()],
                };
                vec![other(*header, &message)]
            }
            Lie::EquivocateDrafts => match &**message {
                Message::Attempt(draft) => {
                    self.tell();
                    let draft = Draft {
                        leader: to,
                        momentum_lost: draft.momentum_lost + to.0,
                        ..draft.clone()
                    };
                    vec![other(*header, &Message::Attempt(draft))]
                }
                _ => vec![genuine.clone()],
            },
            _ => vec![genuine.clone()],
        }
    }

    /// Changes a stream's header, and returns its first values; none leave them as they are.
    pub fn falsify(&self, to: NodeId, header: &mut BulkHeader) -> Vec<u8> {
        let BulkHeader::V1 { header, content } = header;
        if header.round.0 < LIES_FROM {
            return Vec::new();
        }
        match (self.lie, content) {
            (Lie::OtherSpec, Bulk::Contribution(contribution)) => {
                self.tell();
                contribution.spec = another(contribution.spec);
                Vec::new()
            }
            (Lie::EquivocateValues, Bulk::Parameters | Bulk::Update(WireType::Float32)) => {
                self.tell();
                (to.0 as f32 * 0.125).to_le_bytes().to_vec()
            }
            (Lie::TwoEntries, Bulk::Parameters) if self.deceives(to) => {
                self.tell();
                0.125f32.to_le_bytes().to_vec()
            }
            _ => Vec::new(),
        }
    }

    /// Whether a node is among those that get the other one of two entries.
    fn deceives(&self, node: NodeId) -> bool {
        let half = self.honest.len().div_ceil(2);
        self.honest.iter().skip(half).any(|other| *other == node)
    }

    /// Returns the frames that it believes in place of one that reached it, with each frame's
    /// sender. To ask two groups for votes, it believes that both are ready with its own entry.
    pub fn hear(&self, from: NodeId, genuine: &Frame) -> Vec<(NodeId, Frame)> {
        let Frame::V1 { header, message } = genuine;
        let believed = |header: Header, message: Message| Frame::V1 {
            header,
            message: Box::new(message),
        };
        let same = || vec![(from, genuine.clone())];
        if self.lie != Lie::TwoEntries {
            return same();
        }
        let mut drawn = self.drawn.lock();
        let attempt = Attempt::of(header);
        match **message {
            // It does not hear of its own lies.
            Message::TwoEntries { .. } | Message::Equivocated { .. } | Message::Published(_) => {
                vec![]
            }
            Message::Accepted(_) if self.deceives(from) => vec![],
            Message::Ready(digest) => {
                drawn.ready.insert((attempt, from), digest);
                let ready = drawn.ready.iter();
                let ready: Vec<(NodeId, Digest)> = ready
                    .filter(|((of, _), _)| *of == attempt)
                    .map(|((_, node), digest)| (*node, *digest))
                    .collect();
                let own = ready.iter().find(|(node, _)| !self.deceives(*node));
                // Until it knows what the others hold, it waits.
                let Some((_, own)) = own else { return vec![] };
                let told = ready
                    .iter()
                    .filter(|(node, _)| *node == from || self.deceives(*node));
                let frames = told.map(|(node, _)| {
                    let incarnation = drawn.starts.get(node).copied();
                    let header = Header {
                        sender: *node,
                        incarnation: incarnation.unwrap_or(header.incarnation),
                        ..*header
                    };
                    (*node, believed(header, Message::Ready(*own)))
                });
                frames.collect()
            }
            _ => {
                drawn.starts.insert(from, header.incarnation);
                same()
            }
        }
    }

    /// Frames that it sends to a node of its own accord; called again and again.
    pub fn pester(&self, to: NodeId) -> Vec<Frame> {
        let mut drawn = self.drawn.lock();
        if !self.lies.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let Some(header) = drawn.header else {
            return Vec::new();
        };
        let messages = self.pestering(to, header, &mut drawn);
        if !messages.is_empty() {
            self.tell();
        }
        messages
            .into_iter()
            .map(|(header, message)| Frame::V1 {
                header,
                message: Box::new(message),
            })
            .collect()
    }

    fn pestering(&self, to: NodeId, header: Header, drawn: &mut Drawn) -> Vec<(Header, Message)> {
        let one = |message| vec![(header, message)];
        let mine = Term {
            counter: header.term.counter + 1,
            node: self.id,
        };
        let led = Header {
            term: mine,
            ..header
        };
        match self.lie {
            Lie::Abandon => one(Message::Abandon(match drawn.random.below(3) {
                0 => RefusalReason::MomentumLost { shards: 1 },
                1 => RefusalReason::Overflowed {
                    node: self.id,
                    element: 1,
                },
                _ => RefusalReason::SpecsDiffer {
                    one: self.id,
                    one_spec: "a".to_owned(),
                    other: to,
                    other_spec: "b".to_owned(),
                },
            })),
            Lie::Broken => {
                let says = |node: &NodeId| {
                    let message = if drawn.random.once_in(2) {
                        Message::Broken(*node)
                    } else {
                        Message::Accuse(*node)
                    };
                    (header, message)
                };
                self.honest.iter().take(2).map(says).collect()
            }
            Lie::Absurd => absurd(header, drawn),
            Lie::Random => {
                let header = random_header(header, &mut drawn.random, self.id);
                vec![(header, self.random_message(drawn))]
            }
            Lie::Flood => {
                let small = [
                    Message::Learn,
                    Message::Ready(Digest::default()),
                    Message::Learned,
                    Message::Accepted(Signed::default()),
                    Message::GossipAsk { step: Step(1) },
                ];
                let flood = small.iter().cycle().take(FLOOD);
                flood.map(|message| (header, message.clone())).collect()
            }
            Lie::Join => one(Message::Join),
            Lie::Histories => {
                let hello = drawn.hello.as_ref();
                let better = hello.map(|hello| Message::Hello(self.better(hello)));
                better
                    .into_iter()
                    .map(|message| (header, message))
                    .collect()
            }
            Lie::Decide => self
                .forged(header, drawn, header.round, to)
                .map(|entry| decision(header, entry))
                .into_iter()
                .collect(),
            Lie::DecideAhead => {
                let ahead = Header {
                    round: Round(header.round.0.saturating_add(5)),
                    ..header
                };
                self.forged(header, drawn, ahead.round, to)
                    .map(|entry| decision(ahead, entry))
                    .into_iter()
                    .collect()
            }
            Lie::Fork => {
                let Some(view) = drawn.standing.as_ref().map(|standing| &standing.view) else {
                    return Vec::new();
                };
                let counted = |member: &&Member| member.id == self.id || member.id == to;
                let voters = view.members().iter().filter(counted).map(Voter::from);
                let fork = Message::Fork {
                    lineage: header
                        .lineage
                        .parted(u128::from(drawn.random.below(1 << 40))),
                    ordered: true,
                    voters: voters.collect(),
                };
                vec![(led, fork)]
            }
            Lie::TakeOver => {
                let Some(entry) = self.forged(header, drawn, header.round, to) else {
                    return Vec::new();
                };
                vec![
                    (led, Message::Prepare),
                    (led, Message::Open),
                    (led, ask(Entry::Whole(entry.clone()))),
                    decision(led, entry),
                ]
            }
            _ => Vec::new(),
        }
    }

    /// An entry that nobody attempted: the next view is the liar and the receiver.
    fn forged(&self, header: Header, drawn: &Drawn, round: Round, to: NodeId) -> Option<Outcome> {
        let standing = drawn.standing.as_ref()?;
        let counted = |member: &&Member| member.id == self.id || member.id == to;
        let members = standing.view.members().iter().filter(counted).cloned();
        let epoch = Epoch(header.epoch.0.saturating_add(1));
        let view = View::new(epoch, members.collect()).ok()?;
        Some(Outcome {
            leader: self.id,
            ..Outcome::of_all(header.lineage, round, drawn.spec?, view)
        })
    }

    /// An introduction as a member of a history that ranks higher than everybody's.
    fn better(&self, hello: &Hello) -> Hello {
        let standing = hello.standing.as_ref().map(|standing| MemberState {
            lineage: standing.lineage.parted(7),
            forks: vec![Fork {
                round: Round(u64::MAX - 1),
                contributors: u32::MAX,
                lineage: standing.lineage.parted(7),
            }],
            round: Round(u64::MAX),
            view: standing.view.clone(),
            dead: self.honest.clone(),
        });
        Hello {
            standing,
            ..hello.clone()
        }
    }

    /// Any message, with random fields.
    fn random_message(&self, drawn: &mut Drawn) -> Message {
        let notice = |random: &mut Random| ContributionNotice {
            spec: random_spec(random),
            samples: None,
            rates: Vec::new(),
        };
        let view = drawn
            .standing
            .as_ref()
            .map(|standing| standing.view.clone());
        let entry = view.map(|view| Outcome {
            momentum_lost: any(&mut drawn.random),
            leader: self.node(&mut drawn.random),
            absent: vec![ShardId(any(&mut drawn.random) as u32)],
            ..Outcome::of_all(
                Lineage(u128::from(any(&mut drawn.random))),
                Round(any(&mut drawn.random)),
                random_spec(&mut drawn.random),
                view,
            )
        });
        let standing = drawn.standing.clone();
        let random = &mut drawn.random;
        let step = Step(any(random));
        match random.below(36) {
            0 => Message::Bootstrap {
                view: match standing {
                    Some(standing) => standing.view,
                    None => return Message::Join,
                },
                lineage: Lineage(u128::from(any(random))),
            },
            1 => Message::Join,
            2 => Message::Refused(JoinRefusal::NoParameters),
            3 => Message::Leave {
                contributes: random.once_in(2),
            },
            4 => Message::Contribute(notice(random)),
            5 => Message::Prepare,
            6 => Message::Promise {
                accepted: entry.map(|entry| (self.term(random), entry)),
                floor: self.term(random),
                contributed: Some(notice(random)),
            },
            7 => Message::Open,
            8 => Message::Opened,
            9 => Message::Closed,
            10 => Message::Attempt(self.random_draft(random)),
            11 => match entry {
                Some(parent) => Message::Admit {
                    parent,
                    draft: self.random_draft(random),
                },
                None => Message::Ready(digest(random)),
            },
            12 => Message::Ready(digest(random)),
            13 => ask(named(entry, random)),
            14 => Message::Accepted(signed(random)),
            15 => Message::Overtaken,
            16 => Message::Decide {
                entry: named(entry, random),
                leaves: random.once_in(2),
            },
            17 => Message::Learn,
            18 => Message::Learned,
            19 => Message::Fork {
                lineage: Lineage(u128::from(any(random))),
                ordered: random.once_in(2),
                voters: vec![Voter {
                    node: self.node(random),
                    incarnation: Incarnation(any(random)),
                }],
            },
            20 if random.once_in(2) => Message::Accuse(self.node(random)),
            20 => Message::Broken(self.node(random)),
            21 => Message::Abandon(RefusalReason::MomentumLost {
                shards: any(random) as u32,
            }),
            22 => Message::GossipMixed { step },
            23 => Message::GossipRefused {
                step,
                reached: Step(any(random)),
            },
            24 => Message::GossipSkipped {
                first: step,
                last: Step(any(random)),
            },
            25 => Message::GossipAsk { step },
            26 => Message::GossipReclaimed { step },
            27 => Message::Compare,
            28 => Message::Published(vec![(self.node(random), signed(random))]),
            29 => Message::Equivocated {
                owner: self.node(random),
                one: signed(random),
                other: signed(random),
            },
            30 => Message::TwoEntries {
                one: signed(random),
                other: signed(random),
            },
            31 => Message::Undecided,
            32 => Message::GoesOn,
            33 => Message::AskCheckpoint,
            _ => match (standing, random.below(2)) {
                (Some(standing), 0) => Message::Hello(Hello {
                    address: std::net::SocketAddr::from(([127, 0, 0, 1], any(random) as u16)),
                    devices: any(random) as u16,
                    group: GroupId::default(),
                    key: PublicKey::default(),
                    settings: "tau = 0".to_owned(),
                    model: None,
                    standing: Some(MemberState {
                        round: Round(any(random)),
                        ..standing
                    }),
                    lineage: None,
                }),
                _ => Message::Learn,
            },
        }
    }

    fn node(&self, random: &mut Random) -> NodeId {
        random.pick(&self.honest).copied().unwrap_or(self.id)
    }

    fn term(&self, random: &mut Random) -> Term {
        Term {
            counter: any(random),
            node: self.node(random),
        }
    }

    fn random_draft(&self, random: &mut Random) -> Draft {
        let mut ranks = || {
            let rank = any(random) as u16 % 6;
            if rank == 5 { vec![] } else { vec![rank] }
        };
        let absent_members = ranks();
        let idle_members = ranks();
        let leaving_members = ranks();
        Draft {
            spec: random_spec(random),
            lineage: Lineage(u128::from(any(random))),
            absent_members,
            idle_members,
            leaving_members,
            joining: Vec::new(),
            waiting: vec![self.node(random)],
            retained: Vec::new(),
            leader: self.node(random),
            absent_shards: vec![ShardId(any(random) as u32)],
            momentum_lost: any(random),
            samples: None,
            order: None,
            origin: Origin::default(),
            checkpoint: random.once_in(2),
            // Any member may change settings, so that is no lie.
            changed: None,
            fork: None,
        }
    }
}

fn digest(random: &mut Random) -> Digest {
    let mut digest = Digest::default();
    digest.0[0] = any(random) as u8;
    digest
}

fn signed(random: &mut Random) -> Signed {
    Signed {
        digest: digest(random),
        signature: Signature::default(),
    }
}

fn named(entry: Option<Outcome>, random: &mut Random) -> Entry {
    entry.map_or_else(|| Entry::Held(digest(random)), Entry::Whole)
}

/// Its shell signs it.
fn ask(entry: Entry) -> Message {
    let signature = Signature::default();
    Message::Accept { entry, signature }
}

fn decision(header: Header, entry: Outcome) -> (Header, Message) {
    let decide = Message::Decide {
        entry: Entry::Whole(entry),
        leaves: false,
    };
    (header, decide)
}

fn another(spec: RoundSpec) -> RoundSpec {
    RoundSpec {
        step: Step(spec.step.0 + 1),
        ..spec
    }
}

/// A number that is small, at an edge, or anything.
fn any(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(8),
        1 => u64::MAX - random.below(2),
        2 => 1 << random.below(64),
        _ => random.below(u64::MAX),
    }
}

fn random_spec(random: &mut Random) -> RoundSpec {
    let kinds = [
        RoundKind::Bootstrap,
        RoundKind::Average,
        RoundKind::Slow,
        RoundKind::Gradients,
    ];
    RoundSpec {
        kind: random.pick(&kinds).copied().unwrap_or(RoundKind::Average),
        step: Step(any(random)),
        gamma: f32::from_bits(any(random) as u32),
        elements: any(random),
    }
}

/// The header with some fields random, most of them seldom: others would refuse it at once.
fn random_header(mut header: Header, random: &mut Random, me: NodeId) -> Header {
    if random.once_in(8) {
        header.lineage = Lineage(u128::from(any(random)));
    }
    if random.once_in(8) {
        header.epoch = Epoch(any(random));
    }
    if random.once_in(8) {
        header.round = Round(any(random));
    }
    if random.once_in(4) {
        header.round = Round(header.round.0.saturating_add(random.below(3)));
    }
    if random.once_in(4) {
        header.attempt = any(random) as u32;
    }
    if random.once_in(2) {
        header.term.node = me;
        header.term.counter = header.term.counter.saturating_add(random.below(3));
    }
    if random.once_in(8) {
        header.incarnation = Incarnation(any(random));
    }
    header
}

fn absurd(header: Header, drawn: &mut Drawn) -> Vec<(Header, Message)> {
    let most = u64::MAX - drawn.random.below(2);
    let round = Header {
        round: Round(most),
        ..header
    };
    let term = Header {
        term: Term {
            counter: most,
            node: header.sender,
        },
        ..header
    };
    let attempt = Header {
        attempt: u32::MAX,
        ..header
    };
    let epoch = Header {
        epoch: Epoch(most),
        ..header
    };
    let incarnation = Header {
        incarnation: Incarnation(most),
        ..header
    };
    let all = Header {
        round: Round(most),
        term: term.term,
        attempt: u32::MAX,
        epoch: Epoch(most),
        incarnation: Incarnation(most),
        ..header
    };
    let messages = [
        Message::Prepare,
        Message::Open,
        Message::Ready(Digest::default()),
        Message::Learn,
        Message::Overtaken,
        Message::GossipAsk { step: Step(most) },
        Message::GossipSkipped {
            first: Step(0),
            last: Step(most),
        },
        Message::GossipReclaimed { step: Step(most) },
    ];
    let mut frames = Vec::new();
    for header in [round, term, attempt, epoch, incarnation, all] {
        if let Some(message) = drawn.random.pick(&messages) {
            frames.push((header, message.clone()));
        }
    }
    frames
}
