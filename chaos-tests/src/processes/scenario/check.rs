//! Checks that a scenario's values make sense.

use super::{
    ACTIONS_MAX, Action, Expect, Group, GroupWord, NODES_MAX, Quality, SECONDS_MAX, Scenario, Time,
    Who,
};
use slowmo::Config;

/// Longest delay of a link, in milliseconds.
const DELAY_MS_MAX: f64 = 60_000.0;
/// Rate of the fastest limited link, in megabits per second.
const MBIT_MAX: f64 = 1e6;
/// Maximum number of random actions per hour.
const PER_HOUR_MAX: f64 = 36_000.0;

type Checked = Result<(), String>;

impl Scenario {
    pub(super) fn check(&self) -> Checked {
        let nodes = self.nodes;
        let most = self.ids_max();
        ensure((1..=NODES_MAX).contains(&nodes), || {
            format!("nodes = {nodes}: 1 to {NODES_MAX} are possible")
        })?;
        ensure((nodes..=NODES_MAX).contains(&most), || {
            format!("nodes_max = {most}: {nodes} (nodes) to {NODES_MAX} are possible")
        })?;
        ensure((1..=nodes).contains(&self.groups), || {
            format!(
                "groups = {}: 1 to {nodes} (nodes) are possible",
                self.groups
            )
        })?;
        ensure(self.untouched_min() <= most, || {
            format!(
                "at_least = {}: there are never more than {most} nodes",
                self.untouched_min()
            )
        })?;
        for (name, seconds, least) in [
            ("duration_s", self.duration_s, 0.1),
            ("warm_up_s", self.warm_up_s, 0.0),
            ("quiet_s", self.quiet_s, 0.0),
        ] {
            let fits = (least..=SECONDS_MAX).contains(&seconds);
            ensure(fits, || {
                format!("{name} = {seconds}: {least} to {SECONDS_MAX} seconds are possible")
            })?;
        }
        self.ids("spared", &self.spared)?;
        self.check_settings()?;
        quality("links", &self.links)?;
        self.check_actions()?;
        self.expect.check()
    }

    fn check_settings(&self) -> Checked {
        let mut config = Config::default();
        for (key, value) in &self.settings {
            let ours = [
                "node_id",
                "listen",
                "advertise",
                "peers",
                "rendezvous",
                "min_nodes",
                "join",
                "trace",
                "admin",
            ];
            let is_ours = ours.contains(&key.as_str()) || (key == "group" && self.groups > 1);
            ensure(!is_ours, || {
                format!("settings: {key} is set by the run itself")
            })?;
            config
                .set(key, &value.to_string())
                .map_err(|error| format!("settings: {error}"))?;
        }
        Ok(())
    }

    fn check_actions(&self) -> Checked {
        let recurring: usize = self
            .random
            .iter()
            .map(|recurring| recurring.choose.len())
            .sum();
        let all = self.script.len() + recurring;
        ensure(all <= ACTIONS_MAX, || {
            format!("{all} actions: {ACTIONS_MAX} are possible")
        })?;
        for (index, scripted) in self.script.iter().enumerate() {
            let place = format!("script {}", index + 1);
            seconds(&place, "at_s", scripted.at_s)?;
            ensure((1..=ACTIONS_MAX).contains(&scripted.times), || {
                format!("{place}: times = {}: 1 to {ACTIONS_MAX}", scripted.times)
            })?;
            ensure(scripted.times == 1 || scripted.every_s.is_some(), || {
                format!("{place}: times wants every_s")
            })?;
            ensure(scripted.every_s.is_none_or(|every| every > 0.0), || {
                format!("{place}: every_s must be above 0")
            })?;
            self.check_action(&place, &scripted.action)?;
        }
        for (index, recurring) in self.random.iter().enumerate() {
            let place = format!("random {}", index + 1);
            match (recurring.per_hour, recurring.between_s) {
                (Some(rate), None) => {
                    ensure(rate > 0.0 && rate <= PER_HOUR_MAX, || {
                        format!("{place}: per_hour = {rate}: above 0, {PER_HOUR_MAX} at most")
                    })?;
                }
                (None, Some([from, to])) => {
                    ensure(from >= 0.1 && from <= to && to <= SECONDS_MAX, || {
                        format!("{place}: between_s = [{from}, {to}]: 0.1 at least, ascending")
                    })?;
                }
                _ => return Err(format!("{place}: wants one of per_hour, between_s")),
            }
            let weights: u64 = recurring
                .choose
                .iter()
                .map(|choice| choice.weight.min(1 << 20))
                .sum();
            ensure(weights > 0, || {
                format!("{place}: choose wants an action whose weight is not 0")
            })?;
            recurring
                .choose
                .iter()
                .try_for_each(|choice| self.check_action(&place, &choice.action))?;
        }
        Ok(())
    }

