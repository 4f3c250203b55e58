//! Checkpoints: writing decided state to a disk that all nodes reach, and restoring it.
//!
//! ```text
//! FOLDER/run-0001-step-000000000960-1f…c2/     one: its bootstrap, next inner step, model history
//!     node-1.safetensors                       node 1's shards (values, slow momentum) and buffers
//!     node-1.json                              its manifest, with digests; written last
//!     node-2.safetensors …
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `manifest` | the description of a part and of the whole checkpoint |
//! | `tensor_file` | one safetensors file: streamed out, read back tensor by tensor |
//! | `files`, `name` | names of files, tensors and checkpoints |
//! | `handles` | folders and files through handles, without following links |
//! | `trust` | which manifests a node believes: sealed with the cluster's key, or its own user's |
//! | `part` | writing one node's part, so that it is there whole or not at all |
//! | `checkpoint` | a whole checkpoint: its parts, verified, read by ranges of the model |
//! | `folder` | the checkpoints of a run, the newest whole one, those that may be removed |
//! | `history` | which of them are one training's own past |
//! | `resumed` | the checkpoint that a bootstrap continues from |
//! | `writer` | the thread that writes, and its status |
//! | `export` | one safetensors file with the model's own tensors, for candle or PyTorch |
//!
//! Nobody coordinates: every member derives from what all members know which rounds are stored and
//! who writes which shards (`slowmo_protocol::checkpoint`). A checkpoint is whole when its
//! manifests cover the model; if a node did not get to write its parts, the checkpoint before
//! remains the newest whole one.

mod checkpoint;
mod error;
mod export;
mod files;
mod folder;
mod handles;
mod history;
mod manifest;
mod name;
mod part;
mod resumed;
mod tensor_file;
#[cfg(test)]
mod tests;
mod trust;
mod writer;

pub use checkpoint::Checkpoint;
pub use error::CheckpointError;
pub use export::export;
pub use folder::{Listed, TrustedFolder, list, newest_whole, next_run};
pub use handles::check_writable;
pub(crate) use handles::{Folder, Readers, atomically};
pub use manifest::{Ancestor, Header, Kept, KeptShard, Kind, Part, Tensor, unique_names};
pub use name::Name;
pub use resumed::{Resumed, warn_of_others};
#[cfg(feature = "testing")]
pub use tensor_file::is_tensor_file_for_tests;
pub use trust::Trust;
pub use writer::{CURSOR_BYTES_MAX, Checkpoints, WriterSettings};
