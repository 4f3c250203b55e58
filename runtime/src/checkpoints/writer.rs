//! The thread that writes this node's parts. Training never waits for it: a disk that is full or
//! slow is counted and logged.

use super::error::CheckpointError;
use super::folder::{self, Keeps, Name};
use super::history::History;
use super::manifest::{Ancestor, Header, Tensor};
use super::part::{self, Own};
use super::resumed::Resumed;
use slowmo_actors::ports::store::{Restored, Snapshot, Store};
use slowmo_actors::status::{Checkpointing, StatusBoard};
use slowmo_protocol::checkpoint::replaces;
use slowmo_protocol::coordinator::{Origin, Outcome};
use slowmo_protocol::ident::{Lineage, NodeId, Step};
use slowmo_protocol::sampler::{DecidedRound, samples_until};
use slowmo_protocol::trace::Start;
use slowmo_protocol::view::Member;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest word that training code may add to a checkpoint.
pub const CURSOR_BYTES_MAX: usize = 64 << 10;
/// Parts with which a node that joined looks for what the history goes on from; where nobody knows,
/// or it began anew, that stays.
pub const ANCESTRY_ASKS_MAX: u32 = 4;
/// Parts that are written before one more checkpoint is kept again, after the disk was full.
pub const ROOM_TRIED_AFTER: u32 = 8;
/// Checkpoints in a row that did not become whole when that is first told as a warning, and then
/// whenever they are twice as many.
pub const NOT_WHOLE_TOLD: u64 = 3;
/// How long a node that ends waits for its last part to be written.
pub const FLUSH_WAIT_MAX: Duration = Duration::from_secs(60);

/// Where a node's checkpoints go, and what its founding goes on from.
#[derive(Debug)]
pub struct Checkpoints {
    shared: Option<Arc<Shared>>,
    resumed: Option<Arc<Resumed>>,
    origin: Origin,
}

/// What the node and the thread share.
#[derive(Debug)]
struct Shared {
    settings: WriterSettings,
    board: Arc<StatusBoard>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a writer needs to know.
#[derive(Clone, Debug)]
pub struct WriterSettings {
    /// Which node, which start.
    pub start: Start,
    /// The folder of all checkpoints.
    pub folder: PathBuf,
    /// Whole checkpoints that are kept.
    pub keep_last: usize,
    /// Inner steps from one checkpoint to the next.
    pub spacing: u64,
    /// The outer optimizer.
    pub outer: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Option<Snapshot>,
    writing: bool,
    ends: bool,
    tensors: Vec<Tensor>,
    cursor: Option<String>,
    /// The founding whose history is written, and its lineage once that is known.
    bootstrap: (u32, Option<Lineage>),
    /// What that goes on from, as far as this node knows.
    ancestors: Vec<Ancestor>,
    /// How often it still looks for them in the others' parts: never where it founded the history
    /// itself.
    asks_left: u32,
    /// How many fewer whole checkpoints are kept for want of room, and the parts that were written
    /// since there was none.
    lacks: usize,
    since_full: u32,
    /// The steps behind the first checkpoint that was due, and the last.
    due: Option<(u64, u64)>,
    /// As many as did not become whole in a row are told as a warning; 0 for [`NOT_WHOLE_TOLD`].
    warns_at: u64,
    told: Checkpointing,
}

impl Checkpoints {
    /// Keeps nothing.
    #[must_use]
    pub fn none() -> Self {
        Self {
            shared: None,
            resumed: None,
            origin: Origin::default(),
        }
    }

