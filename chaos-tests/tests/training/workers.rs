//! Workers of one node and of several: handles, leaving, being dropped, async loops, and what is
//! lent.

use crate::support::{
    IN_ORDER, Job, assert_close, assert_says, bits, config, local_sgd, mean, noise, noisy, sgp,
    uneven,
};
use slowmo::BaseName;
use slowmo::{
    AsyncWorker, Config, Exchange, ExchangeError, GradientError, Runtime, StepError, StepReport,
    TensorError, Tensors, Worker,
};
use slowmo_chaos::cluster::{Cluster, start};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Far below every timeout: who waits for a worker that is gone must be told at once.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn one_node_without_credentials_listens_nowhere_and_trains() {
    for base in [
        BaseName::LocalSgd,
        BaseName::Sgp,
        BaseName::AllReduce,
        BaseName::None,
    ] {
        let node = Runtime::builder()
            .config(Config {
                base,
                frequency: 1,
                tau: 2,
                ..Config::default()
            })
            .spawn()
            .unwrap();
        assert_eq!(node.address().port(), 0, "nothing listens");
        let mut worker = node.worker(0).unwrap();
        let mut values = vec![1.0f32; 5];
        let found = worker.synchronize(&mut values).unwrap();
        assert_eq!(
            (found.nodes, found.node_rank, found.workers, found.worker),
            (1, 0, 1, 0)
        );
        for step in 0..6 {
            worker.average_gradients(&mut [0.5f32; 5]).unwrap();
            values.iter_mut().for_each(|value| *value -= 0.1);
            let report = worker.step(&mut values, 0.1).unwrap();
            assert_eq!(
                (report.step, report.slow_step, report.weight),
                (step, step % 2 == 1, 1.0)
            );
        }
        // Two steps of 0.1 are the block's update; momentum 0.5 adds half of the last one.
        assert_close(&values, &[1.0 - 0.2 - 0.3 - 0.35; 5], 1e-5);
        worker.leave().unwrap();
    }
}

#[test]
fn three_workers_of_one_node_train_on_their_mean_gradient() {
    let job = Job {
        initial: uneven(50),
        steps: 8,
        ..Job::new(
            1,
            Config {
                devices: 3,
                ..local_sgd(2, 4, 1.0, 0.0)
            },
            noise(),
        )
    };
    let mut x = uneven(50);
    let seen = job.values();
    for step in 0..job.steps {
        let gradients = mean(
            &(0..3)
                .map(|worker| noisy(worker, step, &x))
                .collect::<Vec<_>>(),
        );
        crate::support::descend(&mut x, &gradients, 0.1);
        seen.iter()
            .for_each(|values| assert_eq!(bits(&values[step]), bits(&x), "step {step}"));
    }
}

#[test]
fn two_nodes_of_two_workers_in_every_base() {
    for config in [
        local_sgd(2, 4, 1.0, 0.5),
        sgp(4, 0.5),
        Config {
            base: BaseName::AllReduce,
            tau: 4,
            ..config()
        },
    ] {
        let job = Job {
            initial: uneven(50),
            steps: 8,
            ..Job::new(
                2,
                Config {
                    devices: 2,
                    ..config
                },
                noise(),
            )
        };
        let seen = job.run();
        for (node, workers) in seen.chunks(2).enumerate() {
            let expected = seen[0].reports.iter().map(|report| {
                let node_rank = if report.exchange == Exchange::Nothing {
                    0
                } else {
                    node
                };
                StepReport {
                    node_rank,
                    ..*report
                }
            });
            let expected: Vec<_> = expected.collect();
            assert!(
                workers.iter().all(|worker| worker.reports == expected),
                "all workers report the same, but for their node's rank"
            );
        }
        assert!(seen[0].reports[3].slow_step && seen[0].reports[7].contributors == 2);
        for pair in seen.chunks(2) {
            assert_eq!(pair[0], pair[1], "the workers of a node never differ");
        }
        assert_eq!(bits(&seen[0].values[7]), bits(&seen[3].values[7]));
    }
}

