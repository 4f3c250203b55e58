"""slowmo for PyTorch loops: `SlowMo` around a model and its optimizer is all that a loop needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch

from . import _torchrun
from ._config import configured
from ._momentum import SlowMomentum
from ._optimizer import OptimizerState
from ._runtime import Runtime, Worker
from ._slowmo import Config, ElasticSampler, SlowmoError, StepReport, Synchronized

__all__ = ["OptimizerState", "Rates", "SlowMo", "learning_rate", "model_buffers"]

_logger = logging.getLogger("slowmo")


class SlowMo:
    """Trains `model` together with the other nodes, from `with` to its end.

    ```python
    with slowmo.SlowMo(model, optimizer, tau=48, beta=0.5) as training:
        for batch, target in loader:
            loss_fn(model(batch), target).backward()
            optimizer.step()        # gossip, average or outer round, when one is due
            optimizer.zero_grad()
            if not training.is_running:
                break               # this node was drained, and has handed over
    ```

    Settings come from a file, `SLOWMO_*` variables, `--slowmo-*` flags, then from `config` and
    `keys`. Under `torchrun` the processes find each other. Everything else says where the others
    are: `slowmo launch`, `peers`, `rendezvous` or `discover`.

    The model's float32 buffers travel with its parameters; so does the optimizer's state where
    settings ask for it (`buffers`, `joiner_buffers`, `checkpoint_every`), by default to joiners.
    With `carry_slow_momentum` the state of `state_dict` holds the slow momentum, for two more
    copies of the model in memory.

    A `runtime` of several workers, or one that outlives this context, is passed with the number of
    its `worker`; it has its settings already.

    Raises SpawnError or SynchronizeError where the context begins, after which nothing runs. In it
    `optimizer.step()` raises StepError: the optimizer's own step is done, the exchange is not.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        config: Config | Mapping[str, object] | None = None,
        *,
        runtime: Runtime | None = None,
        worker: int = 0,
        sampler: ElasticSampler | None = None,
        carry_slow_momentum: bool = False,
        **keys: object,
    ) -> None:
        if runtime is not None and (config is not None or keys):
            raise TypeError("runtime has its settings already: pass config and keys to Runtime")
        self.model = model
        self.optimizer = optimizer
        self._config = configured(config, **keys) if runtime is None else runtime.config
        self._runtime = runtime
        self._owns_runtime = runtime is None
        self._index = worker
        self._sampler = sampler
        self._worker: Worker | None = None
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._rates = Rates(optimizer)
        self._state: OptimizerState | None = None
        self._momentum = slow_momentum(self._config, carry_slow_momentum)
        self._step = 0
        #: What the last step reported; `None` before the first one.
        self.report: StepReport | None = None
        #: What `synchronize` reported; `None` before the context begins.
        self.synchronized: Synchronized | None = None

    def __enter__(self) -> SlowMo:
        if self._config.lends_optimizer:
            self._state = OptimizerState(self.optimizer)
        if self._runtime is None:
            place = _torchrun.place()
            _torchrun.form_cluster(self._config, place.rank, place.world_size)
            self._runtime = Runtime(self._config)
        try:
            self._worker = self._runtime.worker(self._index)
            self._synchronize(self._worker)
            self._hook()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end()
        except SlowmoError:
            # The program's own error tells more than one of leaving after it.
            if error is None:
                raise

    @property
    def worker(self) -> Worker:
        """This context's worker."""
        if self._worker is None:
            raise RuntimeError("SlowMo is a context manager: write `with slowmo.SlowMo(...) as t:`")
        return self._worker

    @property
    def runtime(self) -> Runtime:
        """The node of this process."""
        if self._runtime is None:
            raise RuntimeError("SlowMo is a context manager: write `with slowmo.SlowMo(...) as t:`")
        return self._runtime

    @property
    def is_running(self) -> bool:
        """Whether the training goes on: `False` once this node was drained and has handed over."""
        return self._worker is not None and self._worker.is_running()

    @property
    def step(self) -> int:
        """The next inner step, from 0; that of the cluster, for a node that joined."""
        return self._step

    def report_loss(self, loss: float) -> None:
        """Shows the loss of the current inner step in `status` and on the page."""
        self.worker.report_loss(loss)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: the slow momentum, if it is carried.

        Save it beside the model's and the optimizer's, after a slow step (`report.slow_step`): in
        between, nodes differ. `step` is for the program's own use: a new training counts from 0.
        Whole runs are saved better by the runtime itself (key `checkpoints`).
        """
        return {"step": self._step, "slow_momentum": self._momentum.state(self._names())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with a saved slow momentum; on all nodes, before the context begins.

        A node that joins a cluster or continues from a checkpoint of the runtime takes that one's.
        """
        if self._worker is not None:
            raise RuntimeError(
                "load_state_dict was called in the context: the slow momentum of a training that "
                "runs stays with the nodes; load states before `with`"
            )
        self._momentum.restore(state["slow_momentum"], self._names())

    def _names(self) -> Iterator[str]:
        return (name for name, _ in self.model.named_parameters())

    def _hook(self) -> None:
        after = self.optimizer.register_step_post_hook(lambda *_: self._after_step())
        self._hooks.append(after)
        if self._config.devices > 1 or self._config.averages_gradients:
            before = self.optimizer.register_step_pre_hook(lambda *_: self._before_step())
            self._hooks.append(before)

    def _synchronize(self, worker: Worker) -> None:
        if self._sampler is not None:
            worker.attach_sampler(self._sampler)
        self.synchronized = worker.synchronize(
            self.model.named_parameters(),
            optimizer=self._state.lend() if self._state else (),
            model=model_buffers(self.model),
        )
        if self._state:
            self._state.take()
        self._step = self.synchronized.step
        self._momentum.begin(self.model.parameters(), is_new(worker, self.synchronized))

    def _before_step(self) -> None:
        gradients = []
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    # Every worker brings as many values as the others.
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append((name, parameter.grad))
        self.worker.average_gradients(gradients)

    def _after_step(self) -> None:
        worker = self.worker
        rate = learning_rate(self.optimizer)
        if not worker.is_due():
            self.report = worker.step_alone(rate)
        else:
            self.report = self._exchange(worker, rate)
        self._step = self.report.step + 1

    def _exchange(self, worker: Worker, rate: float) -> StepReport:
        self._rates.check()
        parameters = list(self.model.named_parameters())
        values = [parameter for _, parameter in parameters]
        changed = self._momentum.before(values, self._step, rate)
        try:
            report = worker.step(
                parameters,
                rate,
                optimizer=self._state.lend() if self._state else (),
                model=model_buffers(self.model),
            )
        except SlowmoError:
            if changed:
                self._momentum.undo(values, rate)
            raise
        if self._state:
            self._state.take()
        self._momentum.after(values, report, rate)
        return report

    def _end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        worker, self._worker = self._worker, None
        try:
            if worker is not None:
                worker.leave()
        finally:
            if self._owns_runtime and self._runtime is not None:
                self._runtime.close()
                self._runtime = None


