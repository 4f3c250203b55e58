//! Forks and merges: every space is explored whole, and every rule left out is found.

use slowmo_models::histories::{LONG, PLANTED, SHORT, explore, run_planted};

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
        assert!(report.violates(planted.found_by()), "{planted:?} should break {:?}\n{report}", planted.found_by());
    }
}
