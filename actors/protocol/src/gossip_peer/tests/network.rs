//! The simulated network: streams that break, connections that break, and those that are cut for a
//! while.

use super::audit::Mass;
use super::node::Stream;
use super::world::{Event, World};
use crate::gossip_peer::{In, Key, Plan, Sent};
use crate::ident::NodeId;
use crate::wire::Header;
use std::collections::{BTreeMap, BTreeSet};

/// The state of the connections.
#[derive(Default)]
pub struct Network {
    links: BTreeMap<(NodeId, NodeId), u64>,
    cut: BTreeSet<(NodeId, NodeId)>,
    streams: u64,
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Network {
    /// Which connection of the two this is.
    pub fn link(&self, a: NodeId, b: NodeId) -> u64 {
        self.links.get(&pair(a, b)).copied().unwrap_or(0)
    }

    pub fn is_cut(&self, a: NodeId, b: NodeId) -> bool {
        self.cut.contains(&pair(a, b))
    }

    /// Breaks a connection: everything on its way is lost.
    pub fn break_link(&mut self, a: NodeId, b: NodeId) {
        *self.links.entry(pair(a, b)).or_default() += 1;
    }

    pub fn cut(&mut self, a: NodeId, b: NodeId) {
        self.break_link(a, b);
        self.cut.insert(pair(a, b));
    }

    pub fn heal(&mut self, a: NodeId, b: NodeId) {
        self.cut.remove(&pair(a, b));
    }

    pub fn heal_all(&mut self) {
        self.cut.clear();
    }
}

impl World {
    /// Sends the streams of a plan.
    pub fn dispatch(&mut self, from: NodeId, plan: &Plan, values: Mass) {
        let header = self.nodes[&from].machine.identity.header(plan.place);
        for to in &plan.out {
            self.network.streams += 1;
            let key: Key = (plan.place.round, plan.step, from);
            let stream = Stream {
                number: self.network.streams,
                values,
                breaks: false,
                answers: false,
            };
            self.stream(from, *to, (key, header), stream);
        }
    }

    fn stream(&mut self, from: NodeId, to: NodeId, (key, header): (Key, Header), stream: Stream) {
        let link = self.network.link(from, to);
        let delay = self.delay();
        let sent = (to, key.1);
        let gone =
            self.nodes.get(&to).is_none_or(|node| !node.alive) || self.network.is_cut(from, to);
        let fate = if self.breaks_now() {
            self.random.below(100)
        } else {
            99
        };
        match fate {
            _ if gone => {
                // Some transports notice at once that nobody is there, others much later.
                let notices = if self.random.below(2) == 0 {
                    10_000
                } else {
                    400_000
                };
                let after = delay + self.random.below(notices);
                self.later(after, from, Event::Tell(In::SendFailed(sent)));
            }
            0..3 => self.later(delay, from, Event::Tell(In::SendFailed(sent))),
            3..5 => self.later(delay, from, Event::Tell(In::Sent(sent))),
            5..10 => self.begin(
                to,
                (key, header),
                Stream {
                    breaks: true,
                    ..stream
                },
                (delay, link),
            ),
            10..14 => {
                self.begin(to, (key, header), stream, (delay, link));
                let after = self.delay();
                self.later(after, from, Event::Tell(In::SendFailed(sent)));
            }
            14..18 => {
                self.begin(to, (key, header), stream, (delay, link));
                self.network.streams += 1;
                let number = self.network.streams;
                let later = delay + 10 * self.delay();
                self.begin(
                    to,
                    (key, header),
                    Stream {
                        number,
                        answers: true,
                        ..stream
                    },
                    (later, link),
                );
            }
            18..60 => self.begin(
                to,
                (key, header),
                Stream {
                    answers: true,
                    ..stream
                },
                (delay, link),
            ),
            _ => {
                self.begin(to, (key, header), stream, (delay, link));
                self.later(delay, from, Event::Tell(In::Sent(sent)));
            }
        }
    }

    fn begin(
        &mut self,
        to: NodeId,
        (key, header): (Key, Header),
        stream: Stream,
        (delay, link): (u64, u64),
    ) {
        self.later(delay, to, Event::Offer(key, header, stream, link));
    }

    /// A stream begins. The shell drops one that it has already.
    pub fn offer(&mut self, id: NodeId, key: Key, header: Header, stream: Stream, link: u64) {
        if link != self.network.link(key.2, id) {
            return self.later(1, key.2, Event::Tell(In::SendFailed((id, key.1))));
        }
        let node = self.node(id);
        if node.incoming.contains_key(&key) {
            return;
        }
        node.incoming.insert(key, stream);
        let weight = stream.values[0];
        self.feed(
            id,
            In::Offered {
                header,
                step: key.1,
                weight,
            },
        );
    }

    /// The machine asked for it.
    pub fn receive(&mut self, id: NodeId, key: Key) {
        let Some(stream) = self.nodes[&id].incoming.get(&key).copied() else {
            panic!("{id} reads what is not there: {key:?}")
        };
        let delay = 1 + self.delay() / 4;
        let link = self.network.link(key.2, id);
        self.later(delay, id, Event::Read(key, stream.number, link));
    }

    pub fn read(&mut self, id: NodeId, key: Key, number: u64, link: u64) {
        let Some(stream) = self.nodes[&id]
            .incoming
            .get(&key)
            .copied()
            .filter(|stream| stream.number == number)
        else {
            return;
        };
        let broken = stream.breaks || link != self.network.link(key.2, id);
        let node = self.node(id);
        node.incoming.remove(&key);
        if broken {
            self.answer(id, (key.2, key.1), false);
            return self.feed(id, In::Broken(key));
        }
        node.held.insert(key, stream.values);
        if stream.answers {
            self.answer(id, (key.2, key.1), true);
        }
        self.feed(id, In::Arrived(key));
    }

    /// The sender's transport hears of a stream's end.
    pub fn answer(&mut self, id: NodeId, (from, step): Sent, whole: bool) {
        let sent = (id, step);
        let delay = self.delay();
        self.later(
            delay,
            from,
            Event::Tell(if whole {
                In::Sent(sent)
            } else {
                In::SendFailed(sent)
            }),
        );
    }

    /// A stream that is not read to its end: its sender may hear of that.
    pub fn dropped(&mut self, id: NodeId, key: Key) {
        if let Some(stream) = self.node(id).drop_message(key)
            && stream.answers
        {
            self.answer(id, (key.2, key.1), false);
        }
    }
}
