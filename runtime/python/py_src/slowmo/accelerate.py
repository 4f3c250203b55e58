"""Accelerate's `LocalSGD` on slowmo: the loop stays, the import changes.

```python
from slowmo.accelerate import LocalSGD
```

Processes that `accelerate launch` or `torchrun` started find each other. Processes of `slowmo
launch`, or with `SLOWMO_*` settings of their own, need no launcher of PyTorch: then nodes may come,
go and die, and `Accelerator()` sees one process.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch

from . import _torchrun
from ._runtime import Runtime, Worker
from ._slowmo import Config, SlowmoError, StepReport
from .torch import model_buffers

__all__ = ["LocalSGD", "leave"]

_logger = logging.getLogger("slowmo")

_AVERAGED_ALONE = 0.0


class _Node:
    """This process's node, which outlives the contexts: programs open one for each epoch."""

    def __init__(self, model: torch.nn.Module, steps: int) -> None:
        config = Config.load()
        place = _torchrun.place()
        _torchrun.form_cluster(config, place.rank, place.world_size)
        # Plain averages: no slow momentum.
        keys = {
            "base": "local_sgd",
            "frequency": str(steps),
            "outer": "slowmo",
            "alpha": "1",
            "beta": "0",
        }
        for key, value in keys.items():
            config.set(key, value)
        self.steps = steps
        self.runtime = Runtime(config)
        self.worker: Worker = self.runtime.worker()
        self.worker.synchronize(_parameters(model), model=model_buffers(model))

    def step(self, model: torch.nn.Module) -> StepReport:
        # Nothing divides by the learning rate.
        return self.worker.step(_parameters(model), _AVERAGED_ALONE, model=model_buffers(model))


_node: _Node | None = None


class LocalSGD:
    """Trains each process alone, and averages the parameters every `local_sgd_steps` steps.

    The first context waits for the other processes and takes over the parameters of the first one.
    The end of a context averages once more, unless the last step has. A program that ends leaves
    the cluster; `leave` does so before.

    A node that was drained ends its program, since Accelerate's loops do not ask whether they go
    on: the first `step` after it has handed over raises SystemExit(0).
    """

    def __init__(
        self,
        accelerator: Any,
        model: torch.nn.Module,
        local_sgd_steps: int,
        enabled: bool = True,
    ) -> None:
        kind = getattr(accelerator.distributed_type, "value", accelerator.distributed_type)
        if kind != "NO" and not str(kind).startswith("MULTI_"):
            raise NotImplementedError(
                f"LocalSGD averages whole models, and {kind} does not hold one on each process"
            )
        alone = kind == "NO" and not Config.load().names_others and _torchrun.place().world_size < 2
        self.enabled = enabled and not alone
        self.num_steps = 0
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        #: What the last step reported.
        self.report: StepReport | None = None
        self._own_gradients: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> LocalSGD:
        if self.enabled:
            self._join()
            no_sync: Any = getattr(self.model, "no_sync", nullcontext)
            self._own_gradients = no_sync()
            self._own_gradients.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.enabled:
            return
        try:
            if error is None:
                self._average()
            else:
                leave()
        except SlowmoError:
            # The program's own error tells more than one of leaving after it.
            if error is None:
                raise
        finally:
            self._own_gradients.__exit__(kind, error, trace)

    def step(self) -> None:
        """Counts a step, and averages the parameters if it is a last one of `local_sgd_steps`.

        Raises StepError as `Worker.step` does, and SystemExit(0) once this node was drained.
        """
        self.num_steps += 1
        if not self.enabled:
            return
        node = _joined()
        if not node.worker.is_running():
            _logger.info("this node was drained and has handed over: its program ends")
            raise SystemExit(0)
        self.report = node.step(self.model)

    @property
    def is_running(self) -> bool:
        """Whether the training goes on: `False` once this node was drained and has handed over."""
        return not self.enabled or (_node is not None and _node.worker.is_running())

    def _join(self) -> None:
        global _node
        if _node is None:
            _node = _Node(self.model, self.local_sgd_steps)
        elif _node.steps != self.local_sgd_steps:
            raise ValueError(
                f"local_sgd_steps = {self.local_sgd_steps} differs from that of the context before "
                f"({_node.steps}): all nodes agree on it once; call slowmo.accelerate.leave() first"
            )

    def _average(self) -> None:
        """Takes steps without training until parameters were averaged after the last one.

        Also where this node took none: the others wait for its part of their average.
        """
        node = _joined()
        while node.worker.is_running() and (self.report is None or self.report.round is None):
            self.report = node.step(self.model)


def leave() -> None:
    """Leaves the cluster; a later context forms or joins one anew."""
    global _node
    node, _node = _node, None
    if node is not None:
        node.worker.leave()
        node.runtime.close()


def _joined() -> _Node:
    if _node is None:
        raise RuntimeError(
            "LocalSGD is a context manager: write `with LocalSGD(...) as local_sgd:`"
        )
    return _node


def _parameters(model: torch.nn.Module) -> Any:
    return model.named_parameters()
