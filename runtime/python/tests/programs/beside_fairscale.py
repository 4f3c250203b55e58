"""Trains the same model with fairscale and with slowmo, on the same batches, and prints how far the
parameters are apart. One process of a world that torchrun's variables describe.

The model is smooth: where a ReLU's input is almost zero, sums in another order change a gradient.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 60


def without_cuda() -> None:
    """fairscale calls torch.cuda on CPUs too: here these calls do nothing."""

    class Stream:
        def wait_stream(self, _: object) -> None: ...
        def synchronize(self) -> None: ...

    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: Stream()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.Tensor.cuda = lambda self, *_: self
    torch.Tensor.pin_memory = lambda self, *_: self


def optimizers(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "groups":
        first, second = model.module[0], model.module[2]
        groups = [
            {"params": first.parameters(), "lr": 0.05},
            {"params": second.parameters(), "lr": 0.02},
        ]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    momentum = {"plain": 0.0}.get(name, 0.9)
    nesterov = name == "nesterov"
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, nesterov=nesterov)


#: Name, the base, arguments of both, the optimizer, the step at which learning rates drop.
CASES: list[tuple[str, str, dict[str, Any], str, int | None]] = [
    ("LocalSGD", "localsgd", {"slowmo_momentum": 0.0}, "plain", None),
    ("LocalSGD + SlowMo", "localsgd", {}, "momentum", None),
    (
        "LocalSGD + SlowMo, unsharded",
        "localsgd",
        {"slowmo_memory_efficient": False},
        "momentum",
        None,
    ),
    ("LocalSGD + SlowMo, Nesterov, lr drop", "localsgd", {}, "nesterov", 30),
    ("LocalSGD + SlowMo, two groups, lr drop", "localsgd", {}, "groups", 30),
    ("LocalSGD + SlowMo, alpha", "localsgd", {"slowmo_lr": 0.7}, "plain", None),
    ("SGP", "sgp", {"slowmo_momentum": 0.0}, "momentum", None),
    ("SGP + SlowMo", "sgp", {}, "momentum", None),
    (
        "SGP + SlowMo, averaged",
        "sgp",
        {"slowmo_memory_efficient": False, "slowmo_sgp_average_params": True},
        "momentum",
        None,
    ),
    ("SGP + SlowMo, no average", "sgp", {"slowmo_memory_efficient": False}, "momentum", 30),
    ("two nodes of two, LocalSGD + SlowMo", "localsgd", {"nprocs_per_node": 2}, "momentum", None),
    ("two nodes of two, SGP + SlowMo", "sgp", {"nprocs_per_node": 2}, "momentum", 30),
]


def train(wrapped: nn.Module, optimizer: torch.optim.Optimizer, drop: int | None) -> float:
    """The loop of the guide; returns seconds per step."""
    loss_fn = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    wrapped.train()
    wrapped._init_global_momentum_buffers(optimizer)
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == drop:
            for group in optimizer.param_groups:
                group["lr"] /= 10
        inputs = torch.randn(16, 64, generator=generator)
        targets = torch.randint(10, (16,), generator=generator)
        loss_fn(wrapped(inputs), targets).backward()
        optimizer.step()
        wrapped.zero_grad(set_to_none=True)
        wrapped.perform_slowmo(optimizer)
    return (time.perf_counter() - begun) / STEPS


def compared() -> Iterator[dict[str, Any]]:
    from fairscale.experimental.nn.data_parallel import (
        SlowMoBaseAlgorithm as TheirBase,
    )
    from fairscale.experimental.nn.data_parallel import (
        SlowMoDistributedDataParallel as Theirs,
    )

    from slowmo.fairscale import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel

    for name, base, arguments, optimizer, drop in CASES:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        settings = {
            "nprocs_per_node": 1,
            "slowmo_frequency": 12,
            "localsgd_frequency": 4,
            **arguments,
        }
        theirs = Theirs(copy.deepcopy(model), slowmo_base_algorithm=TheirBase(base), **settings)
        their_seconds = train(theirs, optimizers(optimizer, theirs), drop)
        dist.barrier()
        ours = SlowMoDistributedDataParallel(
            copy.deepcopy(model), slowmo_base_algorithm=SlowMoBaseAlgorithm(base), **settings
        )
        our_seconds = train(ours, optimizers(optimizer, ours), drop)
        dist.barrier()
        apart = max(
            float((one - other).abs().max().detach())
            for one, other in zip(theirs.module.parameters(), ours.module.parameters(), strict=True)
        )
        ours.leave()
        yield {
            "case": name,
            "apart": apart,
            "their_ms": their_seconds * 1e3,
            "our_ms": our_seconds * 1e3,
        }


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    without_cuda()
    dist.init_process_group("gloo")
    for one in compared():
        print(json.dumps({"rank": dist.get_rank(), **one}), flush=True)
    dist.barrier()
    sys.stdout.flush()
    # fairscale's gossip threads never end.
    os._exit(0)


if __name__ == "__main__":
    main()
