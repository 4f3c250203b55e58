//! The batch scripts of ops/slurm under Slurm's variables, with stand-ins for its commands: what
//! they would run, and then for real, with local processes as the tasks. Starts processes, writes
//! into temporary folders.

use crate::common::{TRAINING, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Runs its command once for each task of the job, on this machine, and notes what it was asked
/// for.
const SRUN: &str = r#"#!/usr/bin/env bash
printf '%s\n' "$*" >>"$TRAIN_FOLDER/srun"
while [[ $1 == --* ]]; do shift; done
tasks=()
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURMD_NODENAME=localhost \
        SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST SLURM_STEP_TASKS_PER_NODE=$SLURM_TASKS_PER_NODE "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit "${status:-0}"
"#;
/// Knows one host, and of each job in the files `preempted` and `cancelled` that it is; notes what
/// it was asked for.
const SCONTROL: &str = r#"#!/usr/bin/env bash
printf '%s\n' "$*" >>"$TRAIN_FOLDER/scontrol"
case "$1 $2" in
    "show hostnames") echo localhost ;;
    "show job") grep -qsx "$3" "$TRAIN_FOLDER/preempted" && time=2026-01-01T00:00:00 || time=None
        grep -qsx "$3" "$TRAIN_FOLDER/cancelled" && state=COMPLETING || state=RUNNING
        echo "   JobState=$state PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=$time" ;;
esac
"#;
/// Says of the jobs in the file `running` that they run.
const SQUEUE: &str = r#"#!/usr/bin/env bash
for word in "$@"; do [[ $word != --jobs=* ]] || grep -sx "${word#--jobs=}" "$TRAIN_FOLDER/running"; done
"#;
/// A training binary that leaves what it was told.
const TRAIN: &str = r#"#!/usr/bin/env bash
env >"$TRAIN_FOLDER/told-$SLURM_PROCID-$SLURM_JOB_ID"
printf '%s\n' "$@" >"$TRAIN_FOLDER/arguments"
"#;

/// A folder of a training, and a cluster of one host.
struct Cluster {
    folder: TempDir,
    /// The owner of the sockets.
    user: u32,
}

impl Cluster {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = fs::metadata(folder.path()).unwrap().uid();
        let cluster = Self { folder, user };
        fs::create_dir(cluster.path("bin")).unwrap();
        for (name, text) in [
            ("srun", SRUN),
            ("scontrol", SCONTROL),
            ("squeue", SQUEUE),
            ("train", TRAIN),
        ] {
            let path = cluster.path("bin").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let keygen = Command::new(slowmo())
            .args(["keygen", "--out"])
            .arg(cluster.path("cluster.key"))
            .output()
            .unwrap();
        assert!(keygen.status.success());
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns the command that `sbatch` would run on the first host of job `id`: bash with a copy
    /// of the script somewhere else.
    fn batch(&self, script: &str, id: &str, tasks: u16, port: u16) -> Command {
        let spool = self.path(&format!("spool-{id}"));
        fs::copy(scripts().join(script), &spool).unwrap();
        let path = std::env::join_paths([self.path("bin")].into_iter().chain(
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()),
        ));
        let mut command = Command::new("bash");
        command
            .arg(spool)
            .env("PATH", path.unwrap())
            .env("TRAIN_FOLDER", self.folder.path())
            .env("TRAIN_SLOWMO", slowmo());
        command
            .env("TRAIN_SCRIPTS", scripts())
            .env("TRAIN_PORT", port.to_string());
        command
            .env("SLURM_JOB_ID", id)
            .env("SLURM_JOB_NODELIST", "localhost")
            .env("SLURM_NTASKS", tasks.to_string());
        command
            .env("SLURM_TASKS_PER_NODE", tasks.to_string())
            .env_remove("SLURM_SUBMIT_DIR");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn socket(&self, id: &str, task: usize) -> PathBuf {
        PathBuf::from(format!("/tmp/slowmo-{}-{id}/{task}", self.user))
    }
}

fn slowmo() -> &'static str {
    env!("CARGO_BIN_EXE_slowmo")
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("slurm")
}

/// A job of its own: the scripts' sockets are named by it.
fn job(of: u32) -> String {
    (u64::from(std::process::id()) * 10 + u64::from(of)).to_string()
}

