//! Chaos on real processes: what to do to them, the links between them, and what became of it. The
//! processes themselves are started, signalled and ended by `slowmo chaos`.
//!
//! | module | does |
//! |---|---|
//! | [`scenario`] | what a run is like, as a TOML file; the shipped ones |
//! | [`schedule`] | which fault hits whom and when: follows from scenario and seed |
//! | [`relay`] | userspace links between the nodes: cut, slow, lossy |
//! | [`collect`] | the nodes' traces and the runner's as one, in order of time |
//! | [`measure`] | figures of a trace: throughput, recovery, growth |
//! | [`report`] | verdicts and figures as JSON, text and one HTML page |
//!
//! Touches loopback sockets ([`relay`]) and the files that it is told ([`scenario`], [`collect`]);
//! everything else is pure.

pub mod collect;
pub mod measure;
pub mod relay;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod schedule;
