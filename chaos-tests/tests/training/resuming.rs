//! Trainings that end and go on from a checkpoint: bit for bit, on any number of nodes.

use crate::support::{
    RATE, assert_close, bits, by_the_book, config, descend, in_hub, noisy, sgp, uneven, until,
};
use slowmo::Checkpoint;
use slowmo::internal::checkpoints::{list, newest_whole};
use slowmo::internal::config::{Resume, ResumeSampler};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{BaseName, ElasticSampler, OuterName};
use slowmo::{Buffers, Config, NamedTensors, Runtime, StepReport, Worker};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

const VALUES: usize = 900;
const TAU: u64 = 4;

/// An average every step, SlowMo every four, a checkpoint every second outer round.
fn settings(folder: &Path) -> Config {
    Config {
        base: BaseName::LocalSgd,
        frequency: 1,
        tau: TAU,
        checkpoints: Some(folder.to_owned()),
        checkpoint_every: Some(2),
        ..config()
    }
}

/// A node's view of a run: the step it began with, and its parameters after each.
#[derive(Clone, Debug, PartialEq)]
struct Trained {
    first: u64,
    found: Vec<f32>,
    values: Vec<Vec<f32>>,
    reports: Vec<StepReport>,
    optimizer: Vec<f32>,
    cursors: Vec<(u64, String)>,
    state: Vec<(std::ops::Range<usize>, Vec<f32>, Vec<f32>)>,
}

/// Trains on the node's own gradients up to step `end`; an optimizer's buffer counts the node's
/// steps.
fn train(runtime: &Runtime, worker: &mut Worker, node: u64, end: u64) -> Trained {
    let mut parameters = uneven(VALUES);
    let mut optimizer = vec![node as f32 * 1000.0];
    let found = worker
        .synchronize_with(
            &mut parameters,
            Buffers {
                optimizer: &mut optimizer,
                model: &mut (),
            },
        )
        .unwrap();
    let cursors = worker
        .resumed()
        .map(|resumed| resumed.cursors)
        .unwrap_or_default();
    // Between two calls of the training thread nothing moves but what joins.
    let state = runtime.inspect().unwrap().states;
    let mut trained = Trained {
        first: found.step,
        found: parameters.clone(),
        values: vec![],
        reports: vec![],
        optimizer: optimizer.clone(),
        cursors,
        state,
    };
    for step in found.step..end {
        let gradients = noisy(node as usize, step as usize, &parameters);
        descend(&mut parameters, &gradients, RATE);
        optimizer[0] += 1.0;
        worker.set_cursor(format!("{node} at {step}")).unwrap();
        let report = worker
            .step_with(
                &mut parameters,
                Buffers {
                    optimizer: &mut optimizer,
                    model: &mut (),
                },
                RATE,
            )
            .unwrap();
        trained.values.push(parameters.clone());
        trained.reports.push(report);
    }
    // One alone contributes to a founding: no weight was lost by that.
    assert_eq!(runtime.status().push_sum_weight_lost, 0.0);
    trained
}

