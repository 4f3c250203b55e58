//! `main() -> anyhow::Result` prints each thing of an error once.

use crate::support::{config, local_sgd};
use slowmo::internal::config::ClusterKey;
use slowmo::{Checkpoint, Config, Runtime};
use std::cell::Cell;
use std::path::Path;

/// Checks that no cause repeats what the errors above it said.
fn assert_says_each_thing_once(error: impl Into<anyhow::Error>) {
    let error = error.into();
    let printed = format!("{error:?}");
    let texts: Vec<_> = error.chain().map(ToString::to_string).collect();
    for (place, text) in texts.iter().enumerate() {
        for above in &texts[..place] {
            assert!(!above.contains(text.as_str()), "{printed}");
        }
    }
}

/// Checks what a node that does not start says; whether it did not.
fn is_refused(config: Config) -> bool {
    match Runtime::builder().config(config).spawn() {
        Ok(_) => false,
        Err(error) => {
            assert_says_each_thing_once(error);
            true
        }
    }
}

fn listening() -> Config {
    Config {
        cluster_key: Some(ClusterKey::generate().unwrap()),
        ..config()
    }
}

#[test]
fn of_a_node_that_does_not_start() {
    let node = Runtime::builder().config(listening()).spawn().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("not-what-it-should-be");
    std::fs::write(&file, "nothing").unwrap();
    let no_such = || Some(folder.path().join("no-such-file"));
    let refused = Cell::new(0);
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = listening();
        change(&mut config);
        refused.set(refused.get() + usize::from(is_refused(config)));
    };
    with(&|config| config.listen = node.address());
    with(&|config| config.listen = "192.0.2.1:7000".parse().unwrap());
    with(&|config| config.listen = "[fe80::1]:0".parse().unwrap());
    with(&|config| config.http = Some("192.0.2.1:7000".parse().unwrap()));
    with(&|config| config.http_token_file = no_such());
    with(&|config| config.http_token_file = Some(file.clone()));
    with(&|config| config.admin = Some(Path::new("/no/such/folder/admin").into()));
    with(&|config| config.trace = Some(file.clone()));
    with(&|config| config.checkpoints = Some(file.clone()));
    with(&|config| {
        config.checkpoints = Some(folder.path().into());
        config
            .set(
                "resume",
                "run-0000-step-000000000012-00112233445566778899aabbccddeeff",
            )
            .unwrap();
    });
    with(&|config| config.peers = vec!["no-such-host.invalid:1".to_owned()]);
    with(&|config| config.peers = vec!["nothing".to_owned()]);
    with(&|config| config.rendezvous = Some(file.clone()));
    with(&|config| config.min_nodes = 3);
    with(&|config| config.advertise = Some("no-such-host.invalid:1".to_owned()));
    with(&|config| config.alpha = -1.0);
    with(&|config| config.set("discover", "slurm:7000").unwrap());
    with(&|config| config.set("device", "cuda").unwrap());
    with(&|config| {
        config.cluster_key = None;
        config.cluster_key_file = no_such();
    });
    with(&|config| {
        config.cluster_key = None;
        config.cluster_key_file = Some(file.clone());
    });
    with(&|config| {
        config.cluster_key = None;
        config.tls_ca_file = Some(file.clone());
        config.tls_certificate_file = Some(file.clone());
        config.tls_key_file = Some(file.clone());
    });
    // Some depend on the machine: whether it has IPv6, and which folders.
    assert!(refused.get() > 15, "{} were refused", refused.get());
}

#[test]
fn of_a_worker() {
    let every_step = local_sgd(1, 2, 1.0, 0.5);
    let node = Runtime::builder().config(every_step).spawn().unwrap();
    let mut worker = node.worker(0).unwrap();
    assert_says_each_thing_once(node.worker(0).unwrap_err());
    assert_says_each_thing_once(worker.step(&mut [1.0f32][..], 0.1).unwrap_err());
    assert_says_each_thing_once(worker.synchronize(&mut [f32::NAN][..]).unwrap_err());
    worker.synchronize(&mut [1.0f32][..]).unwrap();
    assert_says_each_thing_once(worker.synchronize(&mut [1.0f32][..]).unwrap_err());
    assert_says_each_thing_once(worker.step(&mut [1.0f32; 2][..], 0.1).unwrap_err());
    assert_says_each_thing_once(loop {
        if let Err(error) = worker.step(&mut [f32::NAN][..], 0.1) {
            break error;
        }
    });
    assert_says_each_thing_once(loop {
        if let Err(error) = worker.step(&mut [1.0f32][..], -0.1) {
            break error;
        }
    });
}

#[test]
fn of_a_configuration_and_of_a_checkpoint() {
    let load = |text: &str| {
        let file = Some((Path::new("slowmo.toml"), text));
        Config::from_sources(file, std::iter::empty(), std::iter::empty()).unwrap_err()
    };
    for text in ["tua = 1", "tau = -1", "tau = [", "[tau]", "beta = 2"] {
        assert_says_each_thing_once(load(text));
    }
    let folder = tempfile::tempdir().unwrap();
    assert_says_each_thing_once(Checkpoint::open(folder.path()).unwrap_err());
    assert_says_each_thing_once(Checkpoint::open(&folder.path().join("no-such")).unwrap_err());
}
