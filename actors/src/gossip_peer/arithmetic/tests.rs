//! Any course of a node's gossip against the books in float64: numerators are `own·z + stays·Δ + Σ
//! scale·y`, the rest of `Δ` is sent, and what is sent, kept and owed adds up to all of it.

use super::*;
use crate::messages::Told;
use proptest::prelude::*;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::gossip_peer::Purpose;
use slowmo_protocol::ident::{Epoch, Lineage, NodeId, Round, Step, Term};
use slowmo_protocol::machine::Place;
use slowmo_protocol::push_sum::{WEIGHT_MIN, split};

/// Values of the model: several blocks of a wire type.
const VALUES: usize = 600;
/// Values of the buffers behind it.
const BUFFERS: usize = 40;
const WIRES: [WireType; 3] = [WireType::Float32, WireType::BFloat16, WireType::Int8];

/// A plan and the message that waits for its values.
type Awaited = (Arc<Plan>, Payload);

/// The events of a node, in any order. Numbers are seeds of values.
#[derive(Clone, Debug)]
enum Event {
    /// Its training thread moves the model.
    Move(u64),
    /// A message arrives: scale and weight.
    Arrive(u64, f32, f64),
    /// A gossip gives up this part of the weight, takes back what it sent last, and is sent to so
    /// many; or a value is not finite.
    Gossip {
        paid: f64,
        back: bool,
        out: usize,
        bad: Option<usize>,
    },
    /// A round is decided, with the node's contribution or without.
    Round {
        settles: bool,
        paid: f64,
        decided: u64,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let paid = || prop_oneof![3 => Just(0.0), 1 => 0.0..0.5];
    let bad = prop_oneof![4 => Just(None), 1 => (0..VALUES).prop_map(Some)];
    let event = prop_oneof![
        2 => any::<u64>().prop_map(Event::Move),
        2 => (any::<u64>(), 0.2..1.0f32, 0.1..0.6).prop_map(
            |(seed, scale, weight)| Event::Arrive(seed, scale, weight)
        ),
        4 => (paid(), any::<bool>(), 0..4usize, bad).prop_map(
            |(paid, back, out, bad)| Event::Gossip { paid, back, out, bad }
        ),
        1 => (any::<bool>(), paid(), any::<u64>()).prop_map(
            |(settles, paid, decided)| Event::Round { settles, paid, decided }
        ),
    ];
    prop::collection::vec(event, 1..24)
}

/// Values between −2 and 2.
fn values(seed: u64, length: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 22) as f32 - 2.0
    };
    (0..length).map(|_| next()).collect()
}

fn frozen(pool: &Arc<Pool>, values: &[f32]) -> Frozen {
    let mut buffer = pool.take(values.len());
    buffer.values_mut().copy_from_slice(values);
    buffer.freeze()
}

/// In pieces that begin at `starts`.
fn assembled(pool: &Arc<Pool>, values: &[f32], starts: &[usize]) -> ChunkedBuffer {
    let ends = starts.iter().skip(1).copied().chain([values.len()]);
    let mut assembled = ChunkedBuffer::default();
    starts
        .iter()
        .zip(ends)
        .for_each(|(start, end)| assembled.insert(*start, frozen(pool, &values[*start..end])));
    assembled
}

/// Zeros where there is no piece.
fn flat(values: &ChunkedBuffer) -> Vec<f32> {
    let mut flat = vec![0.0; VALUES];
    values.copy_to(0, &mut flat);
    flat
}

/// A sum in float64, and how large its terms were.
#[derive(Clone)]
struct Sum(Vec<(f64, f64)>);

impl Sum {
    fn none() -> Self {
        Self(vec![(0.0, 1.0); VALUES])
    }

    fn plus(mut self, scale: f64, values: impl IntoIterator<Item = impl Into<f64>>) -> Self {
        for ((sum, size), value) in self.0.iter_mut().zip(values) {
            let term = scale * value.into();
            (*sum, *size) = (*sum + term, *size + term.abs());
        }
        self
    }

    fn assert_is(&self, found: &[f32], what: &str) {
        for (index, ((expected, size), found)) in self.0.iter().zip(found).enumerate() {
            assert!(
                (expected - f64::from(*found)).abs() <= 2e-6 * size,
                "{what}: [{index}] is {found}, not {expected}"
            );
        }
    }
}

