//! Writing of one node's part: values, then the manifest that names them, each under a temporary
//! name until it is on the disk.

use super::error::CheckpointError;
use super::files::{OPTIMIZER, momentum_name, values_name};
use super::handles::{Folder, Readers, atomically};
use super::manifest::{Ancestor, FORMAT, Header, Kept, KeptShard, Part, parameters_of};
use super::tensor_file::{Planned, TensorWriter};
use super::trust::Trust;
use slowmo_actors::buffers::ChunkedBuffer;
use slowmo_actors::ports::store::Snapshot;
use slowmo_actors::unix_time::unix_us;
use slowmo_protocol::trace::Start;
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

/// Zeros, written for a momentum that was never set.
const ZEROS: [f32; 4096] = [0.0; 4096];

/// The content of a node's manifest beside the values.
#[derive(Clone, Debug)]
pub struct Own {
    /// The node and its incarnation.
    pub start: Start,
    /// An opaque text of the training code.
    pub cursor: Option<String>,
    /// The histories that this one continues from, as far as the node knows.
    pub ancestors: Vec<Ancestor>,
    /// Seals the manifest.
    pub trust: Trust,
}

/// Writes a part into the checkpoint's folder, which is created if it does not exist. On return the
/// part is durable.
///
/// # Errors
/// The disk failed. Then there is no part, or the whole of an earlier one; nor the folder, if
/// nobody else put anything there.
pub fn write(
    folder: &Path,
    header: &Header,
    own: Own,
    snapshot: &Snapshot,
) -> Result<Part, CheckpointError> {
    let name = format!("node-{}", own.start.node.0);
    let parent = Folder::create(folder.parent().unwrap_or(Path::new(".")))?;
    let of_checkpoint = folder.file_name().unwrap_or_default().to_string_lossy();
    let written = try_write(&parent, &of_checkpoint, header, own, snapshot);
    if written.is_err()
        && let Ok(folder) = parent.within(&of_checkpoint)
    {
        // Values without a manifest are not a part, but take room. A file that cannot be removed
        // does no other harm.
        if !folder.has(&format!("{name}.json")) {
            _ = folder.remove_file(&format!("{name}.safetensors"));
        }
        _ = parent.remove_folder(&of_checkpoint);
    }
    written
}

fn try_write(
    parent: &Folder,
    of_checkpoint: &str,
    header: &Header,
    own: Own,
    snapshot: &Snapshot,
) -> Result<Part, CheckpointError> {
    let folder = &parent.make(of_checkpoint)?;
    let Own {
        start,
        cursor,
        ancestors,
        trust,
    } = own;
    let name = format!("node-{}", start.node.0);
    let part = |bytes, (shards, optimizer)| Part {
        format: FORMAT,
        node: start.node.0,
        incarnation: start.incarnation.0,
        written_at_us: unix_us(),
        file: format!("{name}.safetensors"),
        bytes,
        shards,
        optimizer,
        cursor,
        ancestors,
        checkpoint: header.clone(),
    };
    let mut written = (Vec::new(), None);
    let bytes = atomically(
        folder,
        &format!("{name}.safetensors"),
        Readers::All,
        |file, path| {
            let planned = plan(header, snapshot);
            let mut writer = TensorWriter::create(file, path, planned, HashMap::new())?;
            written = write_tensors(&mut writer, header, snapshot)?;
            writer.finish()
        },
    )?;
    let part = part(bytes, written);
    atomically(
        folder,
        &format!("{name}.json"),
        Readers::All,
        |mut file, path| {
            let text = part
                .sealed_text(&trust)
                .map_err(|error| CheckpointError::torn(path, error))?;
            file.write_all(&text)
                .and_then(|()| file.sync_all())
                .map_err(CheckpointError::io(path))
        },
    )?;
    // The folder's own entry must be on the disk too, if this part is its first.
    parent.sync()?;
    Ok(part)
}

fn plan(header: &Header, snapshot: &Snapshot) -> Vec<Planned> {
    let layout = header.layout();
    let mut planned = Vec::new();
    for shard in &snapshot.shards {
        planned.push(Planned {
            name: values_name(shard.0),
            shape: vec![layout.range(*shard).len()],
        });
        let parameters = parameters_of(header, *shard).len();
        if snapshot.momentum.is_some() && parameters > 0 {
            planned.push(Planned {
                name: momentum_name(shard.0),
                shape: vec![parameters],
            });
        }
    }
    planned.extend(snapshot.optimizer.iter().map(|buffers| Planned {
        name: OPTIMIZER.to_owned(),
        shape: vec![buffers.values().len()],
    }));
    planned
}

/// Writes the tensors in the order of [`plan`].
fn write_tensors(
    writer: &mut TensorWriter,
    header: &Header,
    snapshot: &Snapshot,
) -> Result<(Vec<KeptShard>, Option<Kept>), CheckpointError> {
    let layout = header.layout();
    let mut shards = Vec::with_capacity(snapshot.shards.len());
    for (index, shard) in snapshot.shards.iter().enumerate() {
        let values = write_range(writer, &snapshot.values, layout.range(*shard))?;
        let parameters = parameters_of(header, *shard);
        let momentum = match &snapshot.momentum {
            Some(momentum) if !parameters.is_empty() => momentum.get(index),
            _ => None,
        };
        let momentum = momentum
            .map(|momentum| write_range(writer, momentum, parameters))
            .transpose()?;
        shards.push(KeptShard {
            shard: shard.0,
            values,
            momentum,
        });
    }
    let optimizer = match &snapshot.optimizer {
        Some(buffers) => {
            writer.write(buffers.values())?;
            Some(Kept {
                values: buffers.values().len() as u64,
                digest: writer.end_tensor(),
            })
        }
        None => None,
    };
    Ok((shards, optimizer))
}

/// Writes the values that the pieces hold of a range, and zeros for the rest. Returns the digest.
fn write_range(
    writer: &mut TensorWriter,
    pieces: &ChunkedBuffer,
    range: Range<usize>,
) -> Result<u128, CheckpointError> {
    let mut next = 0;
    let mut written = Ok(());
    pieces.visit(range.start, range.len(), |offset, values| {
        if written.is_ok() {
            written = zeros(writer, offset - next).and_then(|()| writer.write(values));
            next = offset + values.len();
        }
    });
    written.and_then(|()| zeros(writer, range.len() - next))?;
    Ok(writer.end_tensor())
}

fn zeros(writer: &mut TensorWriter, mut count: usize) -> Result<(), CheckpointError> {
    while count > 0 {
        let part = count.min(ZEROS.len());
        writer.write(&ZEROS[..part])?;
        count -= part;
    }
    Ok(())
}
