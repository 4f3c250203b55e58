//! Files of more than 2³² values. They are sparse: only what a test writes takes room on the disk.

use super::super::manifest::FORMAT;
use super::super::tensor_file::{Hashing, Planned, TensorFile, TensorWriter};
use super::*;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};

/// Values of the tensor in front.
const BEFORE: usize = (1 << 32) + 1_000;
const BEHIND: [f32; 5] = [1.0, -2.0, 3.5, 0.25, 9.0];

#[test]
fn a_tensor_behind_four_thousand_million_values_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    let planned = |name: &str, values| Planned {
        name: name.to_owned(),
        shape: vec![values],
    };
    let file = fs::File::create(&path).unwrap();
    let both = vec![planned("before", BEFORE), planned("behind", BEHIND.len())];
    let header = TensorWriter::create(file, &path, both, Default::default()).unwrap();
    let start = header.finish().unwrap();
    let at = start + 4 * BEFORE as u64;
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytemuck::cast_slice(&BEHIND)).unwrap();
    drop(file);

    let small = folder.path().join("small.safetensors");
    let file = fs::File::create(&small).unwrap();
    let one = vec![planned("behind", BEHIND.len())];
    let mut writer = TensorWriter::create(file, &small, one, Default::default()).unwrap();
    writer.write(&BEHIND).unwrap();
    let digest = writer.end_tensor();

    let opened = TensorFile::open(&path, Hashing::of(FORMAT)).unwrap();
    assert_eq!(opened.bytes(), at + 4 * BEHIND.len() as u64);
    let mut found = Vec::new();
    let read = opened.read("behind", BEHIND.len(), digest, |values| {
        found.extend_from_slice(values)
    });
    read.unwrap();
    assert_eq!(found, BEHIND);
    let other = opened.read("before", BEFORE - (1 << 32), digest, |_| ());
    assert!(
        other
            .unwrap_err()
            .to_string()
            .contains("before has another length")
    );
}
