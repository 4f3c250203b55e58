//! Every short space of the rounds holds, and every broken rule is found by the property that it
//! breaks.

use slowmo_models::check::{Order, Search, Until};
use slowmo_models::round::{explore, planted, short};

#[test]
fn every_short_space_holds() {
    let mut wrong = Vec::new();
    for space in short() {
        let report = explore(&space.setup, &space.search);
        println!("{report}");
        if !report.proves() {
            wrong.push(report.to_string());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_broken_rule_is_found_by_its_property() {
    let mut wrong = Vec::new();
    let mut controls = Vec::new();
    for (bug, property, setup) in planted() {
        let search = Search {
            until: Until::Fails(property),
            ..Search::new("broken")
        };
        let report = explore(&setup.breaking(bug), &search);
        println!(
            "{bug:?}, {property}: {} states, {:.1} s",
            report.states,
            report.took.as_secs_f64()
        );
        if !report.violates(property) {
            wrong.push(format!("{bug:?} was not found by {property}"));
        }
        if !controls.contains(&setup) {
            controls.push(setup);
        }
    }
    for setup in controls {
        let report = explore(
            &setup,
            &Search {
                order: Order::Depth,
                ..Search::new("control")
            },
        );
        println!("{report}, {setup:?}");
        if !report.proves() {
            wrong.push(format!("{report}\n{setup:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
