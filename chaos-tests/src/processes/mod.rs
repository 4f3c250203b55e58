//! Chaos on real processes: the faults, the links between the processes, and the evaluation. The
//! processes themselves are started, signalled and ended by `slowmo chaos`.
//!
//! | module | does |
//! |---|---|
//! | [`scenario`] | the description of a run, as a TOML file; the shipped ones |
//! | [`schedule`] | which fault hits which node and when: derived from scenario and seed |
//! | [`relay`] | userspace links between the nodes: cut, slow, lossy |
//! | [`collect`] | the nodes' traces and the runner's as one, in order of time |
//! | [`measure`] | figures of a trace: throughput, recovery, growth |
//! | [`report`] | verdicts and figures as JSON, text and one HTML page |
//!
//! Touches loopback sockets ([`relay`]) and the files that it is given ([`scenario`], [`collect`]);
//! everything else is pure.

pub mod collect;
pub mod measure;
pub mod relay;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod schedule;
