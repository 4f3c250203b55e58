//! What people and tools write: configurations, keys, admin requests and answers, trajectories, traces.

use crate::conformance::case::Case;
use crate::trace::Line;
use serde::Serialize;
use serde::de::DeserializeOwned;
use slowmo::Config;
use slowmo::admin::{Answer, Request};
use slowmo::config::{ClusterKey, user_arguments};
use slowmo::transport::quic::Identity;
use std::fmt::Debug;
use std::path::Path;

/// A configuration that was accepted stays what it is when its own words are read again.
fn check_config(config: &Config) {
    assert!(config.check().is_ok());
    let mut again = config.clone();
    for line in config.shared_settings().lines() {
        let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
        assert!(again.set(key, value).is_ok(), "does not read its own words: {line}");
    }
    assert_eq!(again, *config, "reads its own words otherwise");
}

/// A configuration file.
pub fn config_file(data: &[u8]) {
    let Ok(file) = std::str::from_utf8(data) else { return };
    match Config::from_sources(Some((Path::new("slowmo.toml"), file)), std::iter::empty(), std::iter::empty()) {
        Ok(config) => check_config(&config),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Environment variables, one `NAME=value` a line, and after an empty line arguments, one a line.
pub fn config_sources(data: &[u8]) {
    let Ok(all) = std::str::from_utf8(data) else { return };
    let (variables, arguments) = all.split_once("\n\n").unwrap_or((all, ""));
    let variables = variables.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned()));
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    let kept = user_arguments(arguments.iter().cloned());
    match Config::from_sources(None, variables, arguments.into_iter()) {
        Ok(config) => {
            check_config(&config);
            assert!(kept.is_ok());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A cluster key, or the operator's PEM files: CA, certificate and key, apart from one another by an empty line.
pub fn credentials(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(key) = text.parse::<ClusterKey>()
    {
        assert_eq!(key.to_hex().parse().as_ref(), Ok(&key));
    }
    let mut files = data.split(|byte| *byte == 0);
    let mut file = || files.next().unwrap_or_default();
    let _ = Identity::from_pem(file(), file(), file());
}

/// A peer's certificate, and a name as it stands in one.
pub fn certificate(data: &[u8]) {
    let _ = Identity::name_in_certificate_for_tests(data);
}

/// One line that the admin socket reads, or one that it answers.
pub fn admin(data: &[u8]) {
    let Ok(line) = std::str::from_utf8(data) else { return };
    json_round_trip::<Request>(line);
    json_round_trip::<Answer>(line);
}

/// A recorded trajectory: what is accepted can be run.
pub fn trajectory(data: &[u8]) {
    if let Ok(case) = Case::parse(data) {
        assert!(case.nodes() > 0);
        let _ = (case.learning_rate(0), case.learning_rate(case.steps));
        let _ = case.config().check();
    }
}

/// One line of a trace.
pub fn trace(data: &[u8]) {
    if let Ok(line) = std::str::from_utf8(data) {
        json_round_trip::<Line>(line);
    }
}

fn json_round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(line: &str) {
    let Ok(value) = serde_json::from_str::<T>(line) else { return };
    let written = serde_json::to_string(&value);
    let again = written.as_ref().ok().and_then(|written| serde_json::from_str::<T>(written).ok());
    assert_eq!(again.as_ref(), Some(&value), "is read otherwise once it was written: {written:?}");
}