    /// Founds the `run`th history of the folder, goes on from `resumed`, and writes if `settings`
    /// say where.
    ///
    /// # Errors
    /// The system gives no thread.
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
        });
        let writer = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("slowmo-checkpoints".to_owned())
            .spawn(move || writer.run())?;
        Ok(Self {
            shared: Some(shared),
            resumed,
            origin,
        })
    }

    /// Whether anything is written.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.shared.is_some()
    }

    /// What the founding goes on from.
    #[must_use]
    pub fn resumed(&self) -> Option<&Arc<Resumed>> {
        self.resumed.as_ref()
    }

    /// Names the model's tensors, for whoever exports a checkpoint.
    pub fn describe(&self, tensors: Vec<Tensor>) {
        if let Some(shared) = &self.shared {
            shared.lock().tensors = tensors;
        }
    }

    /// A word of the training code's own that goes with every later part.
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
        state.due = Some((state.due.map_or(step, |(first, _)| first), step));
        shared.count(&mut state);
        shared.tell(&state);
        let waiting = state
            .waiting
            .as_ref()
            .map(|waiting| waiting.outcome.spec.next_step());
        if waiting.is_none_or(|waiting| replaces(Step(step), waiting, shared.settings.spacing)) {
            state.waiting = Some(snapshot);
        }
        if waiting.is_some() {
            state.told.skipped += 1;
            shared.tell(&state);
            tracing::warn!(
                "a checkpoint was not begun when the next came: the disk is too slow for checkpoint_every"
            );
        }
        shared.changed.notify_all();
    }

    fn flush(&self) {
        let Some(shared) = &self.shared else { return };
        let busy = |state: &mut State| state.waiting.is_some() || state.writing;
        let waited = shared
            .changed
            .wait_timeout_while(shared.lock(), FLUSH_WAIT_MAX, busy)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.1.timed_out() {
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
            // The values go before anybody hears of it: whoever waits may need their memory.
            drop(snapshot);
            let known = self.lock().told.whole_step;
            let whole = folder::newest_step(&self.settings.folder, &history, known).unwrap_or_else(
                |error| {
                    tracing::debug!(%error, "which checkpoint is whole is not known");
                    None
                },
            );
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
                    tracing::error!(%error, step = header.step, "this node's part of a checkpoint was not written: training goes on");
                    state.told.failed += 1;
                    state.told.error = Some(error.to_string());
                }
            }
            self.tell(&state);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for what is to be written; `None` when the node is gone.
    fn next(&self) -> Option<(Snapshot, Vec<Tensor>, Option<String>)> {
        let idle = |state: &mut State| state.waiting.is_none() && !state.ends;
        let mut state = self
            .changed
            .wait_while(self.lock(), idle)
            .unwrap_or_else(PoisonError::into_inner);
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

    /// How many checkpoints that were due did not become whole since the newest that did. That is
    /// told once, and when they are twice as many.
    fn count(&self, state: &mut State) {
        let Some((first, last)) = state.due else {
            return;
        };
        let before = state
            .told
            .whole_step
            .unwrap_or(first.saturating_sub(self.settings.spacing));
        let not_whole = last
            .saturating_sub(before)
            .checked_div(self.settings.spacing)
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
                "checkpoints do not become whole: a node's disk is full or slow, see its status"
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
        let WriterSettings {
            start,
            folder,
            spacing,
            ..
        } = &self.settings;
        let own = Own {
            start: *start,
            cursor,
            ancestors: history.ancestors.clone(),
        };
        let written = part::write(
            &folder.join(Name::of(header).to_string()),
            header,
            own,
            snapshot,
        );
        let keep = self.keeps(written.as_ref().err());
        // One node looks after what is old; where it dies, the next lowest does so next time.
        // Whoever found no room makes some.
        let looks_after =
            header.members.first() == Some(&start.node.0) || keep < self.settings.keep_last;
        if looks_after
            && let Err(error) = folder::prune(
                folder,
                Keeps {
                    whole: keep,
                    spacing: *spacing,
                },
                history,
            )
        {
            tracing::warn!(%error, "an old checkpoint was not removed");
        }
        Ok(written?.bytes)
    }

    /// How many whole checkpoints are kept now. While one is written it needs room beside them:
    /// where the disk has none, one fewer is kept after every failure, down to one, and one more
    /// again after some that were written.
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

    /// The history of what is written. A node that joined learns from the others' parts what it
    /// goes on from, once there are any.
    fn history(&self, header: &Header) -> History {
        let run = header.run;
        let lineage = header.lineage();
        let mut state = self.lock();
        let known = (state.bootstrap == (run, None))
            || matches!(state.bootstrap, (of, Some(before)) if of == run && before.is_akin(lineage));
        state.bootstrap = (run, Some(lineage));
        if !known {
            state.ancestors = Vec::new();
            state.asks_left = ANCESTRY_ASKS_MAX;
        }
        let ancestors = state.ancestors.clone();
        // The first in a folder goes on from nothing.
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
            folder::ancestors_of(&self.settings.folder, run, lineage).unwrap_or_else(|error| {
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which samples are left after a round, if the training follows an elastic sampler.
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
