//! The thread that writes this node's parts of checkpoints. Training never waits for it: failures
//! and delays of a full or slow disk are counted and logged. At most one snapshot is being written
//! and one waits; [`replaces`] says which of two stays if the disk is too slow for both.

use super::error::CheckpointError;
use super::folder::{self, Keeps, TrustedFolder, Verified};
use super::history::History;
use super::manifest::{Ancestor, Header, Tensor};
use super::part::{self, Own};
use super::resumed::Resumed;
use super::trust::Trust;
use parking_lot::{Condvar, Mutex, MutexGuard};
use slowmo_actors::ports::store::{Restored, Snapshot, Store};
use slowmo_actors::status::{CheckpointStatus, StatusBoard};
use slowmo_protocol::checkpoint::{Points, replaces};
use slowmo_protocol::coordinator::{Origin, Outcome};
use slowmo_protocol::ident::{Lineage, NodeId, Step};
use slowmo_protocol::sampler::{DecidedRound, samples_until};
use slowmo_protocol::trace::Start;
use slowmo_protocol::view::Member;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Longest text (cursor) that training code may add to a checkpoint, in bytes.
pub const CURSOR_BYTES_MAX: usize = 64 << 10;
/// Number of parts for which a node that joined looks up the ancestors of its history; if none are
/// found (no node knows them, or the history began anew) the list then stays empty.
pub const ANCESTRY_ASKS_MAX: u32 = 4;
/// Number of parts written after the disk was full, before one more checkpoint is kept again.
pub const ROOM_TRIED_AFTER: u32 = 8;
/// Number of consecutive checkpoints that did not become whole at which the first warning is
/// logged; further warnings follow whenever the number has doubled.
pub const NOT_WHOLE_TOLD: u64 = 3;
/// Longest time for which a stopping node waits until its last part is written.
pub const FLUSH_WAIT_MAX: Duration = Duration::from_secs(60);

/// The destination of a node's checkpoints, and the checkpoint that its bootstrap continues from.
#[derive(Debug)]
pub struct Checkpoints {
    shared: Option<Arc<Shared>>,
    resumed: Option<Arc<Resumed>>,
    begins_samples_anew: bool,
    origin: Origin,
}

/// State shared by the node and the writer thread.
#[derive(Debug)]
struct Shared {
    settings: WriterSettings,
    board: Arc<StatusBoard>,
    state: Mutex<State>,
    changed: Condvar,
    /// Used by the writer's thread only.
    verified: Mutex<Verified>,
    after_each_part: AfterEachPart,
}

/// What the writer's thread does after each part, once it is set.
#[derive(Default)]
struct AfterEachPart(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for AfterEachPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AfterEachPart")
            .field(&self.0.get().is_some())
            .finish()
    }
}

/// Settings of a writer.
#[derive(Clone, Debug)]
pub struct WriterSettings {
    /// The node and its incarnation.
    pub start: Start,
    /// The folder of all checkpoints.
    pub folder: PathBuf,
    /// Number of whole checkpoints to keep.
    pub keep_last: usize,
    /// The rounds after which there is one, as configured.
    pub points: Points,
    /// The outer optimizer.
    pub outer: Option<String>,
    /// The trust in manifests, with the key that seals this node's.
    pub trust: Trust,
}

impl WriterSettings {
    /// Inner steps from one checkpoint to the next after an entry.
    fn spacing_after(&self, entry: &Outcome) -> u64 {
        // If no checkpoint could ever be due, the configuration or the change was refused before.
        self.points
            .changed(entry.changed.values)
            .spacing()
            .unwrap_or(1)
    }

    fn trusted(&self) -> TrustedFolder<'_> {
        TrustedFolder {
            folder: &self.folder,
            trust: &self.trust,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: Option<Snapshot>,
    /// Written if the node ends in order before another one is kept.
    held: Option<Snapshot>,
    /// Whether a round may soon make a checkpoint beside the schedule.
    expects: bool,
    writing: bool,
    ends: bool,
    tensors: Vec<Tensor>,
    cursor: Option<String>,
    /// Run number of the bootstrap whose history is written, and the history's lineage once known.
    bootstrap: (u32, Option<Lineage>),
    /// The ancestors of that history, as far as this node knows.
    ancestors: Vec<Ancestor>,
    /// Remaining lookups of the ancestors in the others' parts; always 0 if this node took part in
    /// the bootstrap of the history.
    asks_left: u32,
    /// Number by which fewer whole checkpoints are kept for want of room (`lacks`), and parts
    /// written since the disk was last full (`since_full`).
    lacks: usize,
    since_full: u32,
    /// The steps after the first and after the last checkpoint that was due.
    due: Option<(u64, u64)>,
    /// Inner steps from the last one to the next.
    spacing: u64,
    /// Number of consecutive checkpoints not whole that triggers a warning; 0 stands for
    /// [`NOT_WHOLE_TOLD`].
    warns_at: u64,
    told: CheckpointStatus,
}

impl Checkpoints {
    /// Creates a store that writes nothing.
    #[must_use]
    pub fn none() -> Self {
        Self {
            shared: None,
            resumed: None,
            begins_samples_anew: false,
            origin: Origin::default(),
        }
    }

