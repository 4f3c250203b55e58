//! The flows: what a cluster is about to do in the round in which a node fails, and who is left.

use super::book::TAU;
use super::drill::{Drill, config, each};
use super::points::{Act, Kind, Point, Trap};
use slowmo::internal::Inspection;
use slowmo::{Config, WireType};
use std::sync::Mutex;

const IDS: [u64; 4] = [2, 3, 5, 8];
/// A round that takes a slow step, with the momentum of one before it, and a plain average.
const SLOW: u64 = 2 * TAU;
const AVERAGE: u64 = SLOW + 1;

/// A node fails at each of its phases of a round, one run each.
struct Flow<'a> {
    ids: Vec<u64>,
    round: u64,
    act: Act,
    /// Sets a trap, and leads a cluster to where the round begins.
    reach: &'a (dyn Fn(Option<Trap>) -> Drill + Sync),
    /// Goes on after the node failed, if it did; who is left.
    go_on: &'a (dyn Fn(&Drill, Option<u64>) -> Vec<u64> + Sync),
}

impl Flow<'_> {
    /// Every phase of the round, in a run in which no node fails.
    fn phases(&self) -> Vec<(u64, Point)> {
        let drill = (self.reach)(None);
        drill.until_round(self.round + 1);
        let phases: Vec<_> = self
            .ids
            .iter()
            .flat_map(|id| drill.points(*id, self.round))
            .collect();
        assert!(phases.len() > 10 * self.ids.len(), "{phases:?}");
        phases
    }

    /// The costs of each failure.
    fn costs(&self, phases: &[(u64, Point)]) -> Vec<Cost> {
        let costs = Mutex::new(Vec::new());
        each(phases, |(victim, point)| {
            let trap = Trap {
                node: *victim,
                point: *point,
                act: self.act,
            };
            let drill = (self.reach)(Some(trap));
            let failed = drill.until_sprung(self.round);
            let left = (self.go_on)(&drill, failed.then_some(*victim));
            let cost = Cost {
                victim: *victim,
                point: *point,
                shards: drill.finish(&left),
            };
            costs.lock().unwrap().extend(failed.then_some(cost));
            failed
        });
        costs.into_inner().unwrap()
    }

    fn assert_costs_nothing(&self, phases: &[(u64, Point)]) {
        assert_nothing_lost(&self.costs(phases));
    }
}

/// How many shards' momentum a failure costs.
#[derive(Debug)]
struct Cost {
    #[expect(dead_code, reason = "named where a test fails")]
    victim: u64,
    #[expect(dead_code, reason = "named where a test fails")]
    point: Point,
    shards: u64,
}