/// Takes the synchronized workers of one node, on their threads.
fn node_of(workers: u16, config: Config) -> (Runtime, Vec<Worker>) {
    let node = Runtime::builder()
        .config(Config {
            devices: workers,
            ..config
        })
        .spawn()
        .unwrap();
    let threads: Vec<_> = (0..usize::from(workers))
        .map(|index| {
            let mut worker = node.worker(index).unwrap();
            thread::spawn(move || {
                let found = worker.synchronize(&mut [1.0f32; 6]).unwrap();
                assert_eq!((found.workers, found.worker), (usize::from(workers), index));
                worker
            })
        })
        .collect();
    (
        node,
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect(),
    )
}

#[test]
fn workers_of_a_node_leave_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (node, workers) = node_of(3, config());
        let mut workers: Vec<_> = workers.into_iter().map(Some).collect();
        let begun = Instant::now();
        let threads: Vec<_> = order
            .map(|index| {
                let worker = workers[index].take().unwrap();
                let thread = thread::spawn(move || worker.leave().unwrap());
                thread::sleep(Duration::from_millis(5));
                thread
            })
            .into();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert!(begun.elapsed() < SOON);
        drop(node);
    }
}

#[test]
fn nodes_leave_in_any_order_and_the_runtime_may_go_first() {
    for order in [[0, 1, 2], [2, 0, 1]] {
        let Cluster {
            nodes,
            rendezvous: _rendezvous,
        } = start(&[4, 5, 6], IN_ORDER, &local_sgd(1, 48, 1.0, 0.5)).unwrap();
        let workers: Vec<_> = nodes.iter().map(|node| node.worker(0).unwrap()).collect();
        drop(nodes);
        let begun = Instant::now();
        let threads: Vec<_> = workers
            .into_iter()
            .zip(order)
            .map(|(mut worker, place)| {
                thread::spawn(move || {
                    let mut values = [1.0f32; 6];
                    worker.synchronize(&mut values).unwrap();
                    worker.step(&mut values, 0.1).unwrap();
                    thread::sleep(Duration::from_millis(20 * place));
                    worker.leave().unwrap();
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert!(begun.elapsed() < SOON);
    }
}

/// Returns the error of the remaining worker of two when the other goes away while it waits.
fn told_when_the_other_is_dropped<R: Send + 'static>(
    wait: impl FnOnce(&mut Worker) -> R + Send + 'static,
) -> R {
    let (_node, mut workers) = node_of(2, local_sgd(1, 4, 1.0, 0.5));
    let leaver = workers.remove(1);
    let mut waiter = workers.remove(0);
    let (told, answer) = mpsc::channel();
    let waiting = thread::spawn(move || {
        _ = told.send(wait(&mut waiter));
        waiter.leave().unwrap();
    });
    thread::sleep(Duration::from_millis(30));
    drop(leaver);
    let answer = answer
        .recv_timeout(SOON)
        .expect("an answer instead of a hang");
    waiting.join().unwrap();
    answer
}

#[test]
fn a_worker_that_is_dropped_is_named_to_the_one_that_waits_for_it() {
    let error =
        told_when_the_other_is_dropped(|worker| worker.step(&mut [1.0f32; 6], 0.1).unwrap_err());
    assert!(
        matches!(
            error,
            StepError::Exchange {
                step: 0,
                error: ExchangeError::WorkerLeft(1)
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "step 0: worker 1 of this node left: the others cannot continue without it"
    );
    let error = told_when_the_other_is_dropped(|worker| {
        worker.average_gradients(&mut [1.0f32; 6]).unwrap_err()
    });
    assert!(
        error.to_string().contains("worker 1 of this node is gone"),
        "{error}"
    );
}

#[test]
fn a_worker_that_is_dropped_before_is_named_to_later_calls() {
    let (_node, mut workers) = node_of(2, local_sgd(1, 4, 1.0, 0.5));
    drop(workers.remove(1));
    let mut worker = workers.remove(0);
    let error = worker.average_gradients(&mut [1.0f32; 6]).unwrap_err();
    assert!(matches!(error, GradientError::Collective(_)), "{error:?}");
    let error = worker.step(&mut [1.0f32; 6], 0.1).unwrap_err();
    assert!(
        matches!(
            error,
            StepError::Exchange {
                error: ExchangeError::WorkerLeft(1),
                ..
            }
        ),
        "{error:?}"
    );
    worker.leave().unwrap();
}

#[test]
fn a_worker_that_is_dropped_before_the_bootstrap_is_named() {
    let node = Runtime::builder()
        .config(Config {
            devices: 2,
            ..config()
        })
        .spawn()
        .unwrap();
    let mut worker = node.worker(0).unwrap();
    drop(node.worker(1).unwrap());
    let error = worker.synchronize(&mut [1.0f32; 6]).unwrap_err();
    assert!(
        error.to_string().contains("worker 1 of this node left"),
        "{error}"
    );
}

#[test]
fn workers_that_disagree_are_told_what_each_asked_for() {
    let (_node, workers) = node_of(2, local_sgd(1, 1, 1.0, 0.5));
    let threads = workers
        .into_iter()
        .zip([0.1, 0.2])
        .map(|(mut worker, rate)| {
            thread::spawn(move || {
                let error = worker.step(&mut [1.0f32; 6], rate).unwrap_err();
                let values = worker.step(&mut [1.0f32; 6], 0.1).map(|report| report.step);
                worker.leave().unwrap();
                (error.to_string(), values)
            })
        });
    for thread in threads.collect::<Vec<_>>() {
        let (told, again) = thread.join().unwrap();
        for part in [
            "worker ",
            "learning rate 0.1",
            "learning rate 0.2",
            "the same learning rate on every worker",
        ] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(again, Ok(0), "the step can be called again");
    }
}

/// An async training loop of three steps, the last of which is a slow step.
async fn train(mut worker: AsyncWorker) -> Vec<f32> {
    let mut values = uneven(30);
    let found = worker.synchronize(&mut values).await.unwrap();
    for step in 0..3 {
        let mut gradients = noisy(
            found.node_rank * found.workers + found.worker,
            step,
            &values,
        );
        worker.average_gradients(&mut gradients).await.unwrap();
        crate::support::descend(&mut values, &gradients, 0.1);
        worker.step(&mut values, 0.1).await.unwrap();
    }
    worker.leave().await.unwrap();
    values
}

#[test]
fn async_workers_train_like_blocking_ones_on_both_executors() {
    let config = local_sgd(1, 3, 1.0, 0.5);
    let job = Job {
        initial: uneven(30),
        steps: 3,
        ..Job::new(2, config.clone(), noise())
    };
    let expected = job.values()[0][2].clone();
    let workers = || {
        let nodes = start(&[1, 2], IN_ORDER, &config).unwrap();
        nodes
            .iter()
            .map(|node| node.worker(0).unwrap().into_async())
            .collect::<Vec<_>>()
    };
    let single = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let many = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    for executor in [single, many] {
        let workers = workers();
        let seen = executor.block_on(async move {
            // Both nodes' loops share the executor: waiting for the other node must not block it.
            let tasks: Vec<_> = workers
                .into_iter()
                .map(|worker| tokio::spawn(train(worker)))
                .collect();
            let mut seen = Vec::new();
            for task in tasks {
                seen.push(task.await.unwrap());
            }
            seen
        });
        seen.iter()
            .for_each(|values| assert_eq!(bits(values), bits(&expected)));
    }
}

#[test]
fn several_async_workers_of_a_node_need_threads() {
    let config = Config {
        devices: 2,
        ..local_sgd(1, 3, 1.0, 0.5)
    };
    let node = || {
        let node = Runtime::builder().config(config.clone()).spawn().unwrap();
        [0, 1].map(|index| node.worker(index).unwrap().into_async())
    };
    let many = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let [first, second] = node();
    let seen = many.block_on(async move {
        let first = tokio::spawn(train(first));
        let second = tokio::spawn(train(second));
        [first.await.unwrap(), second.await.unwrap()]
    });
    assert_eq!(bits(&seen[0]), bits(&seen[1]));

    let single = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let [mut first, mut second] = node();
    let told = single.block_on(async move {
        let bootstrap =
            tokio::spawn(async move { first.synchronize(&mut [1.0f32]).await.map(|_| first) });
        second.synchronize(&mut [1.0f32]).await.unwrap();
        let mut first = bootstrap.await.unwrap().unwrap();
        let errors = [
            first.average_gradients(&mut [1.0f32]).await.unwrap_err(),
            second.average_gradients(&mut [1.0f32]).await.unwrap_err(),
        ];
        errors.map(|error| error.to_string())
    });
    for told in told {
        assert!(
            told.contains("need a multi-threaded executor")
                && told.contains("one plain thread each"),
            "{told}"
        );
    }
}

#[test]
fn blocking_workers_work_inside_an_executor() {
    let executor = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    executor.block_on(async {
        let node = Runtime::builder()
            .config(local_sgd(1, 1, 1.0, 0.5))
            .spawn()
            .unwrap();
        let mut worker = node.worker(0).unwrap();
        let mut values = [1.0f32];
        worker.synchronize(&mut values).unwrap();
        assert_eq!(
            worker.step(&mut values, 0.1).unwrap().exchange,
            Exchange::SlowRound
        );
        worker.leave().unwrap();
    });
}

#[test]
fn a_list_of_tensors_and_a_flat_slice_are_the_same_model() {
    let nodes = start(&[1, 2], IN_ORDER, &local_sgd(1, 1, 1.0, 0.5)).unwrap();
    let mut first = nodes[0].worker(0).unwrap();
    let mut second = nodes[1].worker(0).unwrap();
    let listed = thread::spawn(move || {
        let mut tensors = vec![vec![1.0f32, 2.0], vec![], vec![3.0]];
        first.synchronize(&mut tensors).unwrap();
        tensors[0][1] -= 1.0;
        first.step(&mut tensors, 0.5).unwrap();
        first.leave().unwrap();
        tensors
    });
    let mut flat = [0.0f32; 3];
    second.synchronize(&mut flat[..]).unwrap();
    assert_eq!(flat, [1.0, 2.0, 3.0]);
    let (one, rest) = flat.split_at_mut(1);
    second.step(&mut [one, rest], 0.5).unwrap();
    second.leave().unwrap();
    assert_eq!(flat, [1.0, 1.5, 3.0]);
    assert_eq!(listed.join().unwrap(), [vec![1.0, 1.5], vec![], vec![3.0]]);
}

#[test]
fn a_worker_that_never_comes_is_named_at_once_and_the_others_get_an_error() {
    let node = Runtime::builder()
        .config(Config {
            devices: 2,
            round_timeout_ms: 3_000,
            grace_ms: 1_000,
            ..local_sgd(1, 2, 1.0, 0.5)
        })
        .spawn()
        .unwrap();
    // As a program does that was written for one worker: it takes the first one only.
    let mut worker = node.worker(0).unwrap();
    let begun = Instant::now();
    let waits = thread::spawn(move || worker.synchronize(&mut vec![1.0f32; 5]).unwrap_err());
    let named = loop {
        if let Some(waiting) = node.status().waiting_for {
            break waiting;
        }
        assert!(begun.elapsed() < Duration::from_secs(2), "nobody is named");
        thread::sleep(Duration::from_millis(10));
    };
    assert_says(
        &named,
        &["worker 1 of this node", "synchronize", "devices = 2", "3 s"],
    );
    let events = node.status().events;
    assert!(
        events.iter().any(|event| event.what.contains(&named)),
        "{events:?}"
    );
    assert_says(
        &waits.join().unwrap().to_string(),
        &[
            "worker 1 of this node did not call synchronize within 3 s",
            "round_timeout_ms",
            "devices = 2",
            "Runtime::worker",
        ],
    );
    assert_eq!(node.status().waiting_for, None);
}

#[test]
fn a_worker_that_comes_late_is_waited_for_and_named_meanwhile() {
    let node = Runtime::builder()
        .config(Config {
            devices: 2,
            ..local_sgd(1, 2, 1.0, 0.5)
        })
        .spawn()
        .unwrap();
    let train = |mut worker: Worker| {
        let mut values = vec![1.0f32; 5];
        worker.synchronize(&mut values).unwrap();
        for _ in 0..4 {
            worker.average_gradients(&mut [0.5f32; 5]).unwrap();
            worker.step(&mut values, 0.1).unwrap();
        }
        worker.leave().unwrap();
    };
    thread::scope(|scope| {
        let first = node.worker(0).unwrap();
        scope.spawn(move || train(first));
        crate::support::until("worker 1 is named", || node.status().waiting_for.is_some());
        let second = node.worker(1).unwrap();
        scope.spawn(move || train(second));
        crate::support::until("nobody is waited for", || {
            node.status().waiting_for.is_none()
        });
    });
}

/// Trains as README shows, until the node is drained or `steps` are done.
fn train_by_the_condition(worker: &mut Worker, steps: u64, ask: impl Fn(u64)) -> u64 {
    let mut values = uneven(50);
    let mut step = worker.synchronize(&mut values).unwrap().step;
    while worker.is_running() && step < steps {
        worker.average_gradients(&mut vec![0.1f32; 50]).unwrap();
        step = worker.step(&mut values, 0.1).unwrap().step + 1;
        ask(step);
    }
    step
}

#[test]
fn a_loop_that_asks_whether_it_runs_ends_well_after_a_drain() {
    for config in [
        local_sgd(2, 4, 1.0, 0.5),
        sgp(4, 0.5),
        Config {
            base: BaseName::AllReduce,
            tau: 4,
            ..config()
        },
    ] {
        let steps = crate::support::on_nodes(&[1, 2], IN_ORDER, &config, |place, node, worker| {
            let mut worker = worker;
            let drains = |step| {
                if place == 0 && step == 5 {
                    node.drain();
                }
            };
            let steps = train_by_the_condition(&mut worker, 300, drains);
            let running = worker.is_running();
            assert_eq!(running, place == 1, "{config:?}");
            if !running {
                let again = worker.step(&mut uneven(50), 0.1).unwrap_err();
                assert_says(&again.to_string(), &["has left the cluster", "call leave"]);
            }
            worker.leave().unwrap();
            steps
        });
        assert!((5..300).contains(&steps[0]) && steps[1] == 300, "{steps:?}");
    }
}

#[test]
fn parameters_need_not_be_lent_where_nothing_is_due() {
    let config = local_sgd(3, 6, 1.0, 0.5);
    let job = Job {
        initial: uneven(50),
        steps: 12,
        ..Job::new(2, config.clone(), noise())
    };
    let expected = job.values();
    let lent = crate::support::on_nodes(&job.ids, IN_ORDER, &config, |rank, _, mut worker| {
        let mut values = uneven(50);
        assert_eq!(
            worker.step_alone(0.1),
            Err(StepError::NotSynchronized),
            "nothing is known yet"
        );
        worker.synchronize(&mut values).unwrap();
        let mut lent = Vec::new();
        for (step, expected) in expected[rank].iter().enumerate() {
            let gradients = noisy(rank, step, &values);
            crate::support::descend(&mut values, &gradients, 0.1);
            let report = if worker.is_due() {
                let told = worker.step_alone(0.1).unwrap_err();
                assert_says(
                    &told.to_string(),
                    &["exchanges with the other nodes", "is_due"],
                );
                lent.push(step);
                worker.step(&mut values, 0.1).unwrap()
            } else {
                worker.step_alone(0.1).unwrap()
            };
            assert_eq!(report.step, step as u64);
            assert_eq!(bits(&values), bits(expected), "step {step}");
        }
        worker.leave().unwrap();
        lent
    });
    assert_eq!(lent, [[2, 5, 8, 11], [2, 5, 8, 11]]);
}

/// Parameters that count how often they are read.
struct Counted {
    values: Vec<f32>,
    reads: std::cell::Cell<usize>,
}

impl Tensors for Counted {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        self.reads.set(self.reads.get() + 1);
        self.values.read(visit)
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        self.values.write(visit)
    }
}

#[test]
fn nothing_is_read_at_a_step_where_nothing_is_due() {
    let config = local_sgd(3, 6, 1.0, 0.5);
    crate::support::on_nodes(&[1, 2], IN_ORDER, &config, |_, _, mut worker| {
        let mut lent = Counted {
            values: uneven(50),
            reads: Default::default(),
        };
        worker.synchronize(&mut lent).unwrap();
        for _ in 0..12 {
            let due = worker.is_due();
            let before = lent.reads.get();
            worker.step(&mut lent, 0.1).unwrap();
            assert_eq!(lent.reads.get() > before, due);
        }
        worker.leave().unwrap();
    });
}
