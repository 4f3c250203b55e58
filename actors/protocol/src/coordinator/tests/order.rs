//! The order of the gossip graph: decided with the view, the same on every member, whoever leads.

use super::*;

/// An attempt's order is no reason to refuse it: whatever it says, every member makes the same of
/// it.
#[test]
fn a_malformed_order_breaks_no_member() {
    for order in [&[][..], &[2, 1], &[7], &[1, 1], &[2, 1, 2], &[0; 40]] {
        let mut member = Bench::of(&[1, 2], 2);
        let begun = member.contribute_to(FIRST);
        let outcome = Outcome {
            spec: FIRST,
            contributors: ids(&[1, 2]),
            order: ids(order),
            ..founded(&member.view, 1)
        };
        let outcome = Outcome {
            published: member.root(),
            ..outcome
        };
        member.hear_attempt(1, &outcome, &[1, 2]);
        let held = member.hold_all(&begun);
        assert!(says!(held, Message::Ready(_)), "{held:?}");
        let applied = member.hear(
            1,
            Message::Decide {
                entry: Entry::Held(outcome.digest()),
                leaves: false,
            },
        );
        assert!(applied.iter().any(
            |effect| matches!(effect, Effect::Apply { outcome: decided, .. } if *decided == outcome)
        ));
        // It leads the next round alone, after whatever order.
        member.lose(&[1], false);
        assert_eq!(member.place().round, Round::BOOTSTRAP.next());
    }
}