/// A cluster of these nodes trains up to step `end`; they leave in order, or are dropped all at
/// once.
fn run(ids: &[u64], config: &Config, end: u64, leaves: bool) -> Vec<Trained> {
    let hub = MemoryHub::new(None);
    let config = Config {
        min_nodes: ids.len(),
        ..config.clone()
    };
    let runtimes: Vec<Runtime> = ids
        .iter()
        .map(|node| in_hub(&hub, *node, ids, &config))
        .collect();
    let all = Arc::new(Barrier::new(ids.len()));
    let threads = runtimes
        .into_iter()
        .zip(ids.to_vec())
        .map(|(runtime, node)| {
            let all = Arc::clone(&all);
            thread::spawn(move || {
                let mut worker = runtime.worker(0).unwrap();
                let trained = train(&runtime, &mut worker, node, end);
                if leaves {
                    worker.leave().unwrap();
                } else {
                    // Nobody is gone while others wait for a decision, and nothing is left to
                    // write.
                    all.wait();
                    until("the last part is written", || {
                        runtime
                            .status()
                            .checkpoints
                            .is_some_and(|told| told.last_step == Some(end))
                    });
                }
                trained
            })
        });
    threads
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

fn newest(folder: &Path) -> Checkpoint {
    newest_whole(folder).unwrap().0.unwrap()
}

#[test]
fn a_training_goes_on_bit_for_bit() {
    type Change = fn(Config) -> Config;
    let changes: [Change; 6] = [
        |config| config,
        |config| Config {
            outer: OuterName::Nesterov,
            ..config
        },
        |config| Config {
            sharded: false,
            ..config
        },
        |config| Config {
            alpha: 1.0,
            beta: 0.0,
            frequency: 4,
            ..config
        },
        |config| Config {
            checkpoints: config.checkpoints,
            checkpoint_every: config.checkpoint_every,
            ..sgp(TAU, 0.5)
        },
        |config| Config {
            replicas: 0,
            buffers: slowmo_protocol::algorithm::BufferStrategy::Average,
            ..config
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let whole = tempfile::tempdir().unwrap();
        let halves = tempfile::tempdir().unwrap();
        let ids = [3, 9, 4];
        let uninterrupted = run(&ids, &change(settings(whole.path())), 20, true);
        run(&ids, &change(settings(halves.path())), 8, true);
        let header = newest(halves.path()).header().clone();
        assert_eq!(
            (header.step, header.run, header.members.len()),
            (8, 0, 3),
            "case {index}"
        );
        let resumed = run(&ids, &change(settings(halves.path())), 20, true);
        for (whole, half) in uninterrupted.iter().zip(&resumed) {
            assert_eq!(half.first, 8);
            for (step, (expected, found)) in whole.values[8..].iter().zip(&half.values).enumerate()
            {
                assert!(
                    bits(found) == bits(expected),
                    "case {index}, step {}",
                    step + 8
                );
            }
        }
        let header = newest(halves.path()).header().clone();
        // The end of a training is kept although no checkpoint is due.
        assert_eq!((header.step, header.run), (20, 1), "case {index}");
    }
}

#[test]
fn any_number_of_nodes_takes_over_parameters_and_momentum() {
    let folder = tempfile::tempdir().unwrap();
    let before = run(&[3, 9, 4], &settings(folder.path()), 8, false);
    let checkpoint = newest(folder.path());
    let mut momentum = vec![0.0; VALUES];
    checkpoint.momentum(0..VALUES, &mut momentum).unwrap();
    assert!(momentum.iter().any(|value| *value != 0.0));
    for ids in [&[7u64][..], &[1, 2], &[5, 6, 8, 11, 12, 13]] {
        let after = run(
            ids,
            &Config {
                checkpoint_every: None,
                ..settings(folder.path())
            },
            12,
            true,
        );
        for trained in &after {
            assert_eq!(
                (trained.first, bits(&trained.found)),
                (8, bits(&before[0].values[7]))
            );
            for (range, anchor, kept) in &trained.state {
                assert_eq!(bits(anchor), bits(&trained.found[range.clone()]));
                assert_eq!(bits(kept), bits(&momentum[range.clone()]), "{ids:?}");
            }
        }
        let held: usize = after
            .iter()
            .flat_map(|trained| &trained.state)
            .map(|(range, ..)| range.len())
            .sum();
        assert_eq!(
            held,
            VALUES * ids.len().min(2),
            "an owner, and a replica where there is another node"
        );
        let contributors: Vec<Vec<u64>> = (0..12)
            .map(|step| {
                if step < 8 {
                    vec![3, 4, 9]
                } else {
                    ids.to_vec()
                }
            })
            .collect();
        let expected = by_the_book(VALUES, TAU as usize, 0.5, &contributors);
        after
            .iter()
            .for_each(|trained| assert_close(&trained.values[3], &expected[11], 1e-4));
    }
}

#[test]
fn optimizer_buffers_and_cursors_come_back_by_rank() {
    let folder = tempfile::tempdir().unwrap();
    run(&[3, 9], &settings(folder.path()), 8, true);
    let after = run(&[20, 21, 22], &settings(folder.path()), 8, true);
    let buffers: Vec<f32> = after.iter().map(|trained| trained.optimizer[0]).collect();
    assert_eq!(buffers, [3008.0, 9008.0, 3008.0]);
    assert_eq!(
        after[0].cursors,
        [(3, "3 at 7".to_owned()), (9, "9 at 7".to_owned())]
    );
}

/// All nodes are told to leave before a round that no checkpoint is due at. What their optimizers
/// hold when they have left.
fn drained_at_once(ids: &[u64], config: &Config) -> Vec<f32> {
    let hub = MemoryHub::new(None);
    let config = Config {
        min_nodes: ids.len(),
        checkpoint_every: Some(1000),
        ..config.clone()
    };
    let all_leave = ids.len();
    let told = Arc::new(Barrier::new(all_leave));
    let threads: Vec<_> = ids
        .iter()
        .map(|node| {
            let runtime = in_hub(&hub, *node, ids, &config);
            let told = Arc::clone(&told);
            let node = *node;
            thread::spawn(move || {
                let mut worker = runtime.worker(0).unwrap();
                let mut parameters = uneven(VALUES);
                let mut optimizer = vec![node as f32 * 1000.0];
                worker
                    .synchronize_with(
                        &mut parameters,
                        Buffers {
                            optimizer: &mut optimizer,
                            model: &mut (),
                        },
                    )
                    .unwrap();
                let mut step = 0;
                while worker.is_running() {
                    if step == 2 {
                        runtime.drain();
                        // A node of which the others hear too late leaves alone, with an average.
                        until("all know that all leave", || {
                            runtime
                                .inspect()
                                .is_some_and(|known| known.leaving.len() == all_leave)
                        });
                        told.wait();
                    }
                    step += 1;
                    optimizer[0] += 1.0;
                    worker.set_cursor(format!("{node} at {step}")).unwrap();
                    let report = worker.step_with(
                        &mut parameters,
                        Buffers {
                            optimizer: &mut optimizer,
                            model: &mut (),
                        },
                        RATE,
                    );
                    report.unwrap();
                }
                worker.leave().unwrap();
                optimizer[0]
            })
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

#[test]
fn where_all_leave_the_optimizer_of_each_comes_back() {
    for sharded in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            sharded,
            ..settings(folder.path())
        };
        let left_with = drained_at_once(&[3, 9, 12], &config);
        let checkpoint = newest(folder.path());
        checkpoint.verify().unwrap();
        assert_eq!(checkpoint.header().step % TAU, 0, "sharded {sharded}");
        let kept: Vec<f32> = (0..checkpoint.optimizers())
            .map(|rank| checkpoint.optimizer(rank).unwrap().unwrap()[0])
            .collect();
        assert_eq!(kept, left_with, "sharded {sharded}");

        let step = checkpoint.header().step;
        let after = run(&[20, 21, 22], &config, step, true);
        let buffers: Vec<f32> = after.iter().map(|trained| trained.optimizer[0]).collect();
        assert_eq!(buffers, left_with, "sharded {sharded}");
        assert_eq!(after[0].cursors.len(), 3, "sharded {sharded}");
    }
}

#[test]
fn one_that_joins_writes_its_part() {
    let folder = tempfile::tempdir().unwrap();
    run(&[3], &settings(folder.path()), 8, true);
    let hub = MemoryHub::new(None);
    let config = Config {
        min_nodes: 1,
        ..settings(folder.path())
    };
    let first = in_hub(&hub, 1, &[1], &config);
    let founder = thread::spawn(move || {
        let mut worker = first.worker(0).unwrap();
        let mut parameters = uneven(VALUES);
        let mut step = worker.synchronize(&mut parameters).unwrap().step;
        let mut nodes = 1;
        // A while after the other is there.
        let mut more = 20;
        while more > 0 {
            let report = worker.step(&mut parameters, RATE).unwrap();
            nodes = if report.nodes > 0 {
                report.nodes
            } else {
                nodes
            };
            more -= u32::from(nodes > 1);
            step = report.step;
        }
        worker.leave().unwrap();
        step
    });
    let second = in_hub(
        &hub,
        2,
        &[1, 2],
        &Config {
            join: true,
            ..config
        },
    );
    let mut worker = second.worker(0).unwrap();
    assert!(worker.resumed().is_none());
    let mut parameters = uneven(VALUES);
    worker.synchronize(&mut parameters).unwrap();
    while worker
        .step(&mut parameters, RATE)
        .is_ok_and(|report| report.nodes != 1)
    {}
    drop(worker);
    let last = founder.join().unwrap();
    let both = list(folder.path())
        .unwrap()
        .into_iter()
        .rev()
        .find_map(|listed| {
            Checkpoint::open(&listed.path)
                .ok()
                .filter(|checkpoint| checkpoint.parts().len() == 2)
        });
    let both = both.unwrap_or_else(|| {
        panic!(
            "both wrote a part up to step {last}: {:?}",
            list(folder.path())
        )
    });
    both.verify().unwrap();
    assert_eq!(
        both.header().run,
        1,
        "the joiner, too, knows that the training was resumed"
    );
}

#[test]
fn a_full_disk_does_not_stop_training() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let aside = parent.path().join("aside");
    let hub = MemoryHub::new(None);
    let node = in_hub(
        &hub,
        1,
        &[1],
        &Config {
            checkpoint_every: Some(1),
            ..settings(&folder)
        },
    );
    let mut worker = node.worker(0).unwrap();
    let mut parameters = uneven(VALUES);
    worker.synchronize(&mut parameters).unwrap();
    let mut round = |told: &dyn Fn(slowmo::status::CheckpointStatus) -> bool| {
        (0..TAU).for_each(|_| _ = worker.step(&mut parameters, RATE).unwrap());
        until("the writer says what became of its part", || {
            node.status().checkpoints.is_some_and(told)
        });
    };
    round(&|told| told.written == 1);
    // No folder can be made where a file is: to the node, a disk that takes nothing.
    std::fs::rename(&folder, &aside).unwrap();
    std::fs::write(&folder, "").unwrap();
    round(&|told| told.failed == 1 && told.error.is_some());
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    assert_eq!(newest(&folder).header().step, 4);
    round(&|told| told.written == 2 && told.error.is_none() && told.last_step == Some(12));
    assert_eq!(newest(&folder).header().step, 12);
}

#[test]
fn whoever_begins_anew_or_goes_back_is_above_all_that_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        checkpoint_every: Some(1),
        checkpoint_keep_last: 1,
        ..settings(folder.path())
    };
    let left = || {
        list(folder.path())
            .unwrap()
            .iter()
            .map(|listed| (listed.name.run, listed.name.step))
            .collect::<Vec<_>>()
    };
    // One alone: whatever it wrote is whole when it removes what is old.
    run(&[3], &config, 16, false);
    assert_eq!(left(), [(0, 16)]);
    let first = list(folder.path()).unwrap()[0].name;
    // Anew: what is written stays, and so does what was there.
    run(
        &[3],
        &Config {
            resume: Resume::None,
            ..config.clone()
        },
        8,
        false,
    );
    assert_eq!(left(), [(0, 16), (1, 8)]);
    // Back to the first history: the second is none of its past.
    let back = Config {
        resume: Resume::Named(first),
        ..config.clone()
    };
    run(&[9], &back, 24, false);
    assert_eq!(
        (left(), newest(folder.path()).header().run),
        (vec![(1, 8), (2, 24)], 2)
    );
    // And on from there.
    let on = run(&[9], &config, 32, false);
    assert_eq!((on[0].first, left()), (24, vec![(1, 8), (3, 32)]));
    assert_eq!(
        newest(folder.path()).header().rounds_before,
        24,
        "of the first history and the third"
    );
    // Several agree on one run.
    run(&[3, 9, 4], &config, 40, false);
    assert_eq!(
        (
            newest(folder.path()).header().run,
            newest(folder.path()).parts().len()
        ),
        (4, 3)
    );
}

