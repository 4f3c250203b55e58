//! Builds the parts of a node from its configuration: settings, recorder, checkpoints.

use crate::ConfigError;
use crate::checkpoints::{
    self, CheckpointError, Checkpoints, Resumed, Trust, TrustedFolder, WriterSettings,
};
use crate::config::{Config, GroupName, Resume, ResumeSampler};
use crate::error::SpawnError;
use crate::executor::beside;
use crate::launcher;
use crate::marker::Marker;
use crate::recorder::FileRecorder;
use slowmo_actors::context::NodeSettings;
use slowmo_actors::ports::recorder::{NoRecorder, Recorder};
use slowmo_actors::status::StatusBoard;
use slowmo_protocol::checkpoint::Points;
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::membership::settings::BOOTSTRAP_KEYS;
use slowmo_protocol::trace::Start;
use std::sync::Arc;
use std::time::Duration;

/// The destination of checkpoints, and the one that a bootstrap continues from: read and verified
/// before any other node is contacted.
pub(super) async fn checkpoints_of(
    config: &Config,
    (node, incarnation): (NodeId, Incarnation),
    trust: Trust,
    board: &Arc<StatusBoard>,
) -> Result<Arc<Checkpoints>, SpawnError> {
    let Some(folder) = config.checkpoints.clone() else {
        if config.resume == Resume::Required && !config.join && config.lineage.is_none() {
            return Err(ConfigError::NothingToResume.into());
        }
        return Ok(Arc::new(Checkpoints::none()));
    };
    let algorithm = config.algorithm()?;
    let outer = algorithm.outer.map(|_| config.outer_name());
    let settings = config.checkpoint_every.map(|every| WriterSettings {
        start: Start { node, incarnation },
        folder: folder.clone(),
        keep_last: config.checkpoint_keep_last,
        points: Points::all(&algorithm).every(every),
        outer: outer.clone(),
        trust: trust.clone(),
    });
    if settings.is_none() {
        let only_read = "checkpoint_every is off: this node resumes from checkpoints and writes none, \
                         neither on demand nor at the end";
        tracing::warn!("{only_read}");
        board.event(only_read.to_owned());
    }
    let writes = settings.is_some();
    let shown = folder.display().to_string();
    // A node that joins continues from the others, who also tell it the run number of their
    // bootstrap.
    let may_bootstrap = !config.join && config.lineage.is_none();
    let resume = config.resume.clone();
    if may_bootstrap && resume != Resume::None {
        let what = format!(
            "reads and verifies the checkpoint to resume from in {}",
            folder.display()
        );
        board.event(what.clone());
        board.starting(Some(format!("it {what}")));
    }
    let read = beside(move || {
        if writes {
            checkpoints::check_writable(&folder)?;
        }
        if !may_bootstrap {
            return Ok((None, 0));
        }
        let trusted = TrustedFolder {
            folder: &folder,
            trust: &trust,
        };
        let resumed = match resume {
            Resume::None => checkpoints::warn_of_others(trusted, None).map(|()| None),
            Resume::Newest => Resumed::newest(trusted, outer.as_deref()),
            Resume::Required => match Resumed::newest(trusted, outer.as_deref())? {
                None => Err(CheckpointError::NoneComplete(folder.clone())),
                found => Ok(found),
            },
            Resume::Named(name) => Resumed::named(trusted, name, outer.as_deref()).map(Some),
        };
        Ok::<_, CheckpointError>((resumed?, checkpoints::next_run(trusted)?))
    });
    let (resumed, run) = read.await??;
    if may_bootstrap && resumed.is_none() && config.resume == Resume::Newest {
        let none = format!(
            "there is no complete checkpoint in {shown}: a bootstrap begins with the given \
             parameters"
        );
        // A first run of a training has none either.
        if writes {
            tracing::info!("{none}");
        } else {
            tracing::warn!("{none}");
        }
        board.event(none);
    }
    let anew = config.resume_sampler == ResumeSampler::Reset;
    let checkpoints = Checkpoints::new(settings, resumed, run, Arc::clone(board));
    checkpoints
        .map(|checkpoints| Arc::new(checkpoints.beginning_samples_anew(anew)))
        .map_err(|error| SpawnError::System(error.to_string()))
}

/// The recorder of the node's events: a file if the configuration names a folder.
pub(super) fn recorder_of(
    config: &Config,
    (node, incarnation): (NodeId, Incarnation),
) -> Result<Arc<dyn Recorder>, SpawnError> {
    let trace = config.trace.as_deref();
    let flight = config.flight.as_deref();
    let Some(folder) = trace.or(flight) else {
        return Ok(Arc::new(NoRecorder));
    };
    let opened = FileRecorder::of(trace, flight, Start { node, incarnation });
    opened
        .map(|recorder| Arc::new(recorder) as Arc<dyn Recorder>)
        .map_err(|error| SpawnError::Trace {
            folder: folder.to_owned(),
            error,
        })
}

/// The settings that this node compares with others. One that only joins never bootstraps, so its
/// keys of a bootstrap are not compared.
fn compared_settings(config: &Config) -> String {
    let only_joins = config.join || config.lineage.is_some();
    let concerns = |line: &&str| {
        let key = line.split(" =").next().unwrap_or_default();
        !(only_joins && BOOTSTRAP_KEYS.contains(&key))
    };
    let shared = config.shared_settings();
    let lines = shared.lines().filter(concerns);
    lines.map(|line| format!("{line}\n")).collect()
}

pub(super) fn settings(config: &Config, identity: Identity) -> Result<NodeSettings, SpawnError> {
    Ok(NodeSettings {
        identity,
        algorithm: config.algorithm()?,
        replicas: config.replicas,
        checkpoint_every: config.checkpoint_every.unwrap_or(0),
        workers: usize::from(config.devices),
        group: config.group.as_ref().map(GroupName::id).unwrap_or_default(),
        min_nodes: config.min_nodes,
        shared: compared_settings(config),
        max_nodes: config.max_nodes,
        // A node that brings a history's state must not bootstrap another one.
        join: config.join || config.lineage.is_some(),
        bootstrap: config.bootstrap,
        restarted: Marker::new(config.marker.clone()).exists(),
        lineage: config.lineage,
        quorum: config.quorum,
        joiner_buffers: config.joiner_buffers,
        on_quorum_loss: config.on_quorum_loss,
        fork_after: Duration::from_millis(config.fork_after_ms),
        on_momentum_loss: config.on_momentum_loss,
        grace: Duration::from_millis(config.grace_ms),
        probe_interval: Duration::from_millis(config.probe_interval_ms),
        suspect: Duration::from_millis(config.suspect_ms),
        connect_timeout: config.connect_timeout(),
        rejoin_timeout: Duration::from_millis(config.rejoin_timeout_ms),
        meet_timeout: config.meet_timeout(launcher::has_started_this()),
        round_timeout: config.round_timeout(),
    })
}
