//! Data that people and tools write: configurations, keys, requests to nodes and launchers,
//! answers, trajectories, traces, checkpoints, addresses.

use crate::conformance::Case;
use serde::Serialize;
use serde::de::DeserializeOwned;
use slowmo::Config;
use slowmo::internal::admin::{Answer, Request};
use slowmo::internal::checkpoints::{Part, is_tensor_file_for_tests};
use slowmo::internal::discovery::{list_file, slurm};
use slowmo::internal::launcher;
use slowmo::internal::transport::quic::{ClusterKeys, Identity, OperatorFiles};
use slowmo::user_arguments;
use slowmo_actors::ports::discovery::DISCOVERED_MAX;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::trace::Line;
use std::fmt::Debug;
use std::path::Path;

/// Checks that an accepted configuration stays the same when its own text is read again.
fn check_config(config: &Config) {
    assert!(config.check().is_ok());
    let mut again = config.clone();
    for line in config.shared_settings().lines() {
        let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
        assert!(
            again.set(key, value).is_ok(),
            "does not read its own words: {line}"
        );
    }
    assert_eq!(again, *config, "reads its own words otherwise");
}

/// A configuration file.
pub fn config_file(data: &[u8]) -> bool {
    let Ok(file) = std::str::from_utf8(data) else {
        return false;
    };
    match Config::from_sources(
        Some((Path::new("slowmo.toml"), file)),
        std::iter::empty(),
        std::iter::empty(),
    ) {
        Ok(config) => {
            check_config(&config);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// Environment variables, one `NAME=value` per line; after an empty line arguments, one per line.
pub fn config_sources(data: &[u8]) -> bool {
    let Ok(all) = std::str::from_utf8(data) else {
        return false;
    };
    let (variables, arguments) = all.split_once("\n\n").unwrap_or((all, ""));
    let variables = variables
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    let kept = user_arguments(arguments.iter().cloned());
    match Config::from_sources(None, variables, arguments.into_iter()) {
        Ok(config) => {
            check_config(&config);
            assert!(kept.is_ok());
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A key file, or the operator's PEM files (CA, certificate, key, revocation lists) separated by
/// zero bytes.
pub fn credentials(data: &[u8]) -> bool {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(keys) = text.parse::<ClusterKeys>()
    {
        assert_eq!(keys.to_text().parse().as_ref(), Ok(&keys));
        return true;
    }
    let mut files = data.split(|byte| *byte == 0);
    let mut file = || files.next().unwrap_or_default();
    let files = OperatorFiles {
        ca: file(),
        certificate: file(),
        key: file(),
        revoked: files.next(),
    };
    Identity::of_operator(files, None, None, NodeId(0)).is_ok()
}

/// A peer's certificate, and a name as it appears in one.
pub fn certificate(data: &[u8]) -> bool {
    Identity::name_for_tests(data).is_some()
}

/// One line that the admin socket reads, or one line of its answers.
pub fn admin(data: &[u8]) -> bool {
    let Ok(line) = std::str::from_utf8(data) else {
        return false;
    };
    json_round_trip::<Request>(line) | json_round_trip::<Answer>(line)
}

/// One line that the launcher's socket reads, or one line of its answers.
pub fn launcher(data: &[u8]) -> bool {
    let Ok(line) = std::str::from_utf8(data) else {
        return false;
    };
    json_round_trip::<launcher::Request>(line) | json_round_trip::<launcher::Answer>(line)
}

/// A recorded trajectory: an accepted one can be run.
pub fn trajectory(data: &[u8]) -> bool {
    let Ok(case) = Case::parse(data) else {
        return false;
    };
    assert!(case.nodes() > 0);
    let _ = (case.learning_rate(0), case.learning_rate(case.steps));
    let _ = case.config().check();
    true
}

/// One line of a trace.
pub fn trace(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(json_round_trip::<Line>)
}

/// The manifest of a checkpoint part.
pub fn manifest(data: &[u8]) -> bool {
    let Ok(part) = Part::parse(data) else {
        return false;
    };
    let again = part
        .text()
        .ok()
        .and_then(|written| Part::parse(&written).ok());
    // A manifest of an older form is written in the newest form.
    assert_eq!(
        again
            .map(|again| Part {
                format: part.format,
                ..again
            })
            .as_ref(),
        Some(&part)
    );
    // Nothing that was accepted reaches beyond the end of the model.
    let elements = usize::try_from(part.checkpoint.elements).unwrap_or(usize::MAX);
    assert!(
        part.checkpoint.parameters() <= elements && part.checkpoint.layout().elements() == elements
    );
    true
}

/// A file of tensors.
pub fn tensor_file(data: &[u8]) -> bool {
    is_tensor_file_for_tests(data)
}

fn json_round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(line: &str) -> bool {
    let Ok(value) = serde_json::from_str::<T>(line) else {
        return false;
    };
    let written = serde_json::to_string(&value);
    let again = written
        .as_ref()
        .ok()
        .and_then(|written| serde_json::from_str::<T>(written).ok());
    assert_eq!(
        again.as_ref(),
        Some(&value),
        "is read otherwise once it was written: {written:?}"
    );
    true
}

/// A file of addresses (`discover = file:`).
pub fn address_list(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let Ok(names) = list_file::names(text) else {
        return false;
    };
    assert!(names.len() <= DISCOVERED_MAX);
    assert_eq!(
        list_file::names(&names.join("\n")).as_ref(),
        Ok(&names),
        "reads its own words otherwise"
    );
    true
}

/// Slurm's host list, and after the end of the line the tasks of each host.
pub fn host_list(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let (hosts, tasks) = text
        .split_once('\n')
        .map_or((text, None), |(hosts, tasks)| (hosts, Some(tasks)));
    let variable = |name: &str| match name {
        "SLURM_STEP_NODELIST" => Some(hosts.to_owned()),
        "SLURM_STEP_TASKS_PER_NODE" => tasks.map(str::to_owned),
        _ => None,
    };
    let Ok(names) = slurm::names(7000, variable) else {
        return false;
    };
    assert!(names.len() <= slurm::HOSTS_MAX);
    for name in &names {
        // A host name alone is a list that contains only itself.
        let host = name.rsplit_once(':').map_or("", |(host, _)| host);
        assert_eq!(slurm::expand(host), Ok(vec![host.to_owned()]));
    }
    true
}
