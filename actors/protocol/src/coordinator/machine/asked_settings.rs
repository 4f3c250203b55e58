//! Changes of settings that members ask for: the next entry decides them.

use super::Coordinator;
use crate::changeable::{ChangedSettings, SettingValues};
use crate::coordinator::events::{Effect, MemberOrder, capped_grace};
use crate::coordinator::outcome::{Outcome, RoundKind, RoundSpec};
use crate::ident::NodeId;
use crate::machine::Outbox;
use crate::time::Span;
use crate::wire::Message;

/// Changes that no entry has decided yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct AskedSettings {
    /// The values that members ask for, as far as this node heard; of two values, the one heard
    /// last.
    heard: SettingValues,
    /// [`ChangedSettings::number`] of the history in which they ask.
    number: u32,
    /// The values that this node asks for. A value is asked for until it, or another value of the
    /// same setting, is decided.
    own: SettingValues,
}

impl Coordinator {
    /// The settings that the entries of the history changed.
    #[must_use]
    pub fn changed_settings(&self) -> ChangedSettings {
        self.history
            .as_ref()
            .map_or_else(ChangedSettings::default, |history| history.changed)
    }

    /// Time that a round waits for a live straggler.
    #[must_use]
    pub fn grace(&self) -> Span {
        let changed = self.changed_settings().values.grace();
        changed.map_or(self.settings.grace, |grace| {
            capped_grace(grace, self.settings.round_timeout)
        })
    }

    /// This node asks for a change, and tells every member, since any of them may lead next.
    pub(super) fn ask_for_settings(&mut self, values: SettingValues, out: &mut Outbox<Effect>) {
        self.asked_settings.own = values.or(self.asked_settings.own);
        self.tell_own_settings(out);
    }

    /// Notes what a member asks for. An order is void once an entry changed settings: whoever gave
    /// it and does not find it decided gives it again. So nobody needs to know an order's age.
    pub(super) fn note_settings_asked(
        &mut self,
        by: NodeId,
        number: u32,
        values: SettingValues,
        out: &mut Outbox<Effect>,
    ) {
        let current = self.changed_settings().number;
        // The sender may know of an entry that this node has still to apply.
        let next = current.saturating_add(1);
        let asked = &mut self.asked_settings;
        if number != current && number != next || asked.number == next && number < next {
            return;
        }
        if number != asked.number {
            asked.number = number;
            asked.heard = SettingValues::default();
        }
        let heard = values.or(asked.heard);
        let is_news = heard != asked.heard;
        asked.heard = heard;
        if is_news && by != self.me() {
            out.push(Effect::Ordered(by, MemberOrder::Settings(values)));
        }
    }

    /// The settings after an entry of this node. Entries that nobody may have missed without
    /// rejoining decide them: those that bring parameters.
    pub(super) fn settings_after(&self, spec: RoundSpec) -> ChangedSettings {
        let before = self.changed_settings();
        let AskedSettings { heard, number, .. } = self.asked_settings;
        let wanted = heard.unlike(before.values);
        let decides = spec.carries_parameters() && spec.kind != RoundKind::Bootstrap;
        if !decides || number != before.number || wanted.is_empty() {
            return before;
        }
        ChangedSettings {
            number: before.number.saturating_add(1),
            round: self.place().round,
            values: wanted.or(before.values),
        }
    }

    /// An entry was applied: what it decided is no longer asked for.
    pub(super) fn settings_decided(
        &mut self,
        before: ChangedSettings,
        outcome: &Outcome,
        out: &mut Outbox<Effect>,
    ) {
        let decided = outcome.changed.values;
        let own = self.asked_settings.own;
        self.asked_settings.own = own.without(decided.unlike(before.values)).unlike(decided);
        self.tell_own_settings(out);
    }

    /// Tells every member what this node asks for, since members may have come that do not know.
    fn tell_own_settings(&mut self, out: &mut Outbox<Effect>) {
        let values = self.asked_settings.own;
        let members: Vec<NodeId> = self
            .view()
            .into_iter()
            .flat_map(|view| view.ids())
            .collect();
        if values.is_empty() || members.is_empty() {
            return;
        }
        let number = self.changed_settings().number;
        self.note_settings_asked(self.me(), number, values, out);
        self.broadcast(members, &Message::AskSettings { number, values }, out);
    }
}