class Rates:
    """Watches the learning rates of an optimizer's parameter groups.

    A slow step depends on a rate only through its ratio to that at the slow step before. As long as
    all groups' rates rise and fall together, one of them stands for all.
    """

    #: Relative difference of two ratios that counts as none.
    TOLERANCE = 1e-4

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._ratios: list[float] | None = None
        self._told = False

    def check(self) -> None:
        """Warns, once, if the rates have changed relative to each other."""
        rates = _rates(self._optimizer)
        whole = max(rates, default=0.0)
        if self._told or len(rates) < 2 or whole <= 0:
            return
        ratios = [rate / whole for rate in rates]
        before, self._ratios = self._ratios, ratios
        if before is None or len(before) != len(ratios):
            return
        differ = [
            index
            for index, (old, new) in enumerate(zip(before, ratios, strict=True))
            # A group that stands still has no slow momentum to decay.
            if old > 0 and new > 0 and abs(new - old) > self.TOLERANCE * old
        ]
        if differ:
            self._told = True
            _logger.warning(
                "the learning rates of the parameter groups changed relative to each other (groups "
                "%s): their slow momentum decays as that of the first group with a rate above 0",
                differ,
            )


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The rate that stands for all parameter groups: the first above 0, or 0."""
    return next((rate for rate in _rates(optimizer) if rate > 0), 0.0)


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def is_new(worker: Worker, synchronized: Synchronized) -> bool:
    """Whether the training began with this node: its slow momentum is zero."""
    return synchronized.round <= 1 and worker.resumed() is None


def slow_momentum(config: Config, keeps: bool) -> SlowMomentum:
    """What follows the slow steps that `config` describes."""
    beta = config.beta if config.is_slowmo else 0.0
    return SlowMomentum(config.alpha, beta, config.tau, keeps)


def model_buffers(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The model's float32 buffers, which exact averages average: counters stay each node's own."""
    buffers = model.named_buffers()
    return [(name, buffer) for name, buffer in buffers if buffer.dtype == torch.float32]
