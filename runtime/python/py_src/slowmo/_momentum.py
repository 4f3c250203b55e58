"""The slow momentum in a program's own state: what a `state_dict` saves and restores.

The runtime keeps the slow momentum `u` in shards on the nodes. What every node sees of it is the
result of a slow step, `x = o - alpha * m` with `m = lr * u`, where `o` are the parameters after the
slow step before. So a node that keeps `o` knows `m`, for two copies of the model.

A restored `m` goes into the first slow step: every node lowers its parameters by
`beta * (lr / lr_saved) * m` before the average, by which the runtime's own momentum, zero until
then, becomes what it would have been.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from ._slowmo import StepReport

_logger = logging.getLogger("slowmo")


class SlowMomentum:
    """Follows the slow steps of one worker, if it `keeps` what a state needs."""

    def __init__(self, alpha: float, beta: float, tau: int, keeps: bool) -> None:
        self._alpha = alpha
        self._beta = beta
        self._tau = tau
        self._keeps = keeps and beta > 0
        #: The parameters after the last slow step that this node took part in.
        self._anchor: list[torch.Tensor] | None = None
        self._momentum: list[torch.Tensor] | None = None
        self._learning_rate = 0.0
        #: A restored momentum that no slow step has taken up.
        self._restored: tuple[list[torch.Tensor], float] | None = None

    @torch.no_grad()
    def begin(self, parameters: Iterable[torch.Tensor], bootstrapped: bool) -> None:
        """Takes the first anchor. A node that joined knows it only after its first slow step.

        Only a training that begins takes up a restored momentum: others have one already.
        """
        if not bootstrapped and self._restored is not None:
            self._restored = None
            _logger.warning(
                "the slow momentum of the loaded state is not used: the cluster that this node "
                "joined, or the checkpoint that it continues from, has its own"
            )
        if self._keeps and bootstrapped:
            self._anchor = [_values(parameter).clone() for parameter in parameters]
            if self._restored is None:
                self._momentum = [torch.zeros_like(anchor) for anchor in self._anchor]

    @torch.no_grad()
    def before(self, parameters: Iterable[torch.Tensor], step: int, learning_rate: float) -> bool:
        """Before step number `step`: puts a restored momentum into a slow step."""
        if self._restored is None or (step + 1) % self._tau != 0:
            return False
        momentum, saved_rate = self._restored
        factor = self._beta * learning_rate / saved_rate
        for parameter, value in zip(parameters, momentum, strict=True):
            parameter.sub_(value.view_as(parameter).to(parameter), alpha=factor)
        return True

    @torch.no_grad()
    def undo(self, parameters: Iterable[torch.Tensor], learning_rate: float) -> None:
        """Takes back what `before` did, after a step that failed."""
        if self._restored is not None:
            momentum, saved_rate = self._restored
            for parameter, value in zip(parameters, momentum, strict=True):
                factor = self._beta * learning_rate / saved_rate
                parameter.add_(value.view_as(parameter).to(parameter), alpha=factor)

    @torch.no_grad()
    def after(
        self, parameters: Iterable[torch.Tensor], report: StepReport, learning_rate: float
    ) -> None:
        """After a step: follows a slow step."""
        if not report.slow_step:
            return
        self._restored = None
        if not self._keeps:
            return
        now = [_values(parameter) for parameter in parameters]
        if self._anchor is None or report.caught_up:
            self._momentum = None
            self._anchor = [value.clone() for value in now]
            return
        if self._momentum is None:
            self._momentum = [torch.empty_like(anchor) for anchor in self._anchor]
        for anchor, momentum, value in zip(self._anchor, self._momentum, now, strict=True):
            torch.sub(anchor, value, out=momentum).div_(self._alpha)
            anchor.copy_(value)
        self._learning_rate = learning_rate

    def state(self, names: Iterable[str]) -> dict[str, Any] | None:
        """What `restore` takes; `None` without a slow momentum that this node knows."""
        if not self._keeps:
            return None
        if self._restored is not None:
            momentum, rate = self._restored
        elif self._momentum is not None:
            momentum, rate = self._momentum, self._learning_rate
        else:
            _logger.warning(
                "the state holds no slow momentum: this node joined, and knows it after its second "
                "slow step"
            )
            return None
        tensors = {name: value.clone() for name, value in zip(names, momentum, strict=True)}
        return {"learning_rate": rate, "momentum": tensors}

    def restore(self, state: dict[str, Any] | None, names: Iterable[str]) -> None:
        """Lets the next slow step continue from a saved momentum, or from zero."""
        self._restored = None
        if state is None or state["learning_rate"] <= 0 or self._beta == 0:
            return
        momentum = [state["momentum"][name] for name in names]
        self._restored = (momentum, float(state["learning_rate"]))
        self._momentum = None


def _values(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's values in one row, as float32: masters may have other shapes than the model."""
    return parameter.detach().reshape(-1).float()
