"""The node of this process and its workers, over tensors of PyTorch or NumPy arrays."""

from __future__ import annotations

import atexit
import json
import logging
import os
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from . import _fork, _logging, _slowmo
from ._config import configured
from ._slowmo import Config, ElasticSampler, ResumedFrom, StepReport, Synchronized
from ._tensors import Tensors, describe

_logger = logging.getLogger("slowmo")

#: Workers that have not left.
_open: weakref.WeakSet[Worker] = weakref.WeakSet()


class Runtime:
    """This process's node. A process has one at a time, and none after a fork.

    Settings come from a file, `SLOWMO_*` variables, `--slowmo-*` flags, and from `config` (a
    `Config`, or a mapping of keys) and `keys`. As a context it closes at its end.

    Raises ConfigError or SpawnError, after which nothing runs and nothing listens; and ProcessError
    in a fork, and where the process has a runtime: close that one first.
    """

    def __init__(self, config: Config | Mapping[str, object] | None = None, **keys: object) -> None:
        settings = configured(config, **keys)
        _logging.start()
        self._inner = _slowmo.Runtime(settings)
        self._config = settings
        _fork.note(self._inner.address)

    def worker(self, index: int = 0) -> Worker:
        """Takes the handle of worker `index`; each can be taken once."""
        return Worker(self._inner.worker(index))

    @property
    def config(self) -> Config:
        """A copy of the settings with which this node was started."""
        return self._config.copy()

    @property
    def node_id(self) -> int:
        """This node's id."""
        return self._inner.node_id

    @property
    def address(self) -> str:
        """The address at which this node listens."""
        return self._inner.address

    @property
    def http_address(self) -> str | None:
        """The address of this node's HTTP endpoint (key `http`), if it has one."""
        return self._inner.http_address

    def status(self) -> dict[str, Any]:
        """This node's report of itself and the cluster, as `slowmo status --json` has it."""
        status: dict[str, Any] = json.loads(self._inner.status())
        return status

    def drain(self) -> None:
        """Hands over in the next round and leaves, as SIGTERM does: see `Worker.is_running`."""
        self._inner.drain()

    def close(self) -> None:
        """Gives the node up; it ends once its workers have left or are gone."""
        self._inner.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Worker:
    """One device's handle, for one training thread. Waits release the interpreter and hear Ctrl-C.

    Tensors are lent for the time of a call: float32, contiguous, in main memory (or on the worker's
    GPU), in the same order at every call and on every node. Nothing else may change them during a
    call. A worker that did not leave does so when nothing refers to it any more, at the latest when
    the interpreter ends.

    Every call raises ProcessError in a fork, and while another thread is in a call; TensorError for
    a tensor that cannot be lent, and nothing was read, written or sent then; and WorkerError once
    the worker has left or the node has stopped.
    """

    def __init__(self, inner: _slowmo.Worker) -> None:
        self._inner = inner
        self._forgotten = weakref.finalize(self, _leave, inner, os.getpid())
        _open.add(self)

    def attach_sampler(self, sampler: ElasticSampler) -> None:
        """Attaches a sampler, which then follows every step. Call it before `synchronize`."""
        self._inner.attach_sampler(sampler)

    def synchronize(
        self, parameters: Tensors, *, optimizer: Tensors = (), model: Tensors = ()
    ) -> Synchronized:
        """Waits for the other nodes and replaces `parameters` by those of the lowest id.

        If a cluster trains already, joins it with its next round and takes over its parameters and
        its step. Call it once, before the first step. `optimizer` and `model` are buffers that
        travel with the parameters: the base optimizer's, and the model's (batch-norm statistics).

        Raises SynchronizeError if the others do not come or do not agree. The tensors are
        unchanged, unless it says otherwise; mend what it names and start the process again.
        """
        return self._inner.synchronize(describe(parameters), describe(optimizer), describe(model))

    def step(
        self,
        parameters: Tensors,
        learning_rate: float,
        *,
        optimizer: Tensors = (),
        model: Tensors = (),
    ) -> StepReport:
        """Runs the exchange that is due after this inner step.

        Call it after every optimizer step. `learning_rate` is the inner optimizer's at this moment.
        Where nothing is due no tensor is looked at.

        Raises StepError. The step counter did not move, and the tensors are unchanged unless it
        says otherwise. It also says whether to try the step again, or that the training is over.
        """
        if not self._inner.is_due():
            return self._inner.step_alone(learning_rate)
        return self._inner.step(
            describe(parameters), learning_rate, describe(optimizer), describe(model)
        )

    def average_gradients(self, gradients: Tensors) -> None:
        """Averages the gradients over the node's workers; with base `all_reduce` over all nodes.

        Raises GradientError. The gradients are unchanged, or hold the node's mean: it says which.
        """
        self._inner.average_gradients(describe(gradients))

    def is_due(self) -> bool:
        """Whether the next step exchanges anything."""
        return self._inner.is_due()

    def step_alone(self, learning_rate: float) -> StepReport:
        """Completes an inner step at which nothing is due, without lending anything."""
        return self._inner.step_alone(learning_rate)

    def is_running(self) -> bool:
        """Whether the training goes on: `False` once this node was drained and has handed over."""
        return self._inner.is_running()

    def report_loss(self, loss: float) -> None:
        """Shows the loss of the current inner step in `status` and on the page."""
        self._inner.report_loss(loss)

    def report(self, name: str, value: float) -> None:
        """Shows a measure of the training's own beside the loss."""
        self._inner.report(name, value)

    def set_cursor(self, cursor: str) -> None:
        """Stores a text (a position in the data) with this node's part of later checkpoints."""
        self._inner.set_cursor(cursor)

    def resumed(self) -> ResumedFrom | None:
        """The checkpoint that this training continues from, if any."""
        return self._inner.resumed()

    def leave(self) -> None:
        """Leaves in order: what this node sent has arrived on return."""
        self._inner.leave()
        _open.discard(self)
        self._forgotten.detach()


def _leave(worker: _slowmo.Worker, process: int) -> None:
    """Leaves with a worker that nobody will use, so that the others need not miss this node.

    Loops that were written for other libraries never say that they are over. A fork of the
    `process` in which the worker was made has no part in it.
    """
    if os.getpid() != process:
        return
    try:
        worker.leave()
    except _slowmo.SlowmoError as error:
        _logger.debug("a worker that was not asked to leave: %s", error)


def _end() -> None:
    """Leaves with the workers that have not left, while the log still goes to `logging`."""
    for worker in list(_open):
        worker._forgotten()
    _logging.stop()


atexit.register(_end)