    /// Lets a bootstrap that continues from the checkpoint begin the samples anew.
    #[must_use]
    pub fn beginning_samples_anew(mut self, anew: bool) -> Self {
        self.begins_samples_anew = anew;
        self
    }

    /// Whether a bootstrap that continues from the checkpoint begins the samples anew.
    #[must_use]
    pub fn begins_samples_anew(&self) -> bool {
        self.begins_samples_anew
    }

    /// Creates the store of the folder's `run`th history, which continues from `resumed`; it writes
    /// if `settings` are given.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(
        settings: Option<WriterSettings>,
        resumed: Option<Resumed>,
        run: u32,
        board: Arc<StatusBoard>,
    ) -> std::io::Result<Self> {
        let origin = resumed.as_ref().map_or(
            Origin {
                run,
                ..Origin::default()
            },
            |resumed| resumed.origin(run),
        );
        let resumed = resumed.map(Arc::new);
        let Some(settings) = settings else {
            return Ok(Self {
                shared: None,
                resumed,
                begins_samples_anew: false,
                origin,
            });
        };
        let ancestors = resumed
            .as_ref()
            .map(|resumed| resumed.ancestors())
            .unwrap_or_default();
        let state = State {
            bootstrap: (run, None),
            ancestors,
            ..State::default()
        };
        let shared = Arc::new(Shared {
            settings,
            board,
            state: Mutex::new(state),
            changed: Condvar::new(),
            verified: Mutex::default(),
            after_each_part: AfterEachPart::default(),
        });
        let writer = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("slowmo-checkpoints".to_owned())
            .spawn(move || writer.run())?;
        Ok(Self {
            shared: Some(shared),
            resumed,
            begins_samples_anew: false,
            origin,
        })
    }

    /// Whether this node writes checkpoints.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.shared.is_some()
    }

    /// Lets the writer's thread do this after each part, written or not, once the status tells of
    /// it. Only the first call counts.
    pub fn after_each_part(&self, then: impl Fn() + Send + Sync + 'static) {
        if let Some(shared) = &self.shared {
            _ = shared.after_each_part.0.set(Box::new(then));
        }
    }

    /// The checkpoint that the bootstrap continues from.
    #[must_use]
    pub fn resumed(&self) -> Option<&Arc<Resumed>> {
        self.resumed.as_ref()
    }

    /// Whether a round may soon make a checkpoint beside the schedule.
    #[must_use]
    pub fn expects(&self) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|shared| shared.lock().expects)
    }

    /// Names the model's tensors, for the export of a checkpoint.
    pub fn describe(&self, tensors: Vec<Tensor>) {
        if let Some(shared) = &self.shared {
            shared.lock().tensors = tensors;
        }
    }

    /// Sets an opaque text of the training code that is stored with every later part.
    pub fn set_cursor(&self, cursor: String) {
        if let Some(shared) = &self.shared {
            shared.lock().cursor = Some(cursor);
        }
    }
}

impl Store for Checkpoints {
    fn keeps(&self) -> bool {
        self.shared.is_some()
    }

