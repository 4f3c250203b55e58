//! Escrow of in-flight messages from this node: it answers for their mass until their receivers do.

use super::events::Sent;
use crate::ident::{NodeId, Step};
use crate::time::{Instant, Span};
use std::collections::{BTreeMap, BTreeSet};

/// Interval at which a receiver is asked about a message that it has not answered.
pub const ASK_INTERVAL: Span = Span::from_millis(1_000);
/// Maximum number of unanswered messages to one peer, if nothing else bounds them.
const UNANSWERED_MAX: usize = 64;

/// An unanswered message.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Parcel {
    weight: f64,
    /// Time at which its receiver is asked about it; `None` while it is being sent.
    ask_at: Option<Instant>,
}

/// The escrow of one gossip peer.
#[derive(Clone, Debug, Default)]
pub struct Escrow {
    parcels: BTreeMap<Sent, Parcel>,
    /// Mass that was taken back and waits for the next mix.
    returned: BTreeMap<Sent, f64>,
    /// Messages that were reclaimed because their receiver was taken for dead.
    reclaimed: BTreeSet<Sent>,
    /// Reclaimed messages of which a receiver that turned out alive is being told until it answers,
    /// each with the time at which it is told again.
    telling: BTreeMap<Sent, Instant>,
}

impl Escrow {
    /// Deposits a message that is being sent.
    pub fn deposit(&mut self, to: NodeId, step: Step, weight: f64) {
        self.parcels.insert(
            (to, step),
            Parcel {
                weight,
                ask_at: None,
            },
        );
    }

    /// The message was sent, successfully or not: its receiver is asked at `ask_at` if it has not
    /// answered by then.
    pub fn sent(&mut self, sent: Sent, ask_at: Instant) {
        if let Some(parcel) = self.parcels.get_mut(&sent) {
            parcel.ask_at = Some(ask_at);
        }
    }

    /// The receiver has the message. `false` if it was not in escrow.
    pub fn release(&mut self, sent: Sent) -> bool {
        self.parcels.remove(&sent).is_some()
    }

    /// The receiver does not have the message and never will: its mass is taken back. `false` if it
    /// was not in escrow.
    pub fn take_back(&mut self, sent: Sent) -> bool {
        let parcel = self.parcels.remove(&sent);
        parcel.is_some_and(|parcel| self.returned.insert(sent, parcel.weight).is_none())
    }

    /// Whether this message is unanswered.
    pub fn is_open(&self, sent: Sent) -> bool {
        self.parcels.contains_key(&sent)
    }

    /// The message was never sent; returns its weight, even if it was taken back meanwhile.
    pub fn cancel(&mut self, sent: Sent) -> Option<f64> {
        self.reclaimed.remove(&sent);
        self.telling.remove(&sent);
        self.parcels
            .remove(&sent)
            .map(|parcel| parcel.weight)
            .or_else(|| self.returned.remove(&sent))
    }

    /// The receiver is dead: reclaims all in-flight messages to it.
    pub fn reclaim(&mut self, to: NodeId) {
        let open: Vec<Sent> = self.to(to).map(|(sent, _)| *sent).collect();
        for sent in open {
            self.take_back(sent);
            self.reclaimed.insert(sent);
        }
        self.telling
            .retain(|sent, _| sent.0 != to || !self.reclaimed.insert(*sent));
    }

    /// The messages that were reclaimed from a receiver that turned out alive, ascending: it is
    /// told now, and again at `again_at` if it has not answered by then.
    pub fn tell_reclaimed(&mut self, to: NodeId, again_at: Instant) -> Vec<Step> {
        let steps: Vec<Step> = self
            .reclaimed
            .range((to, Step(0))..=(to, Step(u64::MAX)))
            .map(|(_, step)| *step)
            .collect();
        for step in &steps {
            self.reclaimed.remove(&(to, *step));
            self.telling.insert((to, *step), again_at);
        }
        steps
    }

    /// The receiver knows that this message was reclaimed.
    pub fn told(&mut self, sent: Sent) {
        self.telling.remove(&sent);
    }

    /// Reclaimed messages of which the receivers must be told again at `now`, and then once more
    /// after an interval.
    pub fn untold(&mut self, now: Instant) -> Vec<Sent> {
        let due: Vec<Sent> = self
            .telling
            .iter()
            .filter(|(_, again_at)| now >= **again_at)
            .map(|(sent, _)| *sent)
            .collect();
        due.iter()
            .for_each(|sent| _ = self.telling.insert(*sent, now.after(ASK_INTERVAL)));
        due
    }

    /// Takes the mass that was taken back, ascending by message.
    pub fn take_returned(&mut self) -> Vec<(Sent, f64)> {
        std::mem::take(&mut self.returned).into_iter().collect()
    }