#[test]
fn nodes_that_would_go_on_from_different_checkpoints_say_so() {
    let folder = tempfile::tempdir().unwrap();
    run(&[3], &settings(folder.path()), 8, true);
    run(&[3], &settings(folder.path()), 16, true);
    let older = list(folder.path()).unwrap()[0].name;
    let hub = MemoryHub::new(None);
    let config = Config {
        min_nodes: 2,
        meet_timeout_ms: Some(3_000),
        ..settings(folder.path())
    };
    let ids = [1, 2];
    let newest = in_hub(&hub, 1, &ids, &config);
    let other = in_hub(
        &hub,
        2,
        &ids,
        &Config {
            resume: Resume::Named(older),
            ..config
        },
    );
    let errors = [newest, other].map(|node| {
        let mut worker = node.worker(0).unwrap();
        thread::spawn(move || {
            worker
                .synchronize(&mut uneven(VALUES))
                .unwrap_err()
                .to_string()
        })
    });
    for error in errors.map(|error| error.join().unwrap()) {
        assert!(error.contains("resume is run-000"), "{error}");
    }
}

#[test]
fn a_training_that_must_resume_does_not_begin_without_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        min_nodes: 1,
        resume: Resume::Required,
        ..settings(folder.path())
    };
    let nowhere = Config {
        checkpoints: None,
        checkpoint_every: None,
        ..config.clone()
    };
    for (config, wanted) in [
        (&config, "there is no complete checkpoint in"),
        (&nowhere, "resume = required needs checkpoints"),
    ] {
        let refused = Runtime::builder().config(config.clone()).spawn();
        let told = refused.map(|_| ()).unwrap_err().to_string();
        assert!(told.contains(wanted), "{told}");
    }
    run(&[3], &settings(folder.path()), 8, true);
    assert_eq!(run(&[3], &config, 16, true)[0].first, 8);
}

