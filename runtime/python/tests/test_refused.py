"""What is refused, by whom and with which words. One process, no other nodes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import slowmo

torch = pytest.importorskip("torch")


@pytest.fixture
def runtime() -> Iterator[slowmo.Runtime]:
    with slowmo.Runtime(slowmo.Config(), tau=2, frequency=2) as one:
        yield one


@pytest.fixture
def worker(runtime: slowmo.Runtime) -> Iterator[slowmo.Worker]:
    one = runtime.worker()
    yield one
    one.leave()


def synchronized(worker: slowmo.Worker) -> Any:
    values = torch.zeros(4)
    worker.synchronize([("weight", values)])
    return values


def up_to_a_round(worker: slowmo.Worker) -> None:
    while not worker.is_due():
        worker.step_alone(0.1)


def test_a_node_alone_steps_and_reports(worker: slowmo.Worker) -> None:
    values = synchronized(worker)
    reports = []
    for _ in range(4):
        values -= 0.5
        reports.append(worker.step([values], 0.1))
    assert [report.exchange for report in reports] == ["nothing", "slow_round"] * 2
    assert [report.step for report in reports] == [0, 1, 2, 3]
    # u = 10, x = -1; then u = 0.5 * 10 + 10.
    assert values.tolist() == pytest.approx([-2.5] * 4)


def test_numpy_arrays_are_lent_too(worker: slowmo.Worker) -> None:
    numpy = pytest.importorskip("numpy")
    values = numpy.ones(3, dtype=numpy.float32)
    worker.synchronize({"values": values})
    up_to_a_round(worker)
    assert worker.step({"values": values}, 0.1).round is not None


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (lambda: torch.zeros(4, dtype=torch.float64), "weight holds float64, not float32"),
        (lambda: torch.zeros(2, 4)[:, :2].T, "weight is not contiguous"),
        (lambda: torch.zeros(4, device="meta"), "weight: it is on meta"),
        (lambda: torch.zeros(4).to_sparse(), "weight is not contiguous"),
    ],
)
def test_a_tensor_that_cannot_be_lent(worker: slowmo.Worker, tensor: Any, words: str) -> None:
    with pytest.raises(slowmo.TensorError, match=words):
        worker.synchronize([("weight", tensor())])
    synchronized(worker)


def test_something_that_is_no_tensor(worker: slowmo.Worker) -> None:
    with pytest.raises(TypeError, match="tensor 0 is a list"):
        worker.synchronize([[1.0, 2.0]])


def test_a_tensor_that_was_resized_between_steps(worker: slowmo.Worker) -> None:
    values = synchronized(worker)
    up_to_a_round(worker)
    values.resize_(5)
    with pytest.raises(slowmo.StepError, match="hold 5 values, 4 at synchronize") as refused:
        worker.step([values], 0.1)
    assert refused.value.kind == "Length"
    values.resize_(4)
    values.zero_()
    worker.step([values], 0.1)


@pytest.mark.parametrize(
    ("bytes_left", "words"), [(0, "no memory any more"), (8, "its storage was resized")]
)
def test_a_tensor_whose_storage_was_resized(
    worker: slowmo.Worker, bytes_left: int, words: str
) -> None:
    values = synchronized(worker)
    up_to_a_round(worker)
    storage = values.untyped_storage()
    storage.resize_(bytes_left)
    with pytest.raises(slowmo.TensorError, match=words):
        worker.step([values], 0.1)
    storage.resize_(16)
    values.zero_()
    worker.step([values], 0.1)


def test_a_device_that_this_build_does_not_know() -> None:
    config = slowmo.Config()
    config.set("device", "cuda")
    if config.on_gpu:
        pytest.skip("this build has the feature cuda")
    with pytest.raises(slowmo.SlowmoError, match="feature cuda"):
        slowmo.Runtime(config)


def test_a_value_that_is_not_finite(worker: slowmo.Worker) -> None:
    values = synchronized(worker)
    up_to_a_round(worker)
    values[2] = float("nan")
    with pytest.raises(slowmo.StepError, match=r"weight\[2\] = NaN") as refused:
        worker.step([("weight", values)], 0.1)
    assert refused.value.kind == "Freeze"


def test_calls_in_the_wrong_order(runtime: slowmo.Runtime, worker: slowmo.Worker) -> None:
    with pytest.raises(slowmo.StepError, match="before synchronize"):
        worker.step([torch.zeros(1)], 0.1)
    synchronized(worker)
    with pytest.raises(slowmo.SynchronizeError, match="synchronizes once"):
        synchronized(worker)
    with pytest.raises(slowmo.WorkerError, match="worker 0 is already taken"):
        runtime.worker()
    with pytest.raises(slowmo.WorkerError, match="no worker 1"):
        runtime.worker(1)


def test_settings(runtime: slowmo.Runtime) -> None:
    with pytest.raises(slowmo.ConfigError, match="did you mean tau") as refused:
        slowmo.Config().set("tao", "1")
    assert refused.value.kind == "UnknownKey"
    assert isinstance(refused.value, slowmo.SlowmoError)
    with pytest.raises(slowmo.ProcessError, match="has a runtime already"):
        slowmo.Runtime(slowmo.Config())


def test_settings_that_are_passed_stay_as_they_are() -> None:
    settings = slowmo.Config()
    with slowmo.Runtime(settings, tau=7):
        assert settings.tau == 48


def test_a_node_needs_a_way_to_find_the_others() -> None:
    with pytest.raises(slowmo.SpawnError, match="cluster key is needed"):
        slowmo.Runtime(slowmo.Config(), min_nodes=2)


def in_a_fork(worker: slowmo.Worker, answers: Any) -> None:
    for call in (worker.is_due, lambda: slowmo.Runtime(slowmo.Config())):
        try:
            call()
            answers.put("allowed")
        except slowmo.ProcessError as error:
            answers.put(f"{error.kind}: {error}")


def test_a_forked_process_is_refused_by_name(worker: slowmo.Worker) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=in_a_fork, args=(worker, answers))
    child.start()
    for _ in range(2):
        answer = answers.get(timeout=30)
        assert answer.startswith("Forked: process "), answer
        assert f"was forked from process {os.getpid()}" in answer
    child.join(30)
    assert child.exitcode == 0
    synchronized(worker)


def test_data_loaders_may_fork(worker: slowmo.Worker) -> None:
    from torch.utils.data import DataLoader

    values = synchronized(worker)
    loader = DataLoader(torch.arange(8.0), batch_size=2, num_workers=2)
    for batch in loader:
        values -= batch.mean() / 10
        worker.step([values], 0.1)


def test_a_forked_process_keeps_no_socket_of_its_node(worker: slowmo.Worker) -> None:
    synchronized(worker)
    name = f"\0slowmo-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listens, socket.socket(socket.AF_UNIX) as dials:
        listens.bind(name)
        listens.listen(1)
        dials.connect(name)
        accepted, _ = listens.accept()
        mine, others = socket.socketpair()
        with accepted, mine, others:
            copies = [one.fileno() for one in (listens, dials, accepted)]
            child = os.fork()
            if child == 0:
                # Another open descriptor could have taken the number of a closed one.
                names = [os.readlink(f"/proc/self/fd/{fd}") for fd in copies if is_open(fd)]
                kept = any(entry.startswith("socket:") for entry in names)
                os._exit(1 if kept or not is_open(mine.fileno()) else 0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            dials.sendall(b"still open here")
            assert accepted.recv(64) == b"still open here"


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def program(text: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_interrupts_a_wait_for_nodes_that_never_come(tmp_path: Any) -> None:
    key = tmp_path / "cluster.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    waiting = program(
        """
        import signal, sys, numpy, slowmo
        # Where the tests run in the background, the shell has them ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        keys = {"min_nodes": 2, "cluster_key_file": sys.argv[1], "rendezvous": sys.argv[2]}
        worker = slowmo.Runtime(slowmo.Config(), **keys).worker()
        values = numpy.zeros(3, dtype=numpy.float32)
        print("waits", flush=True)
        try:
            worker.synchronize([values])
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        try:
            worker.synchronize([values])
        except slowmo.SynchronizeError as error:
            print(error.kind, flush=True)
        """,
        str(key),
        str(tmp_path),
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "waits\n"
    time.sleep(0.5)
    sent = time.monotonic()
    waiting.send_signal(signal.SIGINT)
    assert waiting.stdout.readline() == "interrupted\n"
    assert time.monotonic() - sent < 2.0
    assert waiting.stdout.readline() == "Abandoned\n"
    assert waiting.wait(30) == 0, waiting.stderr and waiting.stderr.read()


def test_another_thread_runs_while_a_worker_waits(tmp_path: Any) -> None:
    """And the log of the runtime arrives in `logging`."""
    key = tmp_path / "cluster.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    waiting = program(
        """
        import logging, sys, threading, time, numpy, slowmo
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
        longest = 0.0
        def count():
            global longest
            last = time.monotonic()
            while True:
                time.sleep(0.001)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
        threading.Thread(target=count, daemon=True).start()
        keys = {"min_nodes": 2, "cluster_key_file": sys.argv[1], "rendezvous": sys.argv[2]}
        runtime = slowmo.Runtime(slowmo.Config(), meet_timeout_ms=1500, **keys)
        worker = runtime.worker()
        try:
            worker.synchronize([numpy.zeros(3, dtype=numpy.float32)])
        except slowmo.SynchronizeError as error:
            print("longest", longest, error, flush=True)
        """,
        str(key),
        str(tmp_path),
    )
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, errors
    (line,) = [line for line in output.splitlines() if line.startswith("longest")]
    # A thread that had to wait for the worker would have stood still for a second and a half.
    assert float(line.split()[1]) < 0.75
    assert "only 1 of min_nodes = 2 nodes appeared" in line
    assert any(line.startswith("slowmo.") for line in output.splitlines()), output


def test_two_threads_do_not_share_a_worker(tmp_path: Any) -> None:
    key = tmp_path / "cluster.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    keys: dict[str, object] = {"cluster_key_file": key, "rendezvous": tmp_path}
    keys |= {"min_nodes": 2, "meet_timeout_ms": 2000}
    with slowmo.Runtime(slowmo.Config(), **keys) as runtime:
        worker = runtime.worker()
        errors: list[slowmo.SynchronizeError] = []

        def waiting() -> None:
            try:
                synchronized(worker)
            except slowmo.SynchronizeError as error:
                errors.append(error)

        waits = threading.Thread(target=waiting)
        waits.start()
        refused: slowmo.ProcessError | None = None
        end = time.monotonic() + 30
        while refused is None and time.monotonic() < end:
            try:
                worker.is_due()
                time.sleep(0.01)
            except slowmo.ProcessError as error:
                refused = error
        assert refused is not None and refused.kind == "Busy"
        waits.join(30)
        assert "only 1 of min_nodes" in str(errors[0])
        worker.leave()


def test_an_exception_in_the_loop_leaves_in_order() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError):
        with slowmo.SlowMo(model, optimizer, slowmo.Config(), tau=2) as training:
            worker = training.worker
            raise ZeroDivisionError
    with pytest.raises(slowmo.WorkerError, match="has stopped already"):
        worker.step_alone(0.1)
    # Nothing holds on to the process: another run begins.
    with slowmo.SlowMo(model, optimizer, slowmo.Config(), tau=2) as training:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert training.step == 1
