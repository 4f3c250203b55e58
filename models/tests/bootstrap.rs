//! Bootstraps, exhaustively: every space is explored whole, every rule left out is found, and so is
//! what the rules do not promise.

use slowmo_models::bootstrap::{
    APART, LONG, ONE_RUN, PLANTED, SHORT, explore, run_apart, run_planted,
};

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
        assert!(report.proves(), "{report}");
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
fn what_is_not_promised_happens() {
    for space in APART {
        let report = run_apart(space);
        assert!(report.violates(ONE_RUN), "{report}");
    }
}
