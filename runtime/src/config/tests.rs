//! Tests of the configuration: every source, every range, every message.
#![allow(clippy::unwrap_used)]

use super::keys::{Allowed, markdown_table};
use super::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

fn from(
    file: Option<&str>,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> Result<Config, ConfigError> {
    let file = file.map(|text| (Path::new("slowmo.toml"), text));
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::from_sources(
        file,
        variables,
        arguments.iter().map(|argument| (*argument).to_owned()),
    )
}

fn refusal(file: Option<&str>, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    from(file, variables, arguments).unwrap_err().to_string()
}

#[test]
fn the_table_and_the_defaults_agree() {
    let config = Config::default();
    config.check().unwrap();
    for key in KEYS {
        assert_eq!(key.text(&config), key.default, "{}", key.name);
        assert!(markdown_table().contains(&format!("| `{}` | `{}` |", key.name, key.default)));
        assert!(!key.meaning.is_empty() && !key.allowed.to_string().is_empty());
    }
    assert_eq!(from(None, &[], &[]).unwrap(), config);
}

#[test]
fn every_field_has_a_key() {
    // One key a field: the debug form of the configuration names each field once.
    let shown = format!("{:#?}", Config::default());
    let fields = shown
        .lines()
        .filter(|line| line.starts_with("    ") && !line.starts_with("     "));
    let fields: Vec<&str> = fields
        .filter_map(|line| line.trim().split_once(": "))
        .map(|(name, _)| name)
        .collect();
    let keys: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(fields, keys);
}

#[test]
fn every_value_survives_its_own_text() {
    let samples = [
        ("node_id", "18446744073709551615"),
        ("listen", "[::1]:7000"),
        ("peers", "one:1,[::1]:7000,10.0.0.2:65535"),
        ("rendezvous", "/tmp/meet"),
        ("discover", "none"),
        ("discover", "dns:slowmo.train.svc:7000"),
        ("discover", "dns:[::1]:7000"),
        ("discover", "slurm:7000"),
        ("discover", "file:/shared/nodes: all"),
        ("cluster_key_file", "key"),
        ("base", "sgp"),
        ("outer", "bmuf_nbm"),
        ("lineage", "00112233445566778899aabbccddeeff"),
        ("lineage", "any"),
        ("alpha", "1e-7"),
        ("beta", "0.0"),
        ("average_every", "12"),
        ("average_every", "off"),
        ("sharded", "false"),
        ("buffers", "reset"),
        ("congestion", "new_reno"),
        ("same_host", "off"),
    ];
    for (name, text) in samples {
        let config = Config::default().with(name, text).unwrap();
        assert_eq!(Key::find(name).unwrap().text(&config), text);
        config.check().unwrap();
    }
    let config = Config::default().with("cluster_key", KEY).unwrap();
    assert_eq!(
        Key::find("cluster_key").unwrap().text(&config),
        KEY.to_lowercase()
    );
    assert!(
        !format!("{config:?}").contains("0011"),
        "a secret must not reach a log"
    );
}

#[test]
fn bounds_are_part_of_their_ranges() {
    for key in KEYS {
        let Allowed::Whole(from, to) = key.allowed else {
            continue;
        };
        let mut config = Config::default();
        config.set(key.name, &from.to_string()).unwrap();
        if to < u64::MAX {
            config.set(key.name, &to.to_string()).unwrap();
            assert!(
                config.set(key.name, &(to + 1).to_string()).is_err(),
                "{}",
                key.name
            );
        }
        if from > 0 {
            assert!(
                config.set(key.name, &(from - 1).to_string()).is_err(),
                "{}",
                key.name
            );
        }
    }
}

#[test]
fn the_later_source_wins() {
    let file = "tau = 10\nbeta = 0.1\npeers = [\"a:1\", \"b:2\"]\naverage_every = 5\n# a \
        comment\nno_average = false\nalpha = 2\nfrequency = 1_000\n";
    let variables = [
        ("SLOWMO_TAU", "20"),
        ("SLOWMO_BETA", "0.2"),
        ("PATH", "/bin"),
        ("SLOWMO_LOG", "debug"),
        ("SLOWMO_LAUNCHER_PID", "1"),
    ];
    let arguments = [
        "train",
        "--tau",
        "7",
        "--slowmo-tau",
        "30",
        "--slowmo-min-nodes=2",
        "--slowmo-config=slowmo.toml",
        "--",
        "--slowmo-tau",
    ];
    let config = from(Some(file), &variables, &arguments).unwrap();
    assert_eq!(
        (config.tau, config.beta, config.alpha, config.frequency),
        (30, 0.2, 2.0, 1000)
    );
    assert_eq!((config.min_nodes, config.average_every), (2, Some(5)));
    assert_eq!(config.peers, ["a:1", "b:2"]);
    let user = user_arguments(arguments.iter().map(|argument| (*argument).to_owned())).unwrap();
    assert_eq!(user, ["train", "--tau", "7", "--", "--slowmo-tau"]);
}

#[test]
fn unknown_keys_name_their_source_and_the_nearest_key() {
    let cases = [
        (
            refusal(Some("\n\nbase = \"sgp\"\ntua = 3\n"), &[], &[]),
            "unknown key tua (from slowmo.toml line 4): did you mean tau?",
        ),
        (
            refusal(Some("[alpah]\ntau = 3\n"), &[], &[]),
            "alpah (from slowmo.toml line 1) is table: write a string, a number, true, false, or an \
             array of strings; keys stand outside of any table",
        ),
        (
            refusal(None, &[("SLOWMO_FREQENCY", "3")], &[]),
            "unknown key freqency (from variable SLOWMO_FREQENCY): did you mean frequency?",
        ),
        (
            refusal(None, &[], &["--slowmo-minnodes=3"]),
            "unknown key minnodes (from flag --slowmo-minnodes): did you mean min_nodes?",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    for (variable, nearest) in [
        ("SLOWMO_TUA", "tau"),
        ("SLOWMO_CLUSTERKEYFILE", "cluster_key_file"),
        ("SLOWMO_MIN_NODE", "min_nodes"),
        ("SLOWMO_CONFG", "config"),
        ("SLOWMO_LOGS", "log"),
    ] {
        let told = refusal(None, &[(variable, "3")], &[]);
        assert!(
            told.ends_with(&format!("did you mean {nearest}?")) && told.contains(variable),
            "{told}"
        );
    }
    let error = Config::default().set("betta", "1").unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown key betta (from the program): did you mean beta?"
    );
}

#[test]
fn variables_of_another_tool_stop_nothing_and_are_named() {
    // As Kubernetes sets them for a service with the name slowmo.
    let variables = [
        ("SLOWMO_PORT", "udp://10.0.0.1:7000"),
        ("SLOWMO_PORT_7000_UDP_ADDR", "10.0.0.1"),
        ("SLOWMO_SERVICE_HOST", "10.0.0.1"),
        ("SLOWMO_IMAGE", "slowmo:3"),
        ("SLOWMO_NODES", "4"),
        ("SLOWMO_TAU", "30"),
        ("SLOWMO_LOG", "debug"),
        ("OTHER_TAU", "1"),
    ];
    let config = from(None, &variables, &[]).unwrap();
    assert_eq!(config.tau, 30);
    let names = variables.map(|(name, _)| name.to_owned());
    let told = sources::ignored_of(names.into_iter());
    let named = [
        "IMAGE",
        "NODES",
        "PORT",
        "PORT_7000_UDP_ADDR",
        "SERVICE_HOST",
    ];
    assert_eq!(told.len(), named.len(), "{told:?}");
    for (told, named) in told.iter().zip(named) {
        assert!(
            told.starts_with(&format!("variable SLOWMO_{named} is ignored")),
            "{told}"
        );
    }
}

#[test]
fn values_out_of_range_name_key_value_source_and_range() {
    let cases = [
        (
            refusal(Some("beta = 1.0"), &[], &[]),
            "beta = 1.0 (from slowmo.toml line 1): beta must be a number in [0, 1)",
        ),
        (
            refusal(Some("beta = nan"), &[], &[]),
            "beta = nan (from slowmo.toml line 1): beta must be a number in [0, 1)",
        ),
        (
            refusal(None, &[("SLOWMO_BETA", "-0.1")], &[]),
            "beta = -0.1 (from variable SLOWMO_BETA): beta must be a number in [0, 1)",
        ),
        (
            refusal(None, &[], &["--slowmo-tau", "0"]),
            "tau = 0 (from flag --slowmo-tau): tau must be a whole number of 1 or more",
        ),
        (
            refusal(None, &[], &["--slowmo-frequency=0"]),
            "frequency = 0 (from flag --slowmo-frequency): frequency must be a whole number of 1 \
             or more",
        ),
        (
            refusal(None, &[], &["--slowmo-alpha", "inf"]),
            "alpha = inf (from flag --slowmo-alpha): alpha must be a finite number above 0",
        ),
        (
            refusal(None, &[], &["--slowmo-eta", "-1"]),
            "eta = -1 (from flag --slowmo-eta): eta must be a finite number above 0",
        ),
        (
            refusal(Some("replicas = 4"), &[], &[]),
            "replicas = 4 (from slowmo.toml line 1): replicas must be a whole number from 0 to 3",
        ),
        (
            refusal(Some("tau = 4.5"), &[], &[]),
            "tau = 4.5 (from slowmo.toml line 1): tau must be a whole number of 1 or more",
        ),
        (
            refusal(Some("base = \"ddp\""), &[], &[]),
            "base = ddp (from slowmo.toml line 1): base must be one of local_sgd, sgp, all_reduce, \
             none",
        ),
        (
            refusal(Some("average_every = 0"), &[], &[]),
            "average_every = 0 (from slowmo.toml line 1): average_every must be off, or a whole \
             number of 1 or more",
        ),
        (
            refusal(Some("cluster_key = \"secret\""), &[], &[]),
            "cluster_key = (hidden) (from slowmo.toml line 1): cluster_key must be 64 hexadecimal \
             digits, as slowmo keygen writes them",
        ),
        (
            refusal(Some("peers = [\"a:1\", \"b\"]"), &[], &[]),
            "peers = a:1,b (from slowmo.toml line 1): peers must be a list of at most 4096 \
             host:port, separated by commas",
        ),
        (
            refusal(Some("tau = [1]"), &[], &[]),
            "tau (from slowmo.toml line 1) is array: write a string, a number, true, false, or an \
             array of strings; keys stand outside of any table",
        ),
        (
            refusal(None, &[], &["--slowmo-tau"]),
            "--slowmo-tau has no value: write --slowmo-tau=VALUE or --slowmo-tau VALUE",
        ),
        (
            refusal(None, &[], &["--slowmo-sharded", "--x"]),
            "--slowmo-sharded has no value: write --slowmo-sharded=VALUE or --slowmo-sharded VALUE",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    for wrong in [
        "",
        "dns",
        "dns:name",
        "dns::7000",
        "dns:name:0",
        "slurm:",
        "slurm:0",
        "slurm:70000",
        "file:",
        "dir:/nodes",
    ] {
        let told = Config::default()
            .with("discover", wrong)
            .unwrap_err()
            .to_string();
        assert!(
            told.ends_with("discover must be none, dns:NAME:PORT, slurm:PORT or file:PATH"),
            "{told}"
        );
    }
    for peer in [":1", "a", "a:0", "a:70000", "a b:1", "::1:7000"] {
        assert!(Config::default().set("peers", peer).is_err(), "{peer}");
    }
}

#[test]
fn a_refused_value_leaves_the_configuration_unchanged() {
    let mut config = Config::default();
    assert!(config.set("peers", "a:1,b").is_err());
    assert!(config.set("cluster_key", &"zz".repeat(32)).is_err());
    assert_eq!(config, Config::default());
}

#[test]
fn fields_set_by_hand_are_checked_too() {
    let check = |config: Config| config.check().unwrap_err().to_string();
    assert!(
        check(Config {
            tau: 0,
            ..Config::default()
        })
        .starts_with("tau = 0: an outer round needs")
    );
    assert!(
        check(Config {
            beta: f32::NAN,
            ..Config::default()
        })
        .starts_with("beta = NaN: a momentum must lie in [0, 1)")
    );
    assert_eq!(
        check(Config {
            devices: 0,
            ..Config::default()
        }),
        "devices = 0 (from the program): devices must be a whole number from 1 to 64"
    );
    assert!(
        check(Config {
            keep_alive_ms: 10_000,
            ..Config::default()
        })
        .starts_with("keep_alive_ms = 10000 must be below")
    );
    let folder_and_file = Config {
        rendezvous: Some("/tmp/meet".into()),
        ..Config::default()
    }
    .with("discover", "file:nodes")
    .unwrap();
    assert!(check(folder_and_file).starts_with("rendezvous and discover exclude each other"));
    assert!(
        check(Config {
            eta: f32::NAN,
            ..Config::default()
        })
        .starts_with("eta = NaN (from the program)")
    );
}

#[test]
fn a_secret_is_not_taken_from_the_command_line() {
    let refused = refusal(None, &[], &["--slowmo-cluster-key", KEY]);
    assert!(
        refused.contains("--slowmo-cluster-key shows the secret")
            && refused.contains("cluster_key_file")
            && !refused.contains(KEY),
        "{refused}"
    );
}

#[test]
fn credentials_are_one_kind_and_whole() {
    let tls = [
        ("SLOWMO_TLS_CA_FILE", "ca"),
        ("SLOWMO_TLS_CERTIFICATE_FILE", "chain"),
        ("SLOWMO_TLS_KEY_FILE", "key"),
    ];
    let whole = from(None, &tls, &[]).unwrap();
    let files = Credentials::Files {
        ca: Path::new("ca"),
        certificate: Path::new("chain"),
        key: Path::new("key"),
        crl: None,
        cluster_name: None,
        peer_name: None,
    };
    assert_eq!(whole.credentials(), files);
    for (key, value) in [
        ("SLOWMO_CLUSTER_NAME", "run-7"),
        ("SLOWMO_TLS_CRL_FILE", "lists"),
        ("SLOWMO_TLS_PEER_NAME", "node-{id}.example"),
    ] {
        let alone = refusal(None, &[(key, value), ("SLOWMO_CLUSTER_KEY", KEY)], &[]);
        assert!(alone.contains("needs tls_ca_file"), "{alone}");
        assert!(from(None, &[tls[0], tls[1], tls[2], (key, value)], &[]).is_ok());
    }
    assert!(refusal(None, &tls[1..], &[]).starts_with("tls_ca_file is missing"));
    assert!(refusal(None, &tls[..2], &[]).starts_with("tls_key_file is missing"));
    let both = [tls[0], tls[1], tls[2], ("SLOWMO_CLUSTER_KEY", KEY)];
    assert!(
        refusal(None, &both, &[]).starts_with("cluster_key and tls_ca_file exclude each other")
    );
    assert!(
        refusal(
            None,
            &[("SLOWMO_CLUSTER_KEY", KEY)],
            &["--slowmo-cluster-key-file=k"]
        )
        .starts_with("cluster_key and cluster_key_file")
    );
    let keyed = from(None, &[], &["--slowmo-cluster-key-file=k"]).unwrap();
    assert_eq!(
        keyed.credentials(),
        Credentials::ClusterKeyFile(Path::new("k"))
    );
    assert_eq!(Config::default().credentials(), Credentials::None);
}

#[test]
fn the_algorithm_follows_the_names() {
    let slowmo = Config::default().algorithm().unwrap();
    let optimizer = OuterOptimizer::SlowMo {
        alpha: 1.0,
        beta: 0.5,
    };
    assert_eq!(slowmo.base, Base::LocalSgd { frequency: 3 });
    assert_eq!(
        slowmo.outer,
        Some(Outer {
            frequency: 48,
            optimizer,
            sharded: true,
            average: true
        })
    );
    let off = Config {
        beta: 0.0,
        ..Config::default()
    }
    .algorithm()
    .unwrap();
    assert_eq!(off.outer, None);
    let diloco = Config {
        base: BaseName::None,
        outer: OuterName::Nesterov,
        ..Config::default()
    }
    .algorithm()
    .unwrap();
    assert_eq!(
        diloco.outer.map(|outer| outer.optimizer),
        Some(OuterOptimizer::Nesterov { eta: 0.7, mu: 0.9 })
    );
    let ordered = Config {
        base: BaseName::Sgp,
        topology: TopologyName::BandwidthAware,
        beta: 0.0,
        ..Config::default()
    };
    let nobody_decides = Err(ConfigError::Algorithm(
        slowmo_protocol::algorithm::AlgorithmError::OrderNeedsAverages,
    ));
    assert_eq!(ordered.algorithm(), nobody_decides);
    assert!(
        Config {
            average_every: Some(9),
            ..ordered
        }
        .algorithm()
        .is_ok()
    );
    let sharded = Config {
        base: BaseName::Sgp,
        staleness: 0,
        no_average: true,
        ..Config::default()
    }
    .algorithm()
    .unwrap_err();
    assert_eq!(
        sharded,
        ConfigError::Algorithm(slowmo_protocol::algorithm::AlgorithmError::NoAverageIsUnsharded)
    );
}

#[test]
fn shared_settings_leave_out_what_is_a_node_s_own() {
    use slowmo_protocol::membership::settings::{SETTINGS_BYTES_MAX, differing_settings};
    let one = Config {
        devices: 4,
        node_id: Some(1),
        ..Config::default()
    }
    .shared_settings();
    let other = Config {
        beta: 0.25,
        replicas: 2,
        ..Config::default()
    }
    .shared_settings();
    assert!(
        one.starts_with("min_nodes = 1\nmax_nodes = 4096\nbase = local_sgd\nfrequency = 3\n"),
        "{one}"
    );
    assert!(one.len() <= SETTINGS_BYTES_MAX);
    assert_eq!(one, Config::default().shared_settings());
    let differences: Vec<String> = differing_settings(&one, &other)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        differences,
        [
            "beta is 0.5 here, 0.25 there",
            "replicas is 1 here, 2 there"
        ]
    );
}

#[test]
fn files_that_cannot_be_read_are_typed() {
    let syntax = refusal(Some("tau = 4\nbeta = \n"), &[], &[]);
    assert!(
        syntax.starts_with("slowmo.toml line 2 is not valid TOML: "),
        "{syntax}"
    );
    assert!(
        refusal(Some("tau = 4\ntau = 5\n"), &[], &[])
            .starts_with("slowmo.toml line 2 is not valid TOML: ")
    );
    let missing = sources::read(Path::new("/no/such/slowmo.toml")).unwrap_err();
    assert_eq!(
        missing,
        ConfigError::FileMissing {
            path: "/no/such/slowmo.toml".into()
        }
    );
    assert!(matches!(
        sources::read(Path::new("/")),
        Err(ConfigError::FileUnreadable { .. })
    ));
}

#[test]
fn a_file_with_a_secret_is_read_by_its_user_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slowmo.toml");
    let load = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let arguments = ["--slowmo-config".into(), path.clone().into()];
        load_of(std::iter::empty(), arguments.into_iter())
    };
    let secret = format!("tau = 12\ncluster_key = \"{KEY}\"\n");
    for mode in [0o644, 0o660, 0o604, 0o602] {
        let error = load(&secret, mode).unwrap_err();
        assert!(
            matches!(
                &error,
                ConfigError::FileWithSecret {
                    key: "cluster_key",
                    ..
                }
            ),
            "{error}"
        );
        let told = error.to_string();
        assert!(
            told.contains("slowmo.toml") && told.contains("chmod 600") && !told.contains(KEY),
            "{told}"
        );
    }
    for (text, mode) in [
        (secret.as_str(), 0o600),
        (&secret, 0o640),
        ("tau = 12", 0o666),
    ] {
        assert_eq!(load(text, mode).unwrap().tau, 12);
    }
}

#[test]
fn a_lineage_has_all_its_digits_and_names_a_history() {
    for text in [
        "",
        "7",
        "00000000000000000000000000000000",
        "+0112233445566778899aabbccddeeff",
        "00112233445566778899aabbccddeeff00",
    ] {
        let told = Config::default()
            .with("lineage", text)
            .unwrap_err()
            .to_string();
        assert!(told.contains("32 hexadecimal digits"), "{told}");
    }
}

#[test]
fn a_bootstrap_by_half_of_the_nodes_may_happen_twice() {
    let with = |min_nodes: usize, peers: &str| {
        Config {
            min_nodes,
            ..Config::default()
        }
        .with("peers", peers)
        .unwrap()
    };
    let one = "10.0.0.2:7000";
    let three = "10.0.0.2:7000,10.0.0.3:7000,10.0.0.4:7000";
    let twice = |config: Config| config.may_bootstrap_twice();
    assert!(twice(with(1, one)) && twice(with(1, three)) && twice(with(2, three)));
    assert!(!twice(with(1, "")) && !twice(with(2, one)) && !twice(with(3, three)));
    assert!(
        !twice(Config {
            join: true,
            ..with(2, three)
        }),
        "it bootstraps nothing"
    );
    assert!(
        !twice(Config {
            listen: SocketAddr::from(([10, 0, 0, 2], 7000)),
            ..with(2, three)
        }),
        "the list names this node too"
    );
}

#[test]
fn a_grace_that_would_be_cut_is_refused_with_its_bound() {
    let with = |grace_ms, round_timeout_ms| Config {
        grace_ms,
        round_timeout_ms,
        ..Config::default()
    };
    let told = with(500_000, 300_000).check().unwrap_err().to_string();
    assert_eq!(
        told,
        "grace_ms = 500000 is more than half of round_timeout_ms = 300000: set grace_ms to at most \
         150000, or round_timeout_ms to at least 1000000"
    );
    with(150_000, 300_000).check().unwrap();
    assert!(with(150_001, 300_001).check().is_err());
}

#[test]
fn a_process_takes_its_share_of_the_processors() {
    let config = Config::default();
    assert_eq!(config.threads(1, 2), 2);
    assert_eq!(config.threads(4, 2), 1);
    assert_eq!(config.threads(4, 12), 3);
    assert_eq!(config.threads(1, 64), 4);
    assert_eq!(config.threads(0, 1), 1);
    let set = Config {
        runtime_threads: Some(8),
        ..Config::default()
    };
    assert_eq!(set.threads(4, 2), 8);
}