fn assert_nothing_lost(costs: &[Cost]) {
    let lost: Vec<_> = costs.iter().filter(|cost| cost.shards > 0).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

fn without(ids: &[u64], gone: &[Option<u64>]) -> Vec<u64> {
    let is_left = |id: &u64| !gone.contains(&Some(*id));
    ids.iter().copied().filter(is_left).collect()
}

/// Costs of the death of a node: a member, the leader, the owner or a replica of any shard.
fn killed(ids: &[u64], config: &Config, round: u64) -> Vec<Cost> {
    let flow = Flow {
        ids: ids.to_vec(),
        round,
        act: Act::Crash,
        reach: &|trap| Drill::new(ids, &[], config.clone(), trap),
        go_on: &|_, killed| without(ids, &[killed]),
    };
    flow.costs(&flow.phases())
}

#[test]
fn a_node_killed_at_any_phase_of_a_round() {
    for round in [SLOW, AVERAGE] {
        assert_nothing_lost(&killed(&IDS, &config(4, 1), round));
    }
}

#[test]
fn a_node_killed_where_shards_have_no_replicas_costs_their_momentum_only() {
    for round in [SLOW, AVERAGE] {
        let costs = killed(&IDS[1..], &config(3, 0), round);
        assert!(costs.iter().all(|cost| cost.shards > 0), "{costs:?}");
    }
}

#[test]
fn a_node_killed_at_any_phase_of_an_encoded_slow_round() {
    for round_wire in [WireType::BFloat16, WireType::Int8] {
        let config = Config {
            round_wire,
            ..config(3, 1)
        };
        assert_nothing_lost(&killed(&IDS[1..], &config, SLOW));
    }
}

/// Odd and even ids are in two groups, of two or three nodes each: members, owners and relays die.
#[test]
fn a_node_killed_at_any_phase_of_a_round_over_two_groups() {
    const SIX: [u64; 6] = [2, 3, 4, 5, 8, 9];
    let in_groups = |config: Config| Config {
        group: Some("halves".parse().unwrap()),
        ..config
    };
    assert_nothing_lost(&killed(&IDS, &in_groups(config(4, 1)), SLOW));
    assert_nothing_lost(&killed(&SIX, &in_groups(config(6, 1)), AVERAGE));
    let encoded = Config {
        round_wire: WireType::Int8,
        ..config(4, 1)
    };
    assert_nothing_lost(&killed(&IDS, &in_groups(encoded), SLOW));
}

/// A node that is killed is started again before anybody noticed.
#[test]
fn a_node_killed_and_started_again_at_once() {
    for round in [SLOW, AVERAGE] {
        let flow = Flow {
            ids: IDS.to_vec(),
            round,
            act: Act::Crash,
            reach: &|trap| Drill::new(&IDS, &[], config(4, 1), trap),
            go_on: &|drill, killed| {
                killed.iter().for_each(|id| drill.start(*id));
                IDS.to_vec()
            },
        };
        flow.assert_costs_nothing(&flow.phases());
    }
}

/// A node that is cut off is passed over, and is a member again, by itself, once it can be reached.
#[test]
fn a_node_cut_off_at_any_phase_of_a_slow_round_comes_back() {
    let config = notices_soon();
    let reach = |trap| Drill::new(&IDS, &[], config.clone(), trap);
    let flow = comes_back(&reach);
    flow.assert_costs_nothing(&flow.phases());
}

/// A node that is cut off is noticed in so short a time that a busy machine may lose a second node in
/// it. Two replicas keep the momentum even then.
fn notices_soon() -> Config {
    Config {
        probe_interval_ms: 50,
        suspect_ms: 200,
        ..config(4, 2)
    }
}

/// A node is cut off in a slow round, and can be reached again once the others went on.
fn comes_back<'a>(reach: &'a (dyn Fn(Option<Trap>) -> Drill + Sync)) -> Flow<'a> {
    Flow {
        ids: IDS.to_vec(),
        round: SLOW,
        act: Act::CutOff,
        reach,
        go_on: &|drill, cut_off| {
            if let Some(id) = cut_off {
                drill.until_steady(&without(&IDS, &[cut_off]), 2);
                drill.mend(id);
            }
            IDS.to_vec()
        },
    }
}

/// The leader is cut off as it asks for votes. When it is back it resigns, and applies the round
/// that it asked votes for only then: it is a member in its own eyes while the others admit it.
#[test]
fn a_leader_cut_off_while_it_asks_for_votes_is_admitted_at_once() {
    let config = notices_soon();
    let point = Point {
        round: SLOW,
        kind: Kind::Accept,
        nth: 1,
    };
    // Which of both comes first differs from run to run.
    let runs = [(IDS[0], point); 24];
    let reach = |trap| Drill::new(&IDS, &[], config.clone(), trap);
    comes_back(&reach).assert_costs_nothing(&runs);
}

/// How often a flow is recorded until it shows what it must.
const RECORDINGS_MAX: usize = 10;

/// One is held before the round and the others go on without it after the grace, while a node is
/// killed.
fn assert_closes_without(straggler: u64, round: u64) {
    let config = Config {
        grace_ms: 40,
        ..config(4, 1)
    };
    let flow = Flow {
        ids: IDS.to_vec(),
        round,
        act: Act::Crash,
        reach: &|trap| {
            let drill = Drill::new(&IDS, &[], config.clone(), trap);
            drill.hold(&[straggler], round - 1);
            drill
        },
        go_on: &|drill, killed| {
            drill.until_round(round + 1);
            drill.release();
            without(&IDS, &[killed])
        },
    };
    // The leader drops the attempt with everybody and begins another one.
    let again = Point {
        round,
        kind: Kind::Attempt,
        nth: IDS.len() - 1,
    };
    // Where the machine is busy, the grace may be over before the first attempt begins. Such a run
    // has no attempt to drop.
    let mut recorded = (0..RECORDINGS_MAX).map(|_| flow.phases());
    let phases = recorded.find(|phases| phases.contains(&(IDS[0], again)));
    flow.assert_costs_nothing(&phases.expect("an attempt that is dropped"));
}

#[test]
fn a_node_is_killed_while_a_slow_round_closes_without_another() {
    assert_closes_without(5, SLOW + TAU);
}

#[test]
fn a_node_is_killed_while_a_plain_average_closes_without_the_leaders_contribution() {
    assert_closes_without(2, AVERAGE);
}