/// The nodes of a bootstrap must agree on whether the samples begin anew.
#[test]
fn another_resume_sampler_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    with_sampler(&settings(folder.path()), 10, &mut vec![0.0; 3], 8).unwrap();
    let hub = MemoryHub::new(None);
    let keeps = Config {
        min_nodes: 2,
        connect_timeout_ms: 3_000,
        meet_timeout_ms: Some(500),
        ..settings(folder.path())
    };
    let anew = Config {
        resume_sampler: ResumeSampler::Reset,
        ..keeps.clone()
    };
    let nodes = [(1, keeps), (2, anew)].map(|(id, config)| in_hub(&hub, id, &[1, 2], &config));
    let errors = nodes.map(|node| {
        let mut worker = node.worker(0).unwrap();
        thread::spawn(move || {
            worker
                .synchronize(&mut uneven(VALUES))
                .unwrap_err()
                .to_string()
        })
    });
    for error in errors.map(|error| error.join().unwrap()) {
        assert!(error.contains("with resume_sampler = reset"), "{error}");
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    run(&[3], &settings(folder.path()), 8, true);
    let node = in_hub(&MemoryHub::new(None), 1, &[1], &settings(folder.path()));
    let mut parameters = vec![1.5; 7];
    let error = node
        .worker(0)
        .unwrap()
        .synchronize(&mut parameters)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("900 parameters") && error.contains("this training lends 7"),
        "{error}"
    );
    assert_eq!(parameters, [1.5; 7]);
}

