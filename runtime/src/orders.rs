//! Orders to the whole cluster that the training or an operator gives to one node.

use crate::changes::{self, SettingError};
use crate::error::WorkerError;
use slowmo_actors::context::NodeContext;
use slowmo_actors::status::MemberState;
use slowmo_protocol::checkpoint::Points;
use slowmo_protocol::coordinator::In;

/// Asks for a checkpoint of the state after the next outer round that has not begun.
///
/// # Errors
/// This node writes none, or is not a member. Nothing was changed.
pub(crate) fn ask_for_checkpoint(context: &NodeContext) -> Result<(), WorkerError> {
    let settings = &context.settings;
    if !context.store.keeps() || settings.checkpoint_every == 0 {
        return Err(WorkerError::CheckpointsOff);
    }
    if Points::of(&settings.algorithm).is_none() {
        return Err(WorkerError::NeverAlike);
    }
    if context.status.read().standing != MemberState::Member {
        return Err(WorkerError::NotAMember);
    }
    context.actors.tell(In::AskCheckpoint);
    Ok(())
}

/// Asks for another value of a setting, from the next round with parameters on.
///
/// # Errors
/// The key or the value is refused, or this node is not a member. Nothing was changed.
pub(crate) fn set(context: &NodeContext, key: &str, value: &str) -> Result<(), SettingError> {
    let status = context.status.read();
    let values = changes::read(&context.settings, status.changed, key, value)?;
    if status.standing != MemberState::Member {
        return Err(SettingError::NotAMember);
    }
    context.actors.tell(In::AskSettings(values));
    Ok(())
}
