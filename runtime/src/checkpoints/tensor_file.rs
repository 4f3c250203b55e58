//! One safetensors file: streamed out without a second copy of its contents, and read back tensor
//! by tensor.

use super::error::CheckpointError;
use super::handles;
use super::manifest::{FORMAT, FORMAT_WITH_XXH3};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use slowmo_protocol::sound::first_beyond;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Longest header that is read, in bytes; the same limit as in the format's own library.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the field in front of the header that holds the header's length.
const LENGTH_BYTES: u64 = 8;
/// The header is padded to a multiple of this, so that values are aligned in the file.
const ALIGNMENT: usize = 8;
const VALUE_BYTES: usize = size_of::<f32>();
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// A tensor to write: its name and shape.
pub struct Planned {
    /// Its name in the file.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
}

/// Writes a file from front to back: tensors in the planned order.
pub struct TensorWriter {
    file: BufWriter<File>,
    path: PathBuf,
    bytes: u64,
    digest: ring::digest::Context,
    /// The tensors' names, of which the first is being written, and how much of it is.
    names: VecDeque<String>,
    written: usize,
}

/// How the digests of a file's values were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// XXH3-128, before format 3.
    Xxh3,
    /// SHA-256, cut to 128 bits.
    Sha256,
}

impl Hashing {
    /// How the digests in a manifest of this format were made.
    pub fn of(format: u32) -> Self {
        if format <= FORMAT_WITH_XXH3 {
            Self::Xxh3
        } else {
            debug_assert_eq!(format, FORMAT);
            Self::Sha256
        }
    }

    fn begin(self) -> Hasher {
        match self {
            Self::Xxh3 => Hasher::Xxh3(Box::default()),
            Self::Sha256 => Hasher::Sha256(Box::new(sha256())),
        }
    }
}

/// A digest in the making.
enum Hasher {
    Xxh3(Box<Xxh3>),
    Sha256(Box<ring::digest::Context>),
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh3(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    fn end(self) -> u128 {
        match self {
            Self::Xxh3(hasher) => hasher.digest128(),
            Self::Sha256(hasher) => cut(*hasher),
        }
    }
}

fn sha256() -> ring::digest::Context {
    ring::digest::Context::new(&ring::digest::SHA256)
}

/// The first 128 bits of a digest. To find other values with the same ones takes about 2¹²⁸ tries.
fn cut(digest: ring::digest::Context) -> u128 {
    let digest = digest.finish();
    let (first, _) = digest
        .as_ref()
        .split_first_chunk()
        .unwrap_or((&[0; 16], &[]));
    u128::from_be_bytes(*first)
}

impl TensorWriter {
    /// Writes the header of a new file, which is at `path`. `notes` are texts beside the tensors.
    ///
    /// # Errors
    /// Two tensors have the same name, or the disk fails. The file may be partly written.
    pub fn create(
        file: File,
        path: &Path,
        planned: Vec<Planned>,
        notes: HashMap<String, String>,
    ) -> Result<Self, CheckpointError> {
        let mut names = HashSet::new();
        if let Some(twice) = planned.iter().find(|tensor| !names.insert(&tensor.name)) {
            return Err(CheckpointError::torn(
                path,
                format_args!("two tensors would be named {}", twice.name),
            ));
        }
        let names = planned.iter().map(|tensor| tensor.name.clone()).collect();
        let mut offset = 0;
        let info = |Planned { name, shape }| {
            let start = offset;
            offset += shape.iter().product::<usize>() * VALUE_BYTES;
            (
                name,
                TensorInfo {
                    dtype: Dtype::F32,
                    shape,
                    data_offsets: (start, offset),
                },
            )
        };
        let tensors: Vec<_> = planned.into_iter().map(info).collect();
        let notes = Some(notes).filter(|notes| !notes.is_empty());
        let header =
            Metadata::new(notes, tensors).map_err(|error| CheckpointError::torn(path, error))?;
        let mut header =
            serde_json::to_vec(&header).map_err(|error| CheckpointError::torn(path, error))?;
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        let mut writer = Self {
            file: BufWriter::new(file),
            path: path.to_owned(),
            bytes: 0,
            digest: sha256(),
            names,
            written: 0,
        };
        writer.put(&(header.len() as u64).to_le_bytes())?;
        writer.put(&header)?;
        Ok(writer)
    }

    /// Appends values to the current tensor.
    ///
    /// # Errors
    /// A value is not finite, or the disk fails.
    pub fn write(&mut self, values: &[f32]) -> Result<(), CheckpointError> {
        if let Some(index) = first_beyond(values, f32::MAX) {
            return Err(CheckpointError::NotFinite {
                file: self.path.clone(),
                tensor: self.names.front().cloned().unwrap_or_default(),
                index: self.written + index,
                value: values[index],
            });
        }
        self.written += values.len();
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.digest.update(bytes);
        self.put(bytes)
    }