/// So many ports in a row that nobody uses now.
fn free_ports(count: u16) -> u16 {
    let is_free = |port: u16| UdpSocket::bind(("127.0.0.1", port)).is_ok();
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    (first..first + 20_000)
        .find(|from| (*from..from + count).all(is_free))
        .unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The `SLOWMO_*` variables that a task got, one a line.
fn keys_of(told: &str) -> Vec<String> {
    let mut keys: Vec<String> = told
        .lines()
        .filter(|line| line.starts_with("SLOWMO_"))
        .map(str::to_owned)
        .collect();
    keys.sort();
    keys
}

#[test]
fn every_task_becomes_a_node_with_its_own_id_and_port() {
    let cluster = Cluster::new();
    let id = job(1);
    let mut command = cluster.batch("start.sbatch", &id, 3, 7000);
    let output = command
        .args(["train", "--epochs", "9 0"])
        .env("SLOWMO_TAU", "24")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let folder = cluster.folder.path().display();
    for task in 0..3 {
        let expected = [
            format!("SLOWMO_ADMIN={}", cluster.socket(&id, task).display()),
            format!("SLOWMO_ADVERTISE=localhost:{}", 7000 + task),
            format!("SLOWMO_CHECKPOINTS={folder}/checkpoints"),
            "SLOWMO_CHECKPOINT_EVERY=10".to_owned(),
            format!("SLOWMO_CLUSTER_KEY_FILE={folder}/cluster.key"),
            "SLOWMO_DISCOVER=slurm:7000".to_owned(),
            format!("SLOWMO_LISTEN=0.0.0.0:{}", 7000 + task),
            "SLOWMO_MEET_TIMEOUT_MS=600000".to_owned(),
            "SLOWMO_MIN_NODES=2".to_owned(),
            format!("SLOWMO_NODE_ID={}", task + 1),
            "SLOWMO_TAU=24".to_owned(),
        ];
        assert_eq!(
            keys_of(&cluster.text(&format!("told-{task}-{id}"))),
            expected
        );
        let config = expected.iter().map(|line| {
            line.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .unwrap()
        });
        slowmo::Config::from_sources(None, config, std::iter::empty()).unwrap();
    }
    assert_eq!(cluster.text("arguments"), "--epochs\n9 0\n");
    assert_eq!(cluster.text("nodes"), "localhost:7000\n");
    let node = scripts().join("node");
    assert_eq!(
        cluster.text("srun"),
        format!(
            "--no-kill --kill-on-bad-exit=0 --wait=0 {} train --epochs 9 0\n",
            node.display()
        )
    );
    assert_eq!(cluster.text("scontrol"), "show hostnames localhost\n");
    assert!(
        !cluster.path("jobs").join(&id).exists(),
        "the job has ended"
    );
    fs::remove_dir(cluster.socket(&id, 0).parent().unwrap()).unwrap();
}

#[test]
fn added_nodes_have_the_keys_of_the_bootstrap_members_and_join() {
    let cluster = Cluster::new();
    let ids = [job(2), job(3)];
    let early = cluster
        .batch("add-nodes.sbatch", &ids[1], 1, 7100)
        .arg("train")
        .output()
        .unwrap();
    assert!(
        !early.status.success() && told(&early).contains("no training was started in"),
        "{}",
        told(&early)
    );
    let start = cluster
        .batch("start.sbatch", &ids[0], 5, 7000)
        .arg("train")
        .env("SLOWMO_TAU", "24")
        .output()
        .unwrap();
    assert!(start.status.success(), "{}", told(&start));
    let add = cluster
        .batch("add-nodes.sbatch", &ids[1], 1, 7100)
        .arg("train")
        .output()
        .unwrap();
    assert!(add.status.success(), "{}", told(&add));
    let keys = keys_of(&cluster.text(&format!("told-0-{}", ids[1])));
    let has = |line: &str| keys.iter().any(|key| key == line);
    assert!(
        has("SLOWMO_JOIN=true")
            && has("SLOWMO_MIN_NODES=3")
            && has("SLOWMO_TAU=24")
            && has("SLOWMO_CHECKPOINT_EVERY=10"),
        "{keys:?}"
    );
    assert!(
        has(&format!(
            "SLOWMO_DISCOVER=file:{}",
            cluster.path("nodes").display()
        )),
        "{keys:?}"
    );
    assert!(
        !keys.iter().any(|key| key.starts_with("SLOWMO_NODE_ID")),
        "{keys:?}"
    );
    assert_eq!(cluster.text("nodes"), "localhost:7000\nlocalhost:7100\n");
    ids.iter()
        .for_each(|id| fs::remove_dir(cluster.socket(id, 0).parent().unwrap()).unwrap());
}

#[test]
fn the_file_of_keys_holds_no_secret_and_is_not_executed() {
    let cluster = Cluster::new();
    let ids = [job(21), job(22)];
    let secret = "5e".repeat(32);
    let start = cluster
        .batch("start.sbatch", &ids[0], 1, 7000)
        .arg("train")
        .env("SLOWMO_CLUSTER_KEY", &secret)
        .output()
        .unwrap();
    assert!(start.status.success(), "{}", told(&start));
    let keys = cluster.text("keys");
    assert!(!keys.contains(&secret), "{keys}");
    let executed = cluster.path("executed");
    let planted = [
        format!("SLOWMO_TAU=$(touch {})\n", executed.display()),
        format!("touch {}\n", executed.display()),
        format!("SLOWMO_A[$(touch {})]=1\n", executed.display()),
        format!("SLOWMO_TAU=1; touch {}\n", executed.display()),
    ];
    for line in planted {
        fs::write(cluster.path("keys"), keys.clone() + &line).unwrap();
        let _ended = cluster
            .batch("add-nodes.sbatch", &ids[1], 1, 7100)
            .arg("train")
            .output()
            .unwrap();
        assert!(!executed.exists(), "{line}");
    }
    ids.iter().for_each(|id| {
        let _removed = fs::remove_dir(cluster.socket(id, 0).parent().unwrap());
    });
}

/// Bootstrap members that come back must not bootstrap a second training beside the nodes that were
/// added and still train.
#[test]
fn bootstrap_members_that_are_started_again_join_the_jobs_that_go_on() {
    let cluster = Cluster::new();
    let ids = [job(8), job(9), job(10)];
    fs::create_dir(cluster.path("jobs")).unwrap();
    for (id, address) in [(&ids[1], "added:7000\n"), (&ids[2], "killed:7000\n")] {
        fs::write(cluster.path("jobs").join(id), address).unwrap();
    }
    fs::write(cluster.path("running"), format!("{}\n", ids[1])).unwrap();
    fs::write(cluster.path("keys"), "left as it is").unwrap();
    let output = cluster
        .batch("start.sbatch", &ids[0], 2, 7000)
        .arg("train")
        .output()
        .unwrap();
    assert!(
        output.status.success() && told(&output).contains(&format!("other jobs ({})", ids[1])),
        "{}",
        told(&output)
    );
    let keys = keys_of(&cluster.text(&format!("told-0-{}", ids[0])));
    let found_by = format!("SLOWMO_DISCOVER=file:{}", cluster.path("nodes").display());
    assert!(
        keys.contains(&"SLOWMO_JOIN=true".to_owned()) && keys.contains(&found_by),
        "{keys:?}"
    );
    assert!(
        !keys.iter().any(|key| key.starts_with("SLOWMO_NODE_ID")),
        "{keys:?}"
    );
    assert_eq!(
        (
            cluster.text("nodes").as_str(),
            cluster.text("keys").as_str()
        ),
        ("localhost:7000\nadded:7000\n", "left as it is")
    );
    fs::remove_dir(cluster.socket(&ids[0], 0).parent().unwrap()).unwrap();
}

#[test]
fn what_is_missing_is_named_before_anything_runs() {
    let cluster = Cluster::new();
    let refused = |command: &mut Command, expected: &str| {
        let output = command.output().unwrap();
        assert!(
            !output.status.success() && told(&output).contains(expected),
            "{expected}: {}",
            told(&output)
        );
        assert!(!cluster.path("srun").exists());
    };
    let batch = || cluster.batch("start.sbatch", "1", 2, 7000);
    refused(&mut batch(), "no training binary was named");
    refused(
        batch().arg("train").env_remove("TRAIN_FOLDER"),
        "TRAIN_FOLDER is not set",
    );
    refused(
        batch().arg("train").env_remove("SLURM_JOB_ID"),
        "start it with sbatch",
    );
    refused(
        batch().arg("train").env_remove("TRAIN_SCRIPTS"),
        "set TRAIN_SCRIPTS",
    );
    fs::set_permissions(
        cluster.path("cluster.key"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    refused(batch().arg("train"), "others may read it");
    fs::remove_file(cluster.path("cluster.key")).unwrap();
    refused(batch().arg("train"), "there is no cluster key");
}

/// Slurm may tell a preemption to the tasks alone, which then drain and end as if all was done.
#[test]
fn a_job_that_is_preempted_goes_back_into_the_queue_if_that_is_wanted() {
    let cluster = Cluster::new();
    fs::write(cluster.path("preempted"), "7\n8\n").unwrap();
    fs::write(cluster.path("cancelled"), "8\n").unwrap();
    let jobs = [
        ("6", "yes", false),
        ("7", "no", false),
        ("7", "yes", true),
        ("8", "yes", false),
    ];
    for (id, wanted, requeued) in jobs {
        fs::remove_file(cluster.path("scontrol")).unwrap_or_default();
        let mut command = cluster.batch("start.sbatch", id, 2, 7000);
        let output = command
            .arg("train")
            .env("TRAIN_REQUEUE", wanted)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", told(&output));
        let asked = cluster.text("scontrol");
        assert_eq!(
            asked.contains(&format!("requeue {id}\n")),
            requeued,
            "{id}, {wanted}: {asked}"
        );
    }
}

/// A batch script under way.
struct Job(Child);

impl Job {
    fn start(mut command: Command) -> Self {
        command
            .arg(slowmo())
            .args(TRAINING)
            .env("SLOWMO_LOG", "error");
        Self(
            command
                .env("SLOWMO_TAU", "1")
                .env("TRAIN_REQUEUE", "yes")
                // Nobody reads what the nodes print, so a pipe would fill up and stop them.
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    /// Slurm's signal before the end: to the batch script alone.
    fn warn(&self) {
        kill(
            Pid::from_raw(i32::try_from(self.0.id()).unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
    }

    fn finish(self) -> Output {
        self.0.wait_with_output().unwrap()
    }
}

fn until_members(socket: &Path, members: usize, job: &mut Job) {
    until(&format!("{members} members"), || {
        assert!(job.0.try_wait().unwrap().is_none());
        let output = Command::new(slowmo())
            .args(["status", "--json", "--admin"])
            .arg(socket)
            .output()
            .unwrap();
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if status["contributors"] == members && status["members"] == members {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
}

#[test]
fn a_warning_before_the_end_drains_the_nodes_of_that_job_and_the_others_go_on() {
    let cluster = Cluster::new();
    let ids = [job(4), job(5)];
    let port = free_ports(5);
    let mut bootstrap_members = Job::start(cluster.batch("start.sbatch", &ids[0], 3, port));
    let first = cluster.socket(&ids[0], 0);
    until_members(&first, 3, &mut bootstrap_members);
    let added = Job::start(cluster.batch("add-nodes.sbatch", &ids[1], 2, port + 3));
    until_members(&first, 5, &mut bootstrap_members);
    added.warn();
    let ended = added.finish();
    assert!(ended.status.success(), "{}", told(&ended));
    assert!(
        told(&ended).contains("its nodes hand over and leave"),
        "{}",
        told(&ended)
    );
    until_members(&first, 3, &mut bootstrap_members);
    bootstrap_members.warn();
    let ended = bootstrap_members.finish();
    assert!(ended.status.success(), "{}", told(&ended));
    let scontrol = cluster.text("scontrol");
    for id in &ids {
        assert!(scontrol.contains(&format!("requeue {id}\n")), "{scontrol}");
        fs::remove_dir(cluster.socket(id, 0).parent().unwrap()).unwrap();
    }
    let drains = cluster
        .text("srun")
        .lines()
        .filter(|line| line.starts_with("--overlap") && line.ends_with("node --drain 110"))
        .count();
    assert_eq!(drains, 2);
}
