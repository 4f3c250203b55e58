//! Forks and merges: every space is explored whole, and every rule left out is found.

use slowmo_models::histories::{LONG, PLANTED, SHORT, explore, run_planted};
use slowmo_models::order::{circle, fewest_forks_first, goes_on};

#[test]
fn the_rules_hold() {
    for space in SHORT {
        let report = explore(space);
        println!("{report}");
        assert!(report.proves(), "{report}");
    }
}

#[test]
#[ignore = "minutes; run with --ignored"]
fn the_rules_hold_in_wider_spaces() {
    for space in LONG {
        let report = explore(space);
        println!("{report}");
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn each_rule_left_out_is_found() {
    for planted in PLANTED {
        let report = run_planted(planted);
        assert!(
            report.violates(planted.found_by()),
            "{planted:?} should break {:?}\n{report}",
            planted.found_by()
        );
    }
}

#[test]
fn the_order_has_no_circles_and_fewest_forks_first_has() {
    assert_eq!(circle(goes_on), None);
    assert_eq!(
        circle(fewest_forks_first).map(|circle| circle.len()),
        Some(3)
    );
}