    /// Ends the current tensor; returns the digest of the values written since the last call.
    pub fn end_tensor(&mut self) -> u128 {
        self.names.pop_front();
        self.written = 0;
        cut(std::mem::replace(&mut self.digest, sha256()))
    }

    /// Makes sure that everything is on the disk. Returns the bytes of the file.
    ///
    /// # Errors
    /// The disk fails.
    pub fn finish(self) -> Result<u64, CheckpointError> {
        let Self {
            file, path, bytes, ..
        } = self;
        let file = file
            .into_inner()
            .map_err(|error| CheckpointError::io(&path)(error.into_error()))?;
        file.sync_all().map_err(CheckpointError::io(&path))?;
        Ok(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.file
            .write_all(bytes)
            .map_err(CheckpointError::io(&self.path))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// An existing file whose header was read and matches its length.
#[derive(Debug)]
pub struct TensorFile {
    file: File,
    path: PathBuf,
    header: Metadata,
    /// Offset of the first value in the file, in bytes.
    start: u64,
    hashing: Hashing,
}

impl TensorFile {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is torn.
    pub fn open(path: &Path, hashing: Hashing) -> Result<Self, CheckpointError> {
        let (mut file, length, _) = handles::open(path)?;
        let (header, start) =
            read_header(&mut file, length).map_err(|why| CheckpointError::torn(path, why))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            header,
            start,
            hashing,
        })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.start + self.header.data_len() as u64
    }

    /// Reads a tensor whose values hash to `digest`, and passes them on in order.
    ///
    /// # Errors
    /// There is no such tensor of this many values, it cannot be read, it is not what was written,
    /// or not finite; some values may have been passed on.
    pub fn read(
        &self,
        tensor: &str,
        values: usize,
        digest: u128,
        mut take: impl FnMut(&[f32]),
    ) -> Result<(), CheckpointError> {
        let info = self
            .header
            .info(tensor)
            .filter(|info| info.dtype == Dtype::F32);
        let info = info
            .ok_or_else(|| CheckpointError::torn(&self.path, format_args!("it has no {tensor}")))?;
        let (start, end) = info.data_offsets;
        if end - start != values * VALUE_BYTES {
            return Err(CheckpointError::torn(
                &self.path,
                format_args!("{tensor} has another length"),
            ));
        }
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start + start as u64))
            .map_err(CheckpointError::io(&self.path))?;
        let mut left = values;
        let mut not_finite = None;
        let mut buffer = vec![0.0f32; left.min(READ_BYTES / VALUE_BYTES)];
        let mut hashed = self.hashing.begin();
        while left > 0 {
            let part = left.min(buffer.len());
            let bytes = bytemuck::cast_slice_mut(&mut buffer[..part]);
            file.read_exact(bytes)
                .map_err(CheckpointError::io(&self.path))?;
            hashed.update(bytes);
            if not_finite.is_none() {
                let found = first_beyond(&buffer[..part], f32::MAX);
                not_finite = found.map(|index| (values - left + index, buffer[index]));
            }
            take(&buffer[..part]);
            left -= part;
        }
        if hashed.end() != digest {
            return Err(CheckpointError::Altered {
                file: self.path.clone(),
                tensor: tensor.to_owned(),
            });
        }
        not_finite.map_or(Ok(()), |(index, value)| {
            Err(CheckpointError::NotFinite {
                file: self.path.clone(),
                tensor: tensor.to_owned(),
                index,
                value,
            })
        })
    }
}

/// The header of a file of `length` bytes, and the offset of the first value; else a description of
/// the fault.
fn read_header(file: &mut impl Read, length: u64) -> Result<(Metadata, u64), String> {
    let mut header_bytes = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut header_bytes)
        .map_err(|_| "it ends before its header")?;
    let header_bytes = u64::from_le_bytes(header_bytes);
    if header_bytes > HEADER_BYTES_MAX || LENGTH_BYTES + header_bytes > length {
        return Err("its header is longer than the file".to_owned());
    }
    let mut header = vec![0; usize::try_from(header_bytes).unwrap_or_default()];
    file.read_exact(&mut header)
        .map_err(|error| error.to_string())?;
    let header: Metadata = serde_json::from_slice(&header).map_err(|error| error.to_string())?;
    let start = LENGTH_BYTES + header_bytes;
    if start.checked_add(header.data_len() as u64) != Some(length) {
        return Err("its length is not what its header says".to_owned());
    }
    Ok((header, start))
}

/// Whether bytes are a complete file of this kind: for tests of the decoder.
#[must_use]
#[cfg(feature = "testing")]
pub fn is_tensor_file_for_tests(mut bytes: &[u8]) -> bool {
    let length = bytes.len() as u64;
    read_header(&mut bytes, length).is_ok()
}
