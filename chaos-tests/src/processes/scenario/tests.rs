//! Scenarios that are read, refused by name, and shipped. Pure.
#![allow(clippy::unwrap_used)]

use super::*;

const SMALL: &str = "summary = 'x'\nnodes = 4\nduration_s = 10\n";

fn refused(text: &str) -> String {
    Scenario::parse(text, "a.toml").unwrap_err().to_string()
}

#[test]
fn every_shipped_scenario_is_sound_and_keeps_its_meaning_when_written_again() {
    for shipped in SHIPPED {
        let (name, scenario) = Scenario::find(shipped.name).unwrap();
        assert_eq!(name, shipped.name);
        let again = Scenario::parse(&toml::to_string(&scenario).unwrap(), shipped.name).unwrap();
        assert_eq!(again, scenario);
    }
}

#[test]
fn groups_are_of_those_that_bootstrap() {
    let sites = format!("{SMALL}nodes_max = 6\ngroups = 2");
    let scenario = Scenario::parse(&sites, "a.toml").unwrap();
    let groups: Vec<_> = (1..=6).filter_map(|id| scenario.group(id)).collect();
    assert_eq!(
        groups,
        ["site-1", "site-1", "site-2", "site-2", "site-2", "site-2"]
    );
    assert_eq!(Scenario::parse(SMALL, "a.toml").unwrap().group(1), None);
    assert!(refused(&format!("{SMALL}groups = 5")).contains("groups = 5"));
    let twice = refused(&format!("{SMALL}groups = 2\n[settings]\ngroup = 'x'"));
    assert!(twice.contains("group is set by the run itself"), "{twice}");
}

#[test]
fn mistyped_words_are_answered_with_the_nearest_known_one() {
    assert!(refused(&format!("{SMALL}nodez_max = 4")).ends_with("did you mean `nodes_max`?"));
    let at = "[[script]]\nat_s = 1\n";
    let action = refused(&format!("{SMALL}{at}do = 'kil'\nwho = 'any'"));
    assert!(
        action.contains("line 4") && action.ends_with("did you mean `kill`?"),
        "{action}"
    );
    let field = refused(&format!("{SMALL}{at}do = 'pause'\nwho = 'any'\nfor = 3"));
    assert!(field.ends_with("did you mean `for_s`?"), "{field}");
    let who = refused(&format!("{SMALL}{at}do = 'kill'\nwho = 'anybody'"));
    assert!(who.contains("one of any, leader, last, next"), "{who}");
    let setting = refused(&format!("{SMALL}[settings]\nquorun = 'majority'"));
    assert!(setting.contains("quorum"), "{setting}");
    let name = Scenario::find("strom").unwrap_err().to_string();
    assert!(name.contains("did you mean 'storm'?"), "{name}");
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let cases = [
        (
            "summary = 'x'\nnodes = 0\nduration_s = 1",
            "nodes = 0: 1 to 32",
        ),
        (
            "summary = 'x'\nnodes = 4\nnodes_max = 3\nduration_s = 1",
            "nodes_max = 3",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = -1",
            "duration_s = -1",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = nan",
            "duration_s = NaN",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = 5\nspared = [9]",
            "never a node 9",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = 5\n[settings]\nadmin = 'x'",
            "set by the run itself",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = 5\n[settings]\ngrace_ms = 0",
            "grace_ms",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = 5\n[[random]]\nchoose = [{ do = 'start' }]",
            "one of per_hour, between_s",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = 5\n[[random]]\nper_hour = 5\nchoose = []",
            "whose weight is not 0",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = 5\n[[script]]\nat_s = 1\ntimes = 3\ndo = \
             'start'",
            "times wants every_s",
        ),
        (
            "summary = 'x'\nnodes = 4\nduration_s = 5\n[expect]\nthroughput = 97",
            "throughput is a share",
        ),
    ];
    for (text, wanted) in cases {
        let error = refused(text);
        assert!(error.contains(wanted), "{error} should say {wanted}");
    }
}