    /// Whether another message may be sent to `to` at `step`: true if no message to it is
    /// unanswered for more than `steps` steps. With `steps` 0 (synchronous), only the number of
    /// unanswered messages is bounded: a peer that is behind answers later, and is waited for by
    /// others.
    pub fn is_in_time(&self, to: NodeId, step: Step, steps: u64) -> bool {
        let oldest = self.to(to).next().map(|((_, oldest), _)| *oldest);
        match oldest {
            Some(oldest) if steps > 0 => oldest.0.saturating_add(steps) >= step.0,
            _ => self.to(to).count() < UNANSWERED_MAX,
        }
    }

    /// Number of steps with messages in escrow, which is the number of models kept.
    pub fn steps(&self) -> usize {
        self.parcels
            .keys()
            .map(|(_, step)| step)
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// Messages whose answers are overdue at `now`; their receivers are asked again one interval
    /// later.
    pub fn overdue(&mut self, now: Instant) -> Vec<Sent> {
        let due = |parcel: &Parcel| parcel.ask_at.is_some_and(|ask_at| now >= ask_at);
        let asked: Vec<Sent> = self
            .parcels
            .iter()
            .filter(|(_, parcel)| due(parcel))
            .map(|(sent, _)| *sent)
            .collect();
        asked
            .iter()
            .for_each(|sent| self.sent(*sent, now.after(ASK_INTERVAL)));
        asked
    }

    /// Time at which the next question or notice is due.
    pub fn next_ask(&self) -> Option<Instant> {
        self.parcels
            .values()
            .filter_map(|parcel| parcel.ask_at)
            .chain(self.telling.values().copied())
            .min()
    }

    /// Weight in escrow, including weight that was taken back and is not mixed yet.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.parcels
            .values()
            .map(|parcel| parcel.weight)
            .sum::<f64>()
            + self.returned.values().sum::<f64>()
    }

    /// Number of unanswered messages.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.parcels.len()
    }

    /// Writes off all unanswered messages; returns their weight.
    pub fn write_off(&mut self) -> f64 {
        std::mem::take(&mut self.parcels)
            .values()
            .map(|parcel| parcel.weight)
            .sum()
    }

    fn to(&self, to: NodeId) -> impl Iterator<Item = (&Sent, &Parcel)> {
        self.parcels.range((to, Step(0))..=(to, Step(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escrow_gives_back_what_was_not_acknowledged() {
        let mut escrow = Escrow::default();
        for (peer, step) in [(1, 0), (2, 0), (2, u64::MAX), (3, 0)] {
            escrow.deposit(NodeId(peer), Step(step), 0.25);
        }
        assert!(escrow.release((NodeId(1), Step(0))) && !escrow.release((NodeId(1), Step(0))));
        assert!(
            !escrow.release((NodeId(3), Step(1))),
            "another step's message is not released"
        );
        escrow.reclaim(NodeId(9));
        escrow.reclaim(NodeId(2));
        assert_eq!((escrow.total(), escrow.messages()), (0.75, 1));
        assert_eq!(
            escrow.take_returned(),
            [
                ((NodeId(2), Step(0)), 0.25),
                ((NodeId(2), Step(u64::MAX)), 0.25)
            ]
        );
        assert_eq!((escrow.total(), escrow.take_returned()), (0.25, Vec::new()));
        assert_eq!(
            escrow.tell_reclaimed(NodeId(2), Instant(7)),
            [Step(0), Step(u64::MAX)]
        );
        assert_eq!(
            (
                escrow.tell_reclaimed(NodeId(2), Instant(7)),
                escrow.next_ask()
            ),
            (Vec::new(), Some(Instant(7)))
        );
        escrow.told((NodeId(2), Step(0)));
        assert_eq!(
            (escrow.untold(Instant(6)), escrow.untold(Instant(7))),
            (Vec::new(), vec![(NodeId(2), Step(u64::MAX))])
        );
        assert_eq!(escrow.next_ask(), Some(Instant(7).after(ASK_INTERVAL)));
        escrow.reclaim(NodeId(2));
        assert_eq!(
            (
                escrow.next_ask(),
                escrow.tell_reclaimed(NodeId(2), Instant(9))
            ),
            (None, vec![Step(u64::MAX)]),
            "it is lost again"
        );
    }

    #[test]
    fn who_does_not_answer_is_asked_once_an_interval_and_sent_nothing_more() {
        let mut escrow = Escrow::default();
        escrow.deposit(NodeId(1), Step(4), 0.5);
        assert_eq!(
            (escrow.next_ask(), escrow.overdue(Instant(u64::MAX))),
            (None, Vec::new()),
            "it is being sent"
        );
        escrow.sent((NodeId(1), Step(4)), Instant(10));
        assert_eq!(escrow.overdue(Instant(9)), []);
        assert_eq!(escrow.overdue(Instant(10)), [(NodeId(1), Step(4))]);
        assert_eq!(escrow.next_ask(), Some(Instant(10).after(ASK_INTERVAL)));
        assert!(
            escrow.is_in_time(NodeId(1), Step(6), 2) && !escrow.is_in_time(NodeId(1), Step(7), 2)
        );
        assert!(
            escrow.is_in_time(NodeId(1), Step(70), 0) && escrow.is_in_time(NodeId(2), Step(70), 2)
        );
    }
}