    fn check_action(&self, place: &str, action: &Action) -> Checked {
        match action {
            Action::Kill { who, for_s } | Action::Drain { who, for_s } => {
                self.who(place, who)?;
                for_s.iter().try_for_each(|time| check_time(place, time))
            }
            Action::FullDisk { .. } if !self.writes_checkpoints() => Err(format!(
                "{place}: full_disk wants checkpoints: give checkpoint_every in [settings]"
            )),
            Action::Pause { who, for_s } | Action::FullDisk { who, for_s } => {
                self.who(place, who)?;
                check_time(place, for_s)
            }
            Action::Start { count } => {
                let most = self.ids_max();
                ensure((1..=most).contains(count), || {
                    format!("{place}: count = {count}: 1 to {most} (nodes_max) are possible")
                })
            }
            Action::Cut {
                from, to, for_s, ..
            } => self.between(place, from, to, for_s),
            &Action::Link {
                ref from,
                ref to,
                ref for_s,
                delay_ms,
                jitter_ms,
                loss,
                doubled,
                mbit_per_s,
                ..
            } => {
                quality(
                    place,
                    &Quality {
                        delay_ms,
                        jitter_ms,
                        loss,
                        doubled,
                        mbit_per_s,
                    },
                )?;
                self.between(place, from, to, for_s)
            }
        }
    }

    fn between(&self, place: &str, from: &Group, to: &Group, for_s: &Time) -> Checked {
        for group in [from, to] {
            if let Group::Ids(ids) = group {
                ensure(!ids.is_empty(), || {
                    format!("{place}: a side of a link has no node")
                })?;
                self.ids(place, ids)?;
            }
        }
        let others = Group::Word(GroupWord::Others);
        ensure(!(*from == others && *to == others), || {
            format!("{place}: both sides are 'others'")
        })?;
        check_time(place, for_s)
    }

    fn who(&self, place: &str, who: &Who) -> Checked {
        match who {
            Who::Id(id) => self.ids(place, &[*id]),
            Who::Word(_) => Ok(()),
        }
    }

    fn ids(&self, place: &str, ids: &[u64]) -> Checked {
        let most = self.ids_max() as u64;
        let wrong = ids.iter().find(|id| !(1..=most).contains(id));
        wrong.map_or(Ok(()), |id| {
            Err(format!(
                "{place}: there is never a node {id}; ids are 1 to {most}"
            ))
        })
    }
}

impl Expect {
    fn check(&self) -> Checked {
        let shares = [
            ("throughput", self.throughput),
            ("contributing", self.contributing),
            ("memory_growth", self.memory_growth),
            ("descriptor_growth", self.descriptor_growth),
        ];
        for (name, share) in shares {
            ensure(
                share.is_none_or(|share| (0.0..=2.0).contains(&share)),
                || format!("expect: {name} is a share, like 0.97"),
            )?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

fn seconds(place: &str, name: &str, seconds: f64) -> Checked {
    ensure((0.0..=SECONDS_MAX).contains(&seconds), || {
        format!("{place}: {name} = {seconds}: 0 to {SECONDS_MAX} seconds are possible")
    })
}

fn check_time(place: &str, time: &Time) -> Checked {
    match *time {
        Time::Fixed(fixed) => seconds(place, "for_s", fixed),
        Time::Range([from, to]) => {
            seconds(place, "for_s", from)?;
            seconds(place, "for_s", to)?;
            ensure(from <= to, || {
                format!("{place}: for_s = [{from}, {to}] does not ascend")
            })
        }
    }
}

fn quality(place: &str, quality: &Quality) -> Checked {
    for (name, value, most) in [
        ("delay_ms", quality.delay_ms, DELAY_MS_MAX),
        ("jitter_ms", quality.jitter_ms, DELAY_MS_MAX),
        ("loss", quality.loss, 1.0),
        ("doubled", quality.doubled, 1.0),
        ("mbit_per_s", quality.mbit_per_s, MBIT_MAX),
    ] {
        ensure((0.0..=most).contains(&value), || {
            format!("{place}: {name} = {value}: 0 to {most} is possible")
        })?;
    }
    Ok(())
}
