//! Every decoder over its committed corpus and seeded changes of it, on any compiler: a few seconds
//! of what `chaos-tests/fuzz` does for hours. Every run makes the same changes.
//!
//! `SLOWMO_FUZZ_CHANGES` sets how many changes of each corpus, `SLOWMO_FUZZ_SEED` another seed.
//! `SLOWMO_WRITE_CORPORA=1` writes the seeds of [`slowmo_chaos::fuzz::TARGETS`] into the corpora.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_chaos::fuzz::{TARGETS, Target, mutate};
use slowmo_chaos::random::Random;
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz");
/// All corpora together stay below this, in bytes.
const CORPORA_BYTES_MAX: usize = 200 << 10;
/// Changes made of one decoder's corpus.
const CHANGES: u64 = 10_000;

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(FOLDER).join("corpus").join(target.name);
    let files =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|file| (file.clone(), std::fs::read(file).unwrap()))
        .collect()
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .map_or(default, |text| text.parse().unwrap())
}

/// Runs an input; a failure is told with the bytes that led to it.
fn run(target: &Target, data: &[u8], what: &str) -> bool {
    catch_unwind(AssertUnwindSafe(|| (target.run)(data))).unwrap_or_else(
        |failure: Box<dyn Any + Send>| {
            let file = std::env::temp_dir().join(format!(
                "slowmo-fuzz-{}-{}",
                target.name,
                std::process::id()
            ));
            std::fs::write(&file, data).unwrap();
            let _ = failure;
            panic!(
                "{}, {what}: see above; the input is in {}",
                target.name,
                file.display()
            )
        },
    )
}

#[test]
fn every_corpus_and_seeded_changes_of_it() {
    if std::env::var_os("SLOWMO_WRITE_CORPORA").is_some() {
        write_corpora();
    }
    let seed = number("SLOWMO_FUZZ_SEED", 1);
    let changes = number("SLOWMO_FUZZ_CHANGES", CHANGES);
    for (index, target) in TARGETS.iter().enumerate() {
        let corpus = corpus(target);
        let accepted = corpus
            .iter()
            .filter(|(file, data)| run(target, data, &file.display().to_string()))
            .count();
        assert!(
            accepted > 0,
            "{}: no file of the corpus is accepted",
            target.name
        );
        let mut random = Random::new(seed, index as u64);
        let mut changed = 0;
        for made in 0..changes {
            let one = random.pick(&corpus).unwrap();
            let other = random.pick(&corpus).unwrap();
            let data = mutate::mutate(&mut random, &one.1, &other.1);
            changed += u64::from(run(target, &data, &format!("change {made} of seed {seed}")));
        }
        println!(
            "{:15} {accepted:3} of {:3} files accepted, {changed:6} of {changes:6} changes",
            target.name,
            corpus.len()
        );
    }
}

fn write_corpora() {
    for target in TARGETS {
        let folder = Path::new(FOLDER).join("corpus").join(target.name);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in (target.seeds)() {
            std::fs::write(folder.join(format!("seed-{name}")), bytes).unwrap();
        }
    }
}

#[test]
fn the_table_the_corpora_and_the_libfuzzer_targets_agree() {
    let names: BTreeSet<String> = TARGETS
        .iter()
        .map(|target| target.name.to_owned())
        .collect();
    let listed = |folder: &str| {
        let files = std::fs::read_dir(Path::new(FOLDER).join(folder)).unwrap();
        files
            .map(|file| {
                file.unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect::<BTreeSet<String>>()
    };
    assert_eq!(listed("corpus"), names);
    assert_eq!(listed("fuzz_targets"), names);
    let manifest = std::fs::read_to_string(Path::new(FOLDER).join("Cargo.toml")).unwrap();
    for name in &names {
        assert!(
            manifest.contains(&format!(
                "name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\""
            )),
            "{name} is not in fuzz/Cargo.toml"
        );
    }
    let bytes: usize = TARGETS
        .iter()
        .flat_map(corpus)
        .map(|(_, data)| data.len())
        .sum();
    assert!(bytes <= CORPORA_BYTES_MAX, "the corpora have {bytes} bytes");
}