/// Trains three tensors of 300, 200 and 300 values with these names in this order up to step `end`;
/// returns the first value of each.
fn train_named(names: [&str; 3], end: u64, config: &Config) -> Result<[f32; 3], String> {
    let node = in_hub(&MemoryHub::new(None), 1, &[1], config);
    let mut worker = node.worker(0).unwrap();
    let mut tensors = [(1.0, 300), (2.0, 200), (3.0, 300)].map(|(value, count)| vec![value; count]);
    {
        let lent = tensors.iter_mut().zip(names);
        let mut lent = lent.fold(NamedTensors::new(), |lent, (values, name)| {
            lent.with(name, values)
        });
        let begun = worker.synchronize(&mut lent);
        let mut step = begun.map_err(|error| error.to_string())?.step;
        while step < end {
            step = worker.step(&mut lent, 0.1).unwrap().step + 1;
        }
        worker.leave().unwrap();
    }
    Ok(tensors.map(|values| values[0]))
}

#[test]
fn a_checkpoint_whose_tensors_have_another_order_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        min_nodes: 1,
        ..settings(folder.path())
    };
    train_named(["a", "b", "c"], 8, &config).unwrap();
    let refused = train_named(["c", "b", "a"], 12, &config).unwrap_err();
    let told =
        "tensor number 1 of the checkpoint of step 8 is a [300], this training lends c [300] there";
    assert!(refused.contains(told), "{refused}");
    // One was renamed, and the order of names changed with it.
    let refused = train_named(["b", "c", "z"], 12, &config).unwrap_err();
    let told =
        "tensor number 1 of the checkpoint of step 8 is a [300], this training lends b [300] there";
    assert!(refused.contains(told), "{refused}");
    // The same tensors may have got other names.
    let renamed = train_named(["x.a", "x.b", "x.c"], 12, &config).unwrap();
    assert_eq!(renamed, [1.0, 2.0, 3.0]);
}

