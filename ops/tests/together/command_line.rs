//! The binary as a user meets it: keys, usage errors, exit codes, JSON. Starts processes, writes
//! into temporary folders.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

fn slowmo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn last_object(output: &Output) -> serde_json::Value {
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

fn is_key(key: &str) -> bool {
    key.len() == 64
        && key
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[test]
fn keygen_prints_a_new_key_each_time() {
    let one = slowmo(&["keygen"]);
    let other = slowmo(&["keygen"]);
    assert!(one.status.success());
    assert!(is_key(text(&one.stdout).trim_end()));
    assert_ne!(one.stdout, other.stdout);
    let json = slowmo(&["keygen", "--json"]);
    assert!(is_key(last_object(&json)["cluster_key"].as_str().unwrap()));
}

#[test]
fn keygen_rotates_a_key_in_two_steps() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.key");
    let path = file.to_str().unwrap();
    let lines = || -> Vec<String> {
        let text = std::fs::read_to_string(&file).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    assert!(slowmo(&["keygen", "--out", path]).status.success());
    let first = lines();
    let early = slowmo(&["keygen", "--retire", path]);
    assert_eq!(early.status.code(), Some(1));
    assert!(text(&early.stderr).contains("one key only"));

    assert!(slowmo(&["keygen", "--rotate", path]).status.success());
    let both = lines();
    assert!(both.len() == 2 && is_key(&both[0]) && both[0] != first[0]);
    assert_eq!(both[1], first[0]);
    let again = slowmo(&["keygen", "--rotate", path]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("--retire"));
    assert_eq!(lines(), both, "a refused step changes nothing");

    assert!(slowmo(&["keygen", "--retire", path]).status.success());
    let last = lines();
    assert_eq!(last[0], both[0]);
    assert!(
        last.len() == 2 && last[1].starts_with("cluster "),
        "{last:?}"
    );
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn keygen_writes_a_private_file_and_never_overwrites() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.key");
    let path = file.to_str().unwrap();
    assert!(slowmo(&["keygen", "--out", path]).status.success());
    let key = std::fs::read_to_string(&file).unwrap();
    assert!(is_key(key.trim_end()));
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let again = slowmo(&["keygen", "--out", path, "--json"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stderr).contains("was left as it is"),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(last_object(&again)["succeeded"], false);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), key);
}

#[test]
fn arguments_that_make_no_sense_exit_with_2() {
    let cases: [&[&str]; 9] = [
        &[],
        &["fly"],
        &["launch", "--nodes", "2"],
        &["launch", "--", "true"],
        &["launch", "--nodes", "0", "--", "true"],
        &["launch", "--nodes", "1000", "--", "true"],
        &[
            "launch",
            "--nodes",
            "2",
            "--gpus",
            "1",
            "--workers",
            "1",
            "--",
            "true",
        ],
        &["demo", "--steps", "0"],
        &["bench", "round", "--mib", "many"],
    ];
    for case in cases {
        let output = slowmo(case);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{case:?}: {}",
            text(&output.stderr)
        );
        assert!(
            text(&output.stderr).contains("Usage:") || text(&output.stderr).contains("--help"),
            "{case:?}"
        );
    }
}

#[test]
fn what_cannot_be_launched_is_told_once_and_exits_with_1() {
    let cases: [(&[&str], &str); 3] = [
        (
            &["launch", "--nodes", "2", "--", "./no-such-binary"],
            "there is no binary ./no-such-binary",
        ),
        (
            &["launch", "--nodes", "2", "--", "no-such-binary"],
            "there is no binary no-such-binary in PATH",
        ),
        (
            &[
                "launch",
                "--nodes",
                "2",
                "--cluster-key-file",
                "no-such-key",
                "--",
                "true",
            ],
            "cannot read the cluster key file no-such-key",
        ),
    ];
    for (case, expected) in cases {
        let output = slowmo(case);
        assert_eq!(output.status.code(), Some(1), "{case:?}");
        let error = text(&output.stderr);
        assert!(
            error.contains(expected) && error.lines().count() == 1,
            "{case:?}: {error}"
        );
    }
}

/// The status of a job of this name, for programs; launchers' sockets are in `runtime`.
fn status_of(job: &str, runtime: &std::path::Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(["--json", "status", "--job", job])
        .env("XDG_RUNTIME_DIR", runtime)
        .output()
        .unwrap()
}

#[test]
fn json_carries_nothing_that_steers_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let job = "a\u{9b}31m\u{202e}\u{61c}\u{e0041}\x7f\x1b[2J";
    let output = status_of(job, folder.path());
    assert_eq!(output.status.code(), Some(1));
    let json = text(&output.stdout);
    assert!(json.is_ascii(), "{json:?}");
    assert!(
        !json
            .trim_end()
            .contains(|character: char| character.is_control()),
        "{json:?}"
    );
    let error = last_object(&output)["error"].as_str().unwrap().to_owned();
    assert!(error.contains(job), "{error:?}");
}

#[test]
fn a_folder_that_is_not_this_user_s_own_is_refused_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("slowmo");
    std::fs::create_dir(&taken).unwrap();
    std::fs::set_permissions(&taken, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = status_of("any", folder.path());
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains(taken.to_str().unwrap()) && error.contains("set XDG_RUNTIME_DIR"),
        "{error}"
    );
}

/// Libraries that this machine lacks are named at once, with the remedy. A machine that has all of
/// them has nothing to name.
#[test]
fn gpus_that_are_not_there_are_told_with_all_that_is_missing() {
    let launch = &["launch", "--nodes", "2", "--gpus", "2", "--", "true"][..];
    let selftest = &["selftest", "--gpu", "--mib", "1"][..];
    for (case, gpus) in [(launch, 2), (selftest, 1)] {
        let missing = slowmo_cuda::missing(gpus);
        if missing.is_empty() {
            // Past the harness, which shows nothing of a test that passes.
            let reason = format!("this machine has {gpus} GPUs and their libraries");
            writeln!(std::io::stderr(), "{case:?} not run: {reason}").unwrap();
            continue;
        }
        let output = slowmo(case);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{case:?}");
        assert_eq!(error.lines().count(), 1, "{error}");
        for missing in missing {
            assert!(error.contains(&missing.to_string()), "{error}: {missing}");
        }
    }
}

#[test]
fn the_cpu_passes_the_selftest() {
    let output = slowmo(&["selftest", "--seed", "7", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = last_object(&output);
    assert_eq!(report["devices"][0]["device"], "cpu");
    assert_eq!(
        report["devices"][0]["kernels"].as_array().map(Vec::len),
        Some(slowmo_cuda::kernels::KERNELS.len())
    );
}

#[test]
fn raw_limits_are_reported_as_one_object() {
    let output = slowmo(&["bench", "limits", "--nodes", "3", "--mib", "2", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let report = last_object(&output);
    for limit in [
        "quic_stream_gb_per_s",
        "tcp_stream_gb_per_s",
        "memory_copy_gb_per_s",
    ] {
        assert!(report["limits"][limit].as_f64().unwrap() > 0.0, "{report}");
    }
    for time in [
        "plain_quinn_average_ms",
        "plain_quinn_outer_round_ms",
        "plain_quinn_gossip_ms",
    ] {
        assert!(report[time].as_f64().unwrap() > 0.0, "{report}");
    }
}
