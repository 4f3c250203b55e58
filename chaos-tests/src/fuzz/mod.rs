//! Fuzzing: one function for each decoder that reads what others sent or wrote. Each function takes
//! any bytes. It panics if the decoder panics, if a decoded value changes when it is encoded and
//! decoded again, or if a bound is violated.
//!
//! [`TARGETS`] is the only list of these functions: the libFuzzer targets in `chaos-tests/fuzz`,
//! the committed corpora and the deterministic run of the test suite all follow it. A new decoder
//! needs a function and a line here, plus a file of five lines there.
//!
//! | module | decodes |
//! |---|---|
//! | [`wire`] | data that nodes send each other: frames, prefaces, headers, datagrams, values |
//! | [`machines`] | the same data, handed to the state machines that act on it |
//! | [`endpoints`] | what is sent to a node's HTTP endpoint |
//! | [`text`] | data that people and tools write: configurations, keys, requests, traces, … |

pub mod endpoints;
pub mod machines;
pub mod mutate;
mod seeds;
pub mod text;
pub mod wire;

/// One decoder.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the libFuzzer target and of the folder of its corpus.
    pub name: &'static str,
    /// Decodes and returns whether anything was accepted. Panics if anything is wrong.
    pub run: fn(&[u8]) -> bool,
    /// Initial inputs, each with a name, where the corpus's are encoded by this crate: those of the
    /// frames come from the protocol's own examples, those of text are written by hand.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
}

/// All decoders.
pub const TARGETS: &[Target] = &[
    Target {
        name: "control_frame",
        run: wire::control_frame,
        seeds: Vec::new,
    },
    Target {
        name: "preface",
        run: wire::preface,
        seeds: Vec::new,
    },
    Target {
        name: "bulk_header",
        run: wire::bulk_header,
        seeds: Vec::new,
    },
    Target {
        name: "datagram",
        run: wire::datagram,
        seeds: Vec::new,
    },
    Target {
        name: "framing",
        run: wire::framing,
        seeds: seeds::framing,
    },
    Target {
        name: "values",
        run: wire::values,
        seeds: seeds::values,
    },
    Target {
        name: "coordinator",
        run: machines::coordinator,
        seeds: seeds::coordinator,
    },
    Target {
        name: "liveness",
        run: machines::liveness,
        seeds: seeds::liveness,
    },
    Target {
        name: "config_file",
        run: text::config_file,
        seeds: Vec::new,
    },
    Target {
        name: "config_sources",
        run: text::config_sources,
        seeds: Vec::new,
    },
    Target {
        name: "credentials",
        run: text::credentials,
        seeds: Vec::new,
    },
    Target {
        name: "certificate",
        run: text::certificate,
        seeds: Vec::new,
    },
    Target {
        name: "admin",
        run: text::admin,
        seeds: Vec::new,
    },
    Target {
        name: "launcher",
        run: text::launcher,
        seeds: Vec::new,
    },
    Target {
        name: "http",
        run: endpoints::http,
        seeds: Vec::new,
    },
    Target {
        name: "trajectory",
        run: text::trajectory,
        seeds: Vec::new,
    },
    Target {
        name: "trace",
        run: text::trace,
        seeds: Vec::new,
    },
    Target {
        name: "manifest",
        run: text::manifest,
        seeds: Vec::new,
    },
    Target {
        name: "tensor_file",
        run: text::tensor_file,
        seeds: Vec::new,
    },
    Target {
        name: "address_list",
        run: text::address_list,
        seeds: Vec::new,
    },
    Target {
        name: "host_list",
        run: text::host_list,
        seeds: Vec::new,
    },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
