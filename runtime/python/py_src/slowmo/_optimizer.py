"""The base optimizer's state as it travels: to joiners, into checkpoints, into averages.

Optimizers create their state at their first step, and what travels must have the same size at every
call. So a trial step of a copy, with stand-ins for the parameters, tells which tensors there will
be. Where the optimizer has none yet, zeros travel in their place. What arrives there becomes its
state, unless it is zeros too: then the others have none either, and the optimizer begins as it
would alone.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class _Single:
    """A float32 tensor that the first step creates."""

    shape: torch.Size
    device: torch.device

    def zeros(self) -> torch.Tensor:
        return torch.zeros(self.shape, dtype=torch.float32, device=self.device)


#: What the first step adds to a parameter's state: float32 tensors travel, other values do not.
_Layout = dict[Any, Any]


class OptimizerState:
    """The float32 tensors of an optimizer's state, in an order that is the same on every node.

    ```python
    state = OptimizerState(optimizer)
    worker.synchronize(parameters, optimizer=state.lend())
    state.take()
    ```

    Parameters that need no gradient when it is made have none.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises TypeError for an optimizer of which no trial step can be taken."""
        self._optimizer = optimizer
        self._layouts = list(_layouts(optimizer))
        #: Zeros that were lent in place of tensors that do not exist yet.
        self._stand_ins: dict[tuple[int, Any], torch.Tensor] = {}

    def lend(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors, by parameter and name. After the call that they are lent to, call `take`."""
        self._stand_ins.clear()
        lent = []
        for index, (parameter, layout) in enumerate(self._layouts):
            state = self._optimizer.state.get(parameter, {})
            for key, value in layout.items():
                if not isinstance(value, _Single):
                    continue
                tensor = state.get(key)
                if tensor is None:
                    tensor = self._stand_ins[index, key] = value.zeros()
                lent.append((f"{index}.{key}", tensor))
        return lent

    def take(self) -> None:
        """Gives the optimizer what arrived in place of tensors that it does not have."""
        for index, (parameter, layout) in enumerate(self._layouts):
            arrived = {key: self._stand_ins.get((index, key)) for key in layout}
            if not any(tensor is not None and bool(tensor.any()) for tensor in arrived.values()):
                continue
            state = self._optimizer.state[parameter]
            for key, value in layout.items():
                if state.get(key) is None:
                    tensor = arrived[key]
                    state[key] = copy.deepcopy(value) if tensor is None else tensor
        self._stand_ins.clear()


def _layouts(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, _Layout]]:
    trial: Any = object.__new__(type(optimizer))
    vars(trial).update(vars(optimizer))
    # A scheduler's wrapper would call the optimizer itself, and hooks are for its own steps.
    vars(trial).pop("step", None)
    trial._optimizer_step_pre_hooks = OrderedDict()
    trial._optimizer_step_post_hooks = OrderedDict()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                known = optimizer.state.get(parameter, {})
                yield parameter, _layout(trial, group, parameter, known)


def _layout(
    trial: Any, group: dict[str, Any], parameter: torch.Tensor, known: dict[Any, Any]
) -> _Layout:
    stand_in = torch.nn.Parameter(torch.zeros_like(parameter))
    stand_in.grad = torch.zeros_like(parameter)
    trial.param_groups = [{**group, "params": [stand_in]}]
    trial.state = defaultdict(dict)
    if known:
        # Some optimizers have a state from the beginning.
        trial.state[stand_in] = copy.deepcopy(known)
    step: Callable[[Any], Any] = type(trial).step
    try:
        step(trial)
    except Exception as error:
        raise TypeError(
            f"a step of {type(trial).__name__} without arguments and with gradients of 0 fails "
            f"({error}), so nobody knows what state joiners and checkpoints would take: pass "
            'joiner_buffers="reset", and no checkpoint_every. Nothing was started'
        ) from error
    made = trial.state[stand_in]
    return {key: _described(made[key]) for key in sorted(made, key=str)}


def _described(value: Any) -> Any:
    if torch.is_tensor(value) and value.dtype == torch.float32:
        return _Single(value.shape, value.device)
    return value