    fn keep(&self, snapshot: Snapshot) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        let step = snapshot.outcome.spec.next_step().0;
        state.held = None;
        state.spacing = shared.settings.spacing_after(&snapshot.outcome);
        state.due = Some((state.due.map_or(step, |(first, _)| first), step));
        shared.count(&mut state);
        shared.tell(&state);
        let waiting = state
            .waiting
            .as_ref()
            .map(|waiting| waiting.outcome.spec.next_step());
        if waiting.is_none_or(|waiting| replaces(Step(step), waiting, state.spacing)) {
            state.waiting = Some(snapshot);
        }
        if waiting.is_some() {
            state.told.skipped += 1;
            shared.tell(&state);
            tracing::warn!("a checkpoint was skipped: the disk is too slow for checkpoint_every");
        }
        shared.changed.notify_all();
    }

    fn hold(&self, snapshot: Snapshot) {
        if let Some(shared) = &self.shared {
            shared.lock().held = Some(snapshot);
        }
    }

    fn expect(&self, soon: bool) {
        if let Some(shared) = &self.shared {
            shared.lock().expects = soon;
        }
    }

    fn end(&self, held: bool) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        let busy = |state: &mut State| state.waiting.is_some() || state.writing;
        let until = Instant::now() + FLUSH_WAIT_MAX;
        let waited = shared.changed.wait_while_until(&mut state, busy, until);
        if held
            && !waited.timed_out()
            && let Some(held) = state.held.take()
        {
            state.waiting = Some(held);
            shared.changed.notify_all();
            _ = shared.changed.wait_while_until(&mut state, busy, until);
        }
        if busy(&mut state) {
            tracing::warn!("the last checkpoint was not written in time");
        }
    }

    fn origin(&self) -> Origin {
        self.origin
    }

    fn restored(&self) -> Option<Arc<dyn Restored>> {
        self.resumed.clone().map(|resumed| resumed as _)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.lock().ends = true;
            shared.changed.notify_all();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some((snapshot, tensors, cursor)) = self.next() {
            let header = self.header(&snapshot, tensors);
            let history = self.history(&header);
            let written = self.write(&header, &history, &snapshot, cursor);
            // The values are dropped before the result is announced: a waiting thread may need
            // their memory.
            drop(snapshot);
            let known = self.lock().told.whole_step;
            let whole = folder::newest_step(self.settings.trusted(), &history, known)
                .unwrap_or_else(|error| {
                    tracing::debug!(%error, "which checkpoint is whole is not known");
                    None
                });
            let mut state = self.lock();
            state.writing = false;
            state.told.whole_step = whole.or(known);
            self.count(&mut state);
            match written {
                Ok(bytes) => {
                    state.told.written += 1;
                    state.told.last_step = Some(header.step);
                    state.told.last_bytes = bytes;
                    state.told.error = None;
                }
                Err(error) => {
                    let before = state.told.clone();
                    state.told.failed += 1;
                    state.told.error = Some(error.to_string());
                    if state.told.error_to_tell(Some(&before)).is_some() {
                        tracing::error!(
                            %error,
                            step = header.step,
                            failed = state.told.failed,
                            "this node's part of a checkpoint was not written: training continues"
                        );
                    }
                }
            }
            self.tell(&state);
            drop(state);
            if let Some(then) = self.after_each_part.0.get() {
                then();
            }
            self.changed.notify_all();
        }
    }

    /// Waits for a snapshot to write; `None` when the node is gone.
    fn next(&self) -> Option<(Snapshot, Vec<Tensor>, Option<String>)> {
        let idle = |state: &mut State| state.waiting.is_none() && !state.ends;
        let mut state = self.lock();
        self.changed.wait_while(&mut state, idle);
        let snapshot = state.waiting.take()?;
        state.writing = true;
        Some((snapshot, state.tensors.clone(), state.cursor.clone()))
    }

    fn header(&self, snapshot: &Snapshot, tensors: Vec<Tensor>) -> Header {
        let Snapshot {
            outcome,
            members_before,
            parameters,
            ..
        } = snapshot;
        let settings = &self.settings;
        Header {
            run: outcome.origin.run,
            lineage: outcome.lineage.0,
            step: outcome.spec.next_step().0,
            round: outcome.round.0,
            rounds_before: outcome.origin.rounds,
            elements: outcome.spec.elements,
            parameters: *parameters as u64,
            outer: settings.outer.clone(),
            momentum_lost: outcome
                .origin
                .momentum_lost
                .saturating_add(outcome.momentum_lost),
            members: outcome.view.ids().map(|NodeId(id)| id).collect(),
            samples: samples_left(outcome, members_before),
            tensors,
        }
    }

    /// Counts the due checkpoints that did not become whole since the newest whole one. A warning
    /// is logged once, and again whenever the count has doubled.
    fn count(&self, state: &mut State) {
        let Some((first, last)) = state.due else {
            return;
        };
        let before = state
            .told
            .whole_step
            .unwrap_or(first.saturating_sub(state.spacing));
        let not_whole = last
            .saturating_sub(before)
            .checked_div(state.spacing)
            .unwrap_or(0)
            .saturating_sub(1);
        state.told.not_whole = not_whole;
        if not_whole == 0 {
            state.warns_at = NOT_WHOLE_TOLD;
        } else if not_whole >= state.warns_at.max(NOT_WHOLE_TOLD) {
            state.warns_at = not_whole.saturating_mul(2);
            let whole_step = state.told.whole_step;
            tracing::warn!(
                not_whole,
                whole_step,
                "checkpoints stay incomplete: a node's disk is full or slow, or nodes have different \
                 folders"
            );
        }
    }

    fn write(
        &self,
        header: &Header,
        history: &History,
        snapshot: &Snapshot,
        cursor: Option<String>,
    ) -> Result<u64, CheckpointError> {
        let WriterSettings { start, folder, .. } = &self.settings;
        let own = Own {
            start: *start,
            cursor,
            ancestors: history.ancestors.clone(),
            trust: self.settings.trust.clone(),
        };
        let written = part::write(
            &folder.join(header.name().to_string()),
            header,
            own,
            snapshot,
        );
        let keep = self.keeps(written.as_ref().err());
        // Only the lowest-numbered member removes old checkpoints; if it dies, the next lowest does
        // so next time. A node that found no room removes some, too.
        let looks_after =
            header.members.first() == Some(&start.node.0) || keep < self.settings.keep_last;
        if looks_after
            && let Err(error) = folder::prune(
                self.settings.trusted(),
                Keeps {
                    whole: keep,
                    spacing: self.settings.spacing_after(&snapshot.outcome),
                },
                history,
                &mut self.verified.lock(),
            )
        {
            tracing::warn!(%error, "an old checkpoint was not removed");
        }
        Ok(written?.bytes)
    }

    /// Number of whole checkpoints to keep now. A checkpoint being written needs room beside them:
    /// if the disk has none, one fewer is kept after every failure, down to one, and one more again
    /// after [`ROOM_TRIED_AFTER`] parts were written.
    fn keeps(&self, failed: Option<&CheckpointError>) -> usize {
        let mut state = self.lock();
        match failed {
            Some(error) if error.is_full() => {
                (state.lacks, state.since_full) = (state.lacks.saturating_add(1), 0)
            }
            Some(_) => {}
            None => state.since_full = state.since_full.saturating_add(1),
        }
        if state.since_full >= ROOM_TRIED_AFTER {
            state.lacks = state.lacks.saturating_sub(1);
            state.since_full = 0;
        }
        state.lacks = state.lacks.min(self.settings.keep_last.saturating_sub(1));
        self.settings.keep_last.saturating_sub(state.lacks).max(1)
    }

    /// The history that is written. A node that joined learns its ancestors from the others' parts,
    /// once there are any.
    fn history(&self, header: &Header) -> History {
        let run = header.run;
        let lineage = header.lineage();
        let mut state = self.lock();
        let known = (state.bootstrap == (run, None))
            || matches!(
                state.bootstrap,
                (of, Some(before)) if of == run && before.is_akin(lineage)
            );
        state.bootstrap = (run, Some(lineage));
        if !known {
            state.ancestors = Vec::new();
            state.asks_left = ANCESTRY_ASKS_MAX;
        }
        let ancestors = state.ancestors.clone();
        // The first history in a folder has no ancestors.
        if !ancestors.is_empty() || run == 0 || state.asks_left == 0 {
            return History {
                run,
                lineage,
                ancestors,
            };
        }
        state.asks_left -= 1;
        drop(state);
        let found =
            folder::ancestors_of(self.settings.trusted(), run, lineage).unwrap_or_else(|error| {
                tracing::debug!(%error, "what the history goes on from is not known: that stays");
                Vec::new()
            });
        self.lock().ancestors.clone_from(&found);
        History {
            run,
            lineage,
            ancestors: found,
        }
    }

    fn tell(&self, state: &State) {
        self.board.checkpoints(state.told.clone());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The samples left after a round, if the training follows an elastic sampler.
fn samples_left(
    outcome: &Outcome,
    members: &[Member],
) -> Option<slowmo_protocol::sampler::Progress> {
    let round = DecidedRound {
        until: samples_until(&outcome.spec),
        contributors: &outcome.contributors,
        members,
    };
    outcome.samples.as_ref().map(|start| start.after(&round))
}
