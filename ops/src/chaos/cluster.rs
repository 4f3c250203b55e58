//! The node processes of a run, and the settings that make them write traces and announce the link
//! emulator's addresses.

use super::ChaosError;
use super::disks::Disks;
use crate::processes::{ADVERTISE, Group, LISTEN, Plan, TRACE};
use slowmo::Config;
use slowmo_chaos::processes::relay::Relay;
use slowmo_chaos::processes::scenario::Scenario;
use slowmo_chaos::processes::schedule::span;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::Span;
use slowmo_protocol::trace::Setup;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Variable that names the folder of a node's checkpoints.
const CHECKPOINTS: &str = "SLOWMO_CHECKPOINTS";

/// Variable that names a node's group.
const GROUP: &str = "SLOWMO_GROUP";

/// How values travel between nodes of one machine.
const SAME_HOST: &str = "SLOWMO_SAME_HOST";

/// The program, scenario and seed of a run.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The shape of the cluster and its faults.
    pub scenario: Scenario,
    /// Seed of the schedule and the links.
    pub seed: u64,
    /// The training binary.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Orders {
    /// Time from the moment when all bootstrap members train to the last fault.
    #[must_use]
    pub fn duration(&self) -> Span {
        span(self.scenario.duration_s)
    }

    /// All ids that a node of the run may have.
    #[must_use]
    pub fn ids(&self) -> Vec<NodeId> {
        (1..=self.scenario.ids_max() as u64).map(NodeId).collect()
    }

    /// The program and its arguments as one line, for people.
    #[must_use]
    pub fn command(&self) -> String {
        let words = std::iter::once(self.program.as_os_str())
            .chain(self.arguments.iter().map(OsString::as_os_str));
        words
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Settings derived from the scenario, as variables.
    fn settings(&self) -> impl Iterator<Item = (String, String)> {
        let written = self
            .scenario
            .writes_checkpoints()
            .then(|| (CHECKPOINTS.to_owned(), "disks".to_owned()));
        let settings = self
            .scenario
            .settings
            .iter()
            .map(|(key, value)| (format!("SLOWMO_{}", key.to_uppercase()), value.to_string()));
        // The emulated links carry QUIC; values that took another way would not be disturbed.
        let chosen = self.scenario.settings.contains_key("same_host")
            || std::env::var_os(SAME_HOST).is_some();
        let same_host = (!chosen).then(|| (SAME_HOST.to_owned(), "off".to_owned()));
        // Each node gets its own link to that folder.
        settings.chain(written).chain(same_host)
    }

    /// Facts that the invariants need, as the nodes will be configured: by this process's
    /// variables, the scenario and their flags.
    ///
    /// # Errors
    /// A setting is refused; the nodes would refuse it too.
    pub fn setup(&self) -> Result<Setup, ChaosError> {
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        let inherited = std::env::vars_os().map(|(name, value)| (text(&name), text(&value)));
        let mine: Vec<(String, String)> = self.settings().collect();
        let others = inherited.filter(|(name, _)| !mine.iter().any(|(known, _)| known == name));
        let variables: Vec<(String, String)> = others.chain(mine.iter().cloned()).collect();
        let config =
            Config::from_sources(None, variables.into_iter(), self.arguments.iter().map(text))?;
        Ok(Setup {
            seed: self.seed,
            quorum: config.quorum,
            replicas: config.replicas,
            groups: self.scenario.groups as u32,
            parameters: 0,
            sharded: config.sharded,
            optimizer: None,
            recovers_within: span(self.scenario.quiet_s),
            samples: None,
        })
    }

    /// Starts the bootstrap members.
    pub(super) fn start(
        &self,
        relay: &Relay,
        traces: &Path,
        disks: Option<&Disks>,
    ) -> Result<Group, ChaosError> {
        let mut plan =
            Plan::new(&self.program, self.scenario.nodes).arguments(self.arguments.iter().cloned());
        for (name, value) in self.settings() {
            plan = plan.variable(&name, value);
        }
        plan = plan.variable(TRACE, traces);
        for node in self.ids() {
            let Some((listens, announces)) = relay.addresses(node) else {
                continue;
            };
            let mut own = vec![
                (LISTEN.to_owned(), listens.to_string().into()),
                (ADVERTISE.to_owned(), announces.to_string().into()),
            ];
            // The cast is safe: ids are at most a few dozen.
            own.extend(
                disks.map(|disks| (CHECKPOINTS.to_owned(), disks.of(node.0 as usize).into())),
            );
            let group = self.scenario.group(node.0);
            own.extend(group.map(|group| (GROUP.to_owned(), group.into())));
            plan.environments.insert(node.0 as usize, own);
        }
        Ok(Group::start(&plan)?)
    }
}