/// One node trains to a step with a sampler of this batch and the optimizer's state that it lends;
/// returns the epochs that were over after its first step, the parameters, and what its status
/// told, or why it did not begin.
fn with_sampler(
    config: &Config,
    batch: usize,
    optimizer: &mut Vec<f32>,
    steps: u64,
) -> Result<(u64, Vec<f32>, Vec<String>), String> {
    let node = in_hub(&MemoryHub::new(None), 1, &[1], config);
    let mut worker = node.worker(0).unwrap();
    let mut sampler = ElasticSampler::new(40, batch, 7).unwrap().recording();
    worker.attach_sampler(&sampler);
    let mut parameters = uneven(VALUES);
    let model = &mut ();
    let begun = worker.synchronize_with(&mut parameters, Buffers { optimizer, model });
    let first = begun.map_err(|error| error.to_string())?.step;
    let epochs = sampler.epochs_completed();
    let found = parameters.clone();
    for step in first..first + steps {
        assert_eq!(sampler.next_batch().len(), batch);
        let gradients = noisy(1, step as usize, &parameters);
        descend(&mut parameters, &gradients, RATE);
        worker
            .step_with(&mut parameters, Buffers { optimizer, model }, RATE)
            .unwrap();
    }
    let used: usize = sampler
        .take_used()
        .iter()
        .map(|round| round.samples.len())
        .sum();
    assert_eq!(used, batch * steps as usize, "every batch counts");
    let told = node.status().events;
    let told = told.into_iter().map(|event| event.what).collect();
    until("the last part is written", || {
        node.status()
            .checkpoints
            .is_none_or(|told| told.last_step == Some(first + steps))
    });
    Ok((epochs, found, told))
}