/// `leaver` takes part in the round for the last time, while a node is killed. What that costs.
fn drained(leaver: u64, replicas: usize, round: u64) -> Vec<Cost> {
    let flow = Flow {
        ids: IDS.to_vec(),
        round,
        act: Act::Crash,
        reach: &|trap| {
            let drill = Drill::new(&IDS, &[], config(4, replicas), trap);
            drill.hold_all(&IDS, round - 1);
            drill.drain(leaver);
            let is_known = |known: &Inspection| {
                drill.has_crashed(leaver) || known.leaving.iter().any(|node| node.0 == leaver)
            };
            drill.until_known(&IDS, "one leaves", is_known);
            drill.release();
            drill
        },
        go_on: &|_, killed| without(&IDS, &[killed, Some(leaver)]),
    };
    let mut phases = flow.phases();
    let drill = (flow.reach)(None);
    let says_so = drill.points(leaver, 0);
    phases.extend(says_so.filter(|(_, point)| point.kind == Kind::Leave));
    drop(drill);
    flow.costs(&phases)
}

#[test]
fn a_node_is_killed_while_one_drains() {
    // The leader of a slow round, and another of a plain average.
    for (leaver, round) in [(2, SLOW + TAU), (5, AVERAGE)] {
        assert_nothing_lost(&drained(leaver, 1, round));
    }
}

#[test]
fn a_node_is_killed_while_one_drains_whose_shards_have_no_replicas() {
    // Whether that costs momentum depends on who is killed.
    drained(3, 0, AVERAGE);
}

const FOUNDERS: [u64; 3] = [3, 5, 8];

/// The round admits `late`, while a node is killed.
fn assert_joins(late: &[u64], config: Config, round: u64) {
    let mut ids = [&FOUNDERS[..], late].concat();
    ids.sort_unstable();
    let flow = Flow {
        ids: ids.clone(),
        round,
        act: Act::Crash,
        reach: &|trap| {
            let drill = Drill::new(&FOUNDERS, late, config.clone(), trap);
            drill.hold_all(&FOUNDERS, round - 1);
            late.iter().for_each(|id| drill.start(*id));
            let is_ready = |known: &Inspection, id: u64| {
                drill.has_crashed(id) || known.joiners.iter().any(|joiner| joiner.0 == id)
            };
            drill.until_known(&FOUNDERS, "others join", |known| {
                late.iter().all(|id| is_ready(known, *id))
            });
            drill.release();
            drill
        },
        go_on: &|_, killed| without(&ids, &[killed]),
    };
    let mut phases = flow.phases();
    assert!(phases.iter().any(|(_, point)| point.kind == Kind::Admit));
    let is_ready =
        |id: u64| move |(node, point): &(u64, Point)| *node == id && point.kind == Kind::Ready;
    assert!(late.iter().all(|id| phases.iter().any(is_ready(*id))));
    let drill = (flow.reach)(None);
    for id in late {
        let asks = drill.points(*id, 0);
        phases.extend(
            asks.filter(|(_, point)| point.kind == Kind::Join && point.nth < FOUNDERS.len()),
        );
    }
    drop(drill);
    flow.assert_costs_nothing(&phases);
}

#[test]
fn a_node_is_killed_while_one_joins() {
    assert_joins(&[6], config(3, 1), AVERAGE);
    // The next leader.
    assert_joins(&[1], config(3, 2), SLOW + TAU);
}

#[test]
fn a_node_is_killed_while_two_join() {
    assert_joins(&[1, 6], config(3, 1), AVERAGE);
}

#[test]
fn a_node_is_killed_while_one_joins_in_an_encoded_round() {
    let config = Config {
        round_wire: WireType::Int8,
        ..config(3, 1)
    };
    assert_joins(&[9], config, SLOW + TAU);
}

/// Two nodes become eight and eight become three while they train, one by one or together.
#[test]
fn two_nodes_become_eight_and_eight_become_three() {
    let founders = [4, 9];
    let later = [1, 2, 6, 7, 11, 12];
    let mut cases = Vec::new();
    for (replicas, stay) in [(0, [4, 9, 11]), (1, [1, 6, 12]), (2, [2, 4, 7])] {
        cases.extend([false, true].map(|together| (replicas, stay, together)));
    }
    each(&cases, |(replicas, stay, together)| {
        let drill = Drill::new(&founders, &later, config(2, *replicas), None);
        drill.until_round(4);
        let mut members = founders.to_vec();
        for id in later {
            drill.start(id);
            members.push(id);
            members.sort_unstable();
            if !together {
                drill.until_steady(&members, 3);
            }
        }
        drill.until_steady(&members, 3);
        for id in members.clone() {
            if stay.contains(&id) {
                continue;
            }
            drill.drain(id);
            members.retain(|member| *member != id);
            if !together {
                drill.until_steady(&members, 3);
            }
        }
        let cost = drill.finish(stay);
        assert_eq!(cost, 0, "whoever leaves in order takes nothing along");
        true
    });
}