/// Plans the messages of a node of this weight to so many peers.
fn plan(weight: f64, out: usize) -> Option<Plan> {
    let place = Place {
        lineage: Lineage(1),
        epoch: Epoch(1),
        round: Round(1),
        term: Term::default(),
        attempt: 0,
    };
    let out: Vec<NodeId> = (0..out as u64).map(NodeId).collect();
    let split = split(weight, out.len());
    (!out.is_empty() && weight >= WEIGHT_MIN).then_some(Plan {
        step: Step(0),
        place,
        out,
        split,
    })
}

/// A message that was sent and may come back.
struct Sent {
    payload: Payload,
    scale: f32,
    share: f64,
}

/// The arithmetic of one node, and its books.
struct Node {
    arithmetic: Arithmetic,
    wire: WireType,
    synchronous: bool,
    /// As the training thread has it: `z + Δ`.
    model: Vec<f32>,
    z: Vec<f64>,
    own: f64,
    /// Synchronous: the shell's own copy.
    last: Option<(ChunkedBuffer, f64)>,
    arrived: Vec<Part>,
    mass: Sum,
    held: f64,
    sent: Option<Sent>,
}

impl Node {
    fn new(wire: WireType, synchronous: bool) -> Self {
        let arithmetic = Arithmetic::new(Pool::new());
        let model = vec![0.0; VALUES];
        let z = vec![0.0; VALUES];
        let mass = Sum::none();
        let mut node = Self {
            arithmetic,
            wire,
            synchronous,
            model,
            z,
            own: 1.0,
            last: None,
            arrived: Vec::new(),
            mass,
            held: 0.0,
            sent: None,
        };
        node.decided(7);
        node
    }

    fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.arithmetic.pool)
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Move(seed) => self
                .model
                .iter_mut()
                .zip(values(seed, VALUES))
                .for_each(|(model, by)| *model += 0.1 * by),
            Event::Arrive(seed, scale, weight) => self.arrive(seed, scale, weight),
            Event::Gossip {
                paid, back, out, ..
            } if self.synchronous => self.gossip_at_once(paid, back, out),
            Event::Gossip {
                paid,
                back,
                out,
                bad,
            } => self.gossip(paid, back, out, bad),
            Event::Round {
                settles,
                paid,
                decided,
            } => {
                if settles {
                    self.settle(paid);
                }
                self.decided(decided);
            }
        }
    }

    fn arrive(&mut self, seed: u64, scale: f32, weight: f64) {
        let y = values(seed, VALUES);
        let part = Part {
            values: Payload::Float32(assembled(&self.pool(), &y, &[0])),
            scale,
        };
        self.mass = self.mass.clone().plus(scale.into(), y);
        self.held += weight;
        // Some wait until the training thread has mixed.
        if self.synchronous || seed.is_multiple_of(3) {
            self.arrived.push(part);
        } else {
            assert!(self.arithmetic.run(Job::Fold(part)).is_none());
        }
    }

    /// Returns the change by the training thread since the last mix.
    fn moved(&self) -> Vec<f64> {
        self.model
            .iter()
            .zip(&self.z)
            .map(|(model, z)| f64::from(*model) - z)
            .collect()
    }

    /// The mix of everything that arrived, what it is mixed from, and what it must come to, from
    /// own numerators of weight `own`.
    fn mix(&mut self, purpose: Purpose, own: f64, back: bool) -> (Mix, Vec<Part>, Sum) {
        let mut parts = std::mem::take(&mut self.arrived);
        let mut sum = std::mem::replace(&mut self.mass, Sum::none());
        let mut weight = own + std::mem::take(&mut self.held);
        if let Some(Sent {
            payload,
            scale,
            share,
        }) = self.sent.take_if(|_| back)
        {
            sum = sum.plus(
                scale.into(),
                flat(&payload.clone().into_values(&self.pool())),
            );
            weight += share;
            parts.push(Part {
                values: payload,
                scale,
            });
        }
        let round = Round(1);
        let step = Step(0);
        let arrivals = Vec::new();
        let returned = Vec::new();
        (
            Mix {
                round,
                step,
                purpose,
                own,
                weight,
                shared: false,
                arrivals,
                returned,
                behind: None,
            },
            parts,
            sum,
        )
    }

    /// Sends a part of `x`. What is given away and what is owed is what was to be given away.
    fn ship(
        &mut self,
        plan: Option<Plan>,
        x: Sum,
        make: impl FnOnce(&mut Arithmetic, Option<Awaited>) -> Option<GossipPeerMessage>,
    ) {
        let before = flat(&self.arithmetic.residual);
        let message = plan.map(|plan| (Arc::new(plan), Payload::awaited(self.wire)));
        let made = make(&mut self.arithmetic, message.clone());
        let Some((plan, payload)) = message else {
            return assert!(made.is_none());
        };
        assert!(matches!(made, Some(GossipPeerMessage::Encoded(..))));
        let split = plan.split;
        let given = plan.out.len() as f64 * f64::from(split.scale);
        let q = flat(&payload.clone().into_values(&self.pool()));
        if self.wire == WireType::Float32 {
            x.assert_is(&q, "what is sent");
        }
        let owed = x.0.iter().zip(&before).zip(&q);
        let owed = owed.map(|(((x, size), before), q)| {
            (
                f64::from(*before) + given * (x - f64::from(*q)),
                1.0 + 2.0 * size + f64::from(before.abs()),
            )
        });
        Sum(owed.collect()).assert_is(&flat(&self.arithmetic.residual), "the residual");
        self.sent = Some(Sent {
            payload,
            scale: split.scale,
            share: split.share,
        });
        self.own = split.kept;
    }

    /// Overlapped: the training thread mixes the correction in, and a message is made of the model
    /// that it had.
    fn gossip(&mut self, paid: f64, back: bool, out: usize, bad: Option<usize>) {
        let own = self.own * (1.0 - paid);
        let (mix, parts, mass) = self.mix(Purpose::Gossip, own, back);
        let weight = mix.weight;
        let pool = self.pool();
        let plan = plan(weight, out);
        let (shared, stays) = plan
            .as_ref()
            .map_or((false, 1.0), |_| (true, own.min(1.0) as f32));
        let moved = self.moved();
        let x = mass
            .plus(own, self.z.iter().copied())
            .plus(stays.into(), moved.iter().copied());
        let corrected = self
            .arithmetic
            .run(Job::Correct(Mix { shared, ..mix }, parts));
        let Some(GossipPeerMessage::Told(Told {
            message: ToGossip::Mixed(_, Made::Correction(correction, found)),
            ..
        })) = corrected
        else {
            panic!("no correction")
        };
        assert_eq!(found, f64::from(stays));
        bad.into_iter().for_each(|bad| self.model[bad] = f32::NAN);
        let before = assembled(&pool, &self.model, &[0]);
        assert_eq!(
            mean::correct(&mut self.model, &flat(&correction), stays, weight),
            bad.is_none()
        );
        self.own = weight;
        if let Some(bad) = bad {
            self.arithmetic.run(Job::Mend(before));
            // What was not sent of the movement stays, but for what is what it was.
            let goes = moved
                .iter()
                .enumerate()
                .map(|(index, moved)| if index == bad { 0.0 } else { *moved });
            self.mass = Sum::none().plus(1.0 - f64::from(stays), goes);
            let mut expected = x;
            expected.0[bad] = (self.z[bad] * weight, 1.0);
            expected.assert_is(&self.last(), "the mended numerators");
            self.model[bad] = self.z[bad] as f32;
        } else {
            let goes = plan.as_ref().map_or(0.0, |plan| {
                (1.0 - f64::from(stays)) / plan.out.len() as f64 / f64::from(plan.split.scale)
            });
            self.ship(plan, x.clone().plus(goes, moved), |arithmetic, message| {
                arithmetic.run(Job::Moved(before, message))
            });
            x.assert_is(&self.last(), "the numerators");
        }
        self.z = self.last().iter().map(|x| f64::from(*x) / weight).collect();
    }

    /// The numerators as the arithmetic knows them.
    fn last(&self) -> Vec<f32> {
        flat(&self.arithmetic.last.as_ref().unwrap().0)
    }

    /// Synchronous: sends, then mixes what comes.
    fn gossip_at_once(&mut self, paid: f64, back: bool, out: usize) {
        let pool = self.pool();
        let returned = self.sent.take_if(|_| back);
        let shipped = unbiased(
            &pool,
            frozen(&pool, &self.model),
            self.last.as_ref(),
            self.own,
        );
        let x = Sum::none()
            .plus(self.own, self.z.iter().copied())
            .plus(1.0, self.moved());
        x.assert_is(shipped.values(), "the numerators that are shipped");
        let shipped = assembled(&pool, shipped.values(), &[0]);
        let plan = plan(self.own, out);
        let values = shipped.clone();
        let scale = plan.as_ref().map_or(1.0, |plan| plan.split.kept_scale) * (1.0 - paid) as f32;
        self.ship(plan, x, |arithmetic, message| {
            let (plan, payload) = message?;
            arithmetic.run(Job::Encode(plan, values, payload))
        });
        let own = self.own * (1.0 - paid);
        let now = std::mem::replace(&mut self.sent, returned);
        let (mix, parts, mass) = self.mix(Purpose::Gossip, own, back);
        self.sent = now.or(self.sent.take());
        let weight = mix.weight;
        let expected = mass.plus(scale.into(), flat(&shipped));
        let own = Part {
            values: Payload::Float32(shipped),
            scale,
        };
        let Some(GossipPeerMessage::Told(Told {
            message: ToGossip::Mixed(_, Made::Numerators(values)),
            ..
        })) = self.arithmetic.run(Job::Mix(mix, own, parts))
        else {
            panic!("no numerators")
        };
        self.model = flat(&values);
        expected.assert_is(&self.model, "the numerators");
        self.z = self.model.iter().map(|x| f64::from(*x) / weight).collect();
        mean::divide(&mut self.model, weight);
        self.last = Some((values, weight));
        self.own = weight;
    }

    /// The contribution to an exact average: everything, also what is owed; buffers behind it are
    /// left alone.
    fn settle(&mut self, paid: f64) {
        let own = self.own * (1.0 - paid);
        let (mix, parts, mass) = self.mix(Purpose::Average, own, true);
        let owed = flat(&self.arithmetic.residual);
        let expected = mass
            .plus(own, self.z.iter().copied())
            .plus(1.0, self.moved())
            .plus(1.0, owed);
        let pool = self.pool();
        let buffers = values(3, BUFFERS);
        let contribution = frozen(&pool, &[&self.model[..], &buffers].concat());
        let settled = self.arithmetic.run(Job::Settle(mix, contribution, parts));
        let Some(GossipPeerMessage::Told(Told {
            message: ToGossip::Mixed(_, Made::Contribution(contribution)),
            ..
        })) = settled
        else {
            panic!("no contribution")
        };
        expected.assert_is(&contribution.values()[..VALUES], "the contribution");
        assert_eq!(contribution.values()[VALUES..], buffers);
    }

    /// The training thread goes on from the parameters that a round decided, in pieces that are
    /// none of a message's.
    fn decided(&mut self, seed: u64) {
        let pool = self.pool();
        let decided = values(seed, VALUES + BUFFERS);
        let last = front(&pool, &assembled(&pool, &decided, &[0, 250, 400]), VALUES);
        self.arithmetic.run(Job::Reset);
        self.arithmetic.run(Job::Last(last.clone(), 1.0));
        self.model = decided[..VALUES].to_vec();
        self.z = self.model.iter().map(|value| f64::from(*value)).collect();
        self.last = Some((last, 1.0));
        self.own = 1.0;
        self.held = 0.0;
        self.sent = None;
        self.arrived = Vec::new();
        self.mass = Sum::none();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn numerators_are_what_the_books_say(events in events()) {
        for wire in WIRES {
            for synchronous in [false, true] {
                let mut node = Node::new(wire, synchronous);
                events.iter().cloned().for_each(|event| node.on(event));
                node.settle(0.0);
            }
        }
    }
}

#[test]
fn a_debt_paid_in_the_first_mix_of_a_round_is_paid_in_values_too() {
    let mut node = Node::new(WireType::Float32, false);
    node.gossip(0.25, false, 1, None);
    assert_eq!(node.own, 0.375);
    node.decided(9);
    node.settle(0.5);
}

#[test]
fn a_value_that_is_not_finite_in_the_first_gossip_of_a_round_stays_what_was_decided() {
    let mut node = Node::new(WireType::Int8, false);
    node.arrive(4, 0.5, 0.5);
    node.gossip(0.0, false, 2, Some(17));
    node.arrive(5, 0.5, 0.5);
    node.gossip(0.0, false, 2, None);
    node.settle(0.0);
}