/// A user resumes with another batch size. It is refused in words that name the key, and with that
/// key the training goes on.
#[test]
fn another_batch_size_is_refused_until_the_samples_begin_anew() {
    let folder = tempfile::tempdir().unwrap();
    let keeps = settings(folder.path());
    let mut momentum = vec![2.5; 3];
    with_sampler(&keeps, 10, &mut momentum, 8).unwrap();
    let kept = newest(folder.path());
    let mut values = Vec::new();
    kept.values(|part| values.extend_from_slice(part)).unwrap();

    let mut fresh = vec![0.0; 3];
    let error = with_sampler(&keeps, 20, &mut fresh, 8).unwrap_err();
    assert_eq!(
        error,
        "this training's sampler differs from that of the checkpoint of step 8: batch 20 (in the \
         checkpoint 10); set resume_sampler = reset to keep parameters and momentum and begin the \
         samples anew, or give the sampler the checkpoint's values; nothing was changed"
    );
    assert_eq!(fresh, [0.0; 3]);

    let anew = Config {
        resume_sampler: ResumeSampler::Reset,
        ..keeps.clone()
    };
    let (epochs, found, told) = with_sampler(&anew, 20, &mut fresh, 8).unwrap();
    assert_eq!(bits(&found), bits(&values));
    assert_eq!((epochs, fresh), (0, vec![2.5; 3]));
    assert!(
        told.iter().any(|told| told.contains("resumes from step 8")
            && told.contains("the samples that are left (resume_sampler = reset)")),
        "{told:?}"
    );
    let momentum = |checkpoint: &Checkpoint| {
        let mut momentum = vec![0.0; VALUES];
        checkpoint.momentum(0..VALUES, &mut momentum).unwrap();
        momentum
    };
    assert!(momentum(&kept).iter().any(|value| *value != 0.0));
    assert!(
        momentum(&newest(folder.path()))
            .iter()
            .any(|value| *value != 0.0)
    );

    // The same settings go on where they were, and nothing is dropped.
    let (epochs, _, told) = with_sampler(&keeps, 20, &mut vec![0.0; 3], 8).unwrap();
    assert_eq!(epochs, 4, "8 batches of 20 out of 40");
    assert!(
        !told.iter().any(|told| told.contains("without a part")),
        "{told:?}"
    );
}

/// The error names each part of the checkpoint that the training does not take.
#[test]
fn what_a_resumed_training_drops_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        checkpoint_every: None,
        ..settings(folder.path())
    };
    with_sampler(&settings(folder.path()), 10, &mut vec![2.5; 3], 8).unwrap();
    let told = |config: &Config, optimizer: &mut Vec<f32>| {
        let (.., told) = with_sampler(config, 10, optimizer, 1).unwrap();
        told.join("\n")
    };
    assert!(!told(&config, &mut vec![0.0; 3]).contains("without a part"));
    let none = told(&config, &mut Vec::new());
    assert!(
        none.contains("the optimizer's state (3 values; none is lent: pass it to synchronize_with"),
        "{none}"
    );
    let other = told(&config, &mut vec![0.5; 6]);
    assert!(other.contains("(3 values, but 6 are lent"), "{other}");
    let outer = Config {
        outer: OuterName::Nesterov,
        ..config.clone()
    };
    let outer = told(&outer, &mut vec![0.0; 3]);
    assert!(
        outer.contains("the slow momentum (it is of outer = slowmo, and starts at zero)"),
        "{outer}"
    );

    // No sampler, and fewer nodes than had state.
    let many = tempfile::tempdir().unwrap();
    run(&[3, 9], &settings(many.path()), 8, true);
    let node = in_hub(&MemoryHub::new(None), 1, &[1], &settings(many.path()));
    let mut worker = node.worker(0).unwrap();
    let lent = Buffers {
        optimizer: &mut vec![0.0],
        model: &mut (),
    };
    worker.synchronize_with(&mut uneven(VALUES), lent).unwrap();
    let events = node.status().events;
    assert!(
        events
            .iter()
            .any(|event| event.what.contains("of 1 more nodes (there are 1 now)")),
        "{events:?}"
    );
    let node = in_hub(&MemoryHub::new(None), 1, &[1], &config);
    node.worker(0)
        .unwrap()
        .synchronize(&mut uneven(VALUES))
        .unwrap();
    let events = node.status().events;
    assert!(
        events
            .iter()
            .any(|event| event.what.contains("no sampler is attached")),
        "{events:?}"
    );
}
