//! The list of a model's tensors: what nodes and checkpoints compare beside the number of values.

use super::Session;
use crate::checkpoints::{Header, Kind, Tensor, unique_names};
use crate::error::SynchronizeError;
use slowmo_actors::ExchangeError;
use slowmo_actors::ports::device::{TensorError, Tensors};
use slowmo_protocol::model::{ModelSize, TensorDigests};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

/// The tensors of the model in flat order: parameters, then the model's buffers. Their names are
/// those of training code; a name that occurs again is changed.
pub(super) fn model_tensors(
    parameters: &dyn Tensors,
    buffers: &dyn Tensors,
) -> Result<Vec<Tensor>, TensorError> {
    let mut tensors = Vec::new();
    for (shapes, kind) in [
        (parameters.shapes()?, Kind::Parameter),
        (buffers.shapes()?, Kind::Buffer),
    ] {
        tensors.extend(
            shapes
                .into_iter()
                .map(|(name, shape)| Tensor { name, shape, kind }),
        );
    }
    let names = unique_names(&tensors);
    for (tensor, name) in tensors.iter_mut().zip(names) {
        tensor.name = name;
    }
    Ok(tensors)
}

/// Whether training code named a tensor. Plain slices and lists of them are `tensor 0`, `tensor 1`,
/// …, and one node may lend as one of them what another lends in pieces.
fn has_name(tensor: &Tensor) -> bool {
    let name = tensor.name.strip_prefix("buffer.").unwrap_or(&tensor.name);
    !name.starts_with("tensor ")
}

/// Digests of the names, dimensions, kinds and order of the tensors; none if no tensor has a name.
/// Nodes whose digests differ do not train together: their models may have as many values, but not
/// the same ones.
pub(super) fn digests_of(tensors: &[Tensor]) -> TensorDigests {
    let mut digests = TensorDigests::default();
    if !tensors.iter().any(has_name) {
        return digests;
    }
    let mut digest = Xxh3::new();
    for Tensor { name, shape, kind } in tensors {
        // Lengths come first, so that no two lists give the same bytes.
        digest.update(&[u8::from(*kind == Kind::Buffer)]);
        digest.update(&(name.len() as u64).to_le_bytes());
        digest.update(name.as_bytes());
        digest.update(&(shape.len() as u64).to_le_bytes());
        for dimension in shape {
            digest.update(&(*dimension as u64).to_le_bytes());
        }
        digests.add(digest.digest());
    }
    digests
}

/// Names this node's tensors among which the first is that differs, if that is why it got into no
/// view.
pub(super) fn with_tensors(error: ExchangeError, own: &[Tensor]) -> SynchronizeError {
    let range = match &error {
        ExchangeError::Bootstrapping(error) => error.other_tensors(),
        _ => None,
    };
    let Some(range) = range else {
        return SynchronizeError::Exchange(error);
    };
    let before = (*range.start() as usize).saturating_sub(1).min(own.len());
    let end = (*range.end() as usize).clamp(before, own.len());
    let here = match &own[before..end] {
        [] => format!("this node has only {} tensors", own.len()),
        tensors => format!("here: {}", list_of(tensors)),
    };
    SynchronizeError::OtherModel { error, here }
}

impl Session {
    /// Tells the log and the checkpoints the model's tensors, whose names differ.
    pub(super) fn describe(&self, tensors: &[Tensor], model: ModelSize) {
        if self.index != 0 {
            return;
        }
        tracing::debug!(%model, "this node trains {}", list_of(tensors));
        if self.node.checkpoints().writes() {
            self.node.checkpoints().describe(tensors.to_vec());
        }
    }
}

/// Compares a checkpoint's tensors with this training's, in their order. Tensors in another order,
/// or with other numbers of values, would get each other's values: that is refused. If only names
/// or dimensions differ, and no name moved to another place, these may be the same tensors: that is
/// a warning.
pub(super) fn compare_tensors(header: &Header, own: &[Tensor]) -> Result<(), SynchronizeError> {
    let kept = &header.tensors;
    let have_names = |tensors: &[Tensor]| tensors.iter().all(has_name);
    if !have_names(kept) || !have_names(own) {
        return Ok(());
    }
    let as_large =
        |kept: &Tensor, own: &Tensor| (kept.kind, kept.elements()) == (own.kind, own.elements());
    let first = |same: &dyn Fn(&Tensor, &Tensor) -> bool| {
        (0..kept.len().max(own.len())).find(|at| {
            let pair = kept.get(*at).zip(own.get(*at));
            !pair.is_some_and(|(kept, own)| same(kept, own))
        })
    };
    let same = |kept: &Tensor, own: &Tensor| as_large(kept, own) && kept == own;
    let Some(other) = first(&same) else {
        return Ok(());
    };
    let places: BTreeMap<&str, usize> = places_of(kept);
    let moved = places_of(own)
        .into_iter()
        .filter(|(name, at)| places.get(name).is_some_and(|place| place != at))
        .map(|(_, at)| at)
        .min();
    let refused = first(&as_large).or(moved);
    let at = refused.unwrap_or(other);
    let told = |tensor: Option<&Tensor>| {
        tensor.map_or("no tensor".to_owned(), |tensor| {
            format!("{} {:?}", tensor.name, tensor.shape)
        })
    };
    let (in_checkpoint, lent) = (told(kept.get(at)), told(own.get(at)));
    let step = header.step;
    // Counted from 1, as where nodes lend other tensors.
    let number = at + 1;
    if refused.is_some() {
        return Err(SynchronizeError::Checkpoint(format!(
            "tensor number {number} of the checkpoint of step {step} is {in_checkpoint}, this \
             training lends {lent} there: lend the same tensors in the same order, or begin anew \
             with another folder (key checkpoints) or with resume = none"
        )));
    }
    tracing::warn!(
        step,
        in_checkpoint,
        lent,
        "the checkpoint's tensor number {number} has another name or shape: its values go to this \
         training's tensors in order, which is right only if these are the same tensors"
    );
    Ok(())
}

/// The index of each name.
fn places_of(tensors: &[Tensor]) -> BTreeMap<&str, usize> {
    tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| (tensor.name.as_str(), at))
        .collect()
}

/// A list of tensors for the log, cut where it becomes long.
fn list_of(tensors: &[Tensor]) -> String {
    /// The most tensors in the list.
    const LISTED_MAX: usize = 1_000;
    let listed = tensors.iter().take(LISTED_MAX);
    let mut list: Vec<String> = listed
        .map(|tensor| format!("{} {:?}", tensor.name, tensor.shape))
        .collect();
    if let Some(more @ 1..) = tensors.len().checked_sub(LISTED_MAX) {
        list.push(format!("and {more} more"));
    }
    list.join(", ")
}
