"""Time of a step on the digits with fairscale or Accelerate, and with slowmo's stand-in for it: by
turns, several times. One process of a world that torchrun's variables describe. `benches/beside.py`
starts the others and compares."""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).parents[4] / "examples" / "python"))

from beside_fairscale import without_cuda  # noqa: E402
from digits import images  # noqa: E402

STEPS = 480
#: Steps before the clock runs.
WARM_UP = 48
TURNS = 3
FREQUENCY = 4
TAU = 48

METHODS: dict[str, dict[str, Any]] = {
    "LocalSGD": {"base": "localsgd", "slowmo_momentum": 0.0},
    "LocalSGD + SlowMo": {"base": "localsgd"},
    "LocalSGD + SlowMo, unsharded": {"base": "localsgd", "slowmo_memory_efficient": False},
    "SGP": {"base": "sgp", "slowmo_momentum": 0.0},
    "SGP + SlowMo": {"base": "sgp"},
    "SGP + SlowMo, no average": {"base": "sgp", "slowmo_memory_efficient": False},
}


class Digits:
    """Batches of one process, a perceptron and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.inputs, self.targets = images("digits_train.csv")
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.loss_fn = nn.CrossEntropyLoss()
        self.generator = torch.Generator().manual_seed(1 + dist.get_rank())

    def loss(self, model: nn.Module) -> torch.Tensor:
        batch = torch.randint(len(self.inputs), (16,), generator=self.generator)
        loss: torch.Tensor = self.loss_fn(model(self.inputs[batch]), self.targets[batch])
        return loss


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def timed(step: Callable[[], None]) -> tuple[float, list[float]]:
    """Seconds of a step on average, and the seconds of each."""
    for _ in range(WARM_UP):
        step()
    dist.barrier()
    each = []
    begun = last = time.perf_counter()
    for _ in range(STEPS):
        step()
        now = time.perf_counter()
        each.append(now - last)
        last = now
    return (last - begun) / STEPS, each


def with_wrapper(wrapper: Any, base: Any, settings: dict[str, Any]) -> tuple[float, list[float]]:
    digits = Digits()
    settings = {"slowmo_frequency": TAU, "localsgd_frequency": FREQUENCY, **settings}
    model = wrapper(
        digits.model,
        nprocs_per_node=1,
        slowmo_base_algorithm=base(settings.pop("base")),
        **settings,
    )
    optimizer = optimizer_of(model)
    model.train()
    model._init_global_momentum_buffers(optimizer)

    def step() -> None:
        digits.loss(model).backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        model.perform_slowmo(optimizer)

    seconds = timed(step)
    if hasattr(model, "leave"):
        model.leave()
    return seconds


def with_context(kind: Any) -> tuple[float, list[float]]:
    from accelerate import Accelerator

    digits = Digits()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(digits.model, optimizer_of(digits.model))
    with kind(
        accelerator=accelerator, model=model, local_sgd_steps=FREQUENCY, enabled=True
    ) as local_sgd:

        def step() -> None:
            with accelerator.accumulate(model):
                accelerator.backward(digits.loss(model))
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()

        return timed(step)


def turns(method: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A run of the original, and one of slowmo."""
    if method == "Accelerate":
        from accelerate.local_sgd import LocalSGD as Theirs

        from slowmo.accelerate import LocalSGD as Ours
        from slowmo.accelerate import leave

        def ours() -> Any:
            seconds = with_context(Ours)
            leave()
            return seconds

        return lambda: with_context(Theirs), ours
    from fairscale.experimental.nn.data_parallel import SlowMoBaseAlgorithm as TheirBase
    from fairscale.experimental.nn.data_parallel import SlowMoDistributedDataParallel as TheirDDP

    from slowmo.fairscale import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel

    settings = METHODS[method]
    return (
        lambda: with_wrapper(TheirDDP, TheirBase, settings),
        lambda: with_wrapper(SlowMoDistributedDataParallel, SlowMoBaseAlgorithm, settings),
    )


def main() -> None:
    method = sys.argv[1]
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if method != "Accelerate":
        without_cuda()
        dist.init_process_group("gloo")
    else:
        from accelerate import Accelerator

        Accelerator(cpu=True)
    theirs, ours = turns(method)
    for _ in range(TURNS):
        for who, run in (("theirs", theirs), ("ours", ours)):
            dist.barrier()
            mean, each = run()
            result = {
                "rank": dist.get_rank(),
                "who": who,
                "mean_us": mean * 1e6,
                "median_us": statistics.median(each) * 1e6,
            }
            print(json.dumps(result), flush=True)
    dist.barrier()
    sys.stdout.flush()
    # fairscale's gossip threads never end.
    os._exit(0)


if __name__ == "__main__":
    main()
