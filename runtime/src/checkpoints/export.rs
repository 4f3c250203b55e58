//! Export of the model's own tensors as one safetensors file, for candle or PyTorch.

use super::checkpoint::Checkpoint;
use super::error::CheckpointError;
use super::handles::{Folder, Readers, temporary_name};
use super::manifest::{Tensor, unique_names};
use super::tensor_file::{Planned, TensorWriter};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// Writes the parameters and the model's buffers of a checkpoint into one new file, under the names
/// and with the shapes that training code gave them; of two tensors with the same name the later
/// one is renamed. Returns the number of tensors. Values are checked on the way.
///
/// # Errors
/// The file exists, the disk fails, or a part is altered. No file of that name exists then, unless
/// it existed before.
pub fn export(checkpoint: &Checkpoint, to: &Path) -> Result<usize, CheckpointError> {
    if to.exists() {
        return Err(CheckpointError::Exists(to.to_owned()));
    }
    let folder = Folder::open(to.parent().unwrap_or(Path::new(".")))?;
    let name = to.file_name().unwrap_or_default();
    let temporary = temporary_name(&name.to_string_lossy())?;
    let file = folder.create_file(&temporary, Readers::All)?;
    let written = write(checkpoint, file, &folder.path().join(&temporary)).and_then(|count| {
        folder.rename(&temporary, name)?;
        Ok(count)
    });
    if written.is_err() {
        // The file may be gone.
        _ = folder.remove_file(&temporary);
    }
    written
}

fn write(checkpoint: &Checkpoint, file: File, path: &Path) -> Result<usize, CheckpointError> {
    let header = checkpoint.header();
    // Manifests of older versions may contain a name twice.
    let names = unique_names(&header.tensors).into_iter();
    let planned = names
        .zip(&header.tensors)
        .map(|(name, tensor)| Planned {
            name,
            shape: tensor.shape.clone(),
        })
        .collect();
    let mut left: usize = header.tensors.iter().filter_map(Tensor::elements).sum();
    let notes = [
        ("format", "pt".to_owned()),
        ("slowmo.step", header.step.to_string()),
        ("slowmo.lineage", format!("{:032x}", header.lineage)),
    ];
    let notes: HashMap<String, String> = notes
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    let mut writer = TensorWriter::create(file, path, planned, notes)?;
    let mut failed = None;
    checkpoint.values(|values| {
        // The values that follow are buffers of the optimizer, averaged with the rest; they are not
        // part of the model.
        let part = &values[..values.len().min(left)];
        left -= part.len();
        if failed.is_none() {
            failed = writer.write(part).err();
        }
    })?;
    failed.map_or(Ok(()), Err)?;
    writer.finish()?;
    Ok(header.tensors.len())
}
