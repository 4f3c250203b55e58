"""Trains the same model with Accelerate's LocalSGD and with slowmo's, on the same batches. Prints
how far the parameters are apart. One process of a world that torchrun's variables describe."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD as Theirs
from torch import nn

from slowmo.accelerate import LocalSGD as Ours

STEPS = 60


def train(accelerator: Accelerator, kind: Any, model: nn.Module) -> tuple[nn.Module, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    loss_fn = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    begun = time.perf_counter()
    # Two contexts, and the first one does not end at a step that averages.
    for steps in (20, STEPS - 20):
        with kind(
            accelerator=accelerator, model=model, local_sgd_steps=8, enabled=True
        ) as local_sgd:
            for _ in range(steps):
                inputs = torch.randn(16, 64, generator=generator)
                targets = torch.randint(10, (16,), generator=generator)
                with accelerator.accumulate(model):
                    loss = loss_fn(model(inputs), targets)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    local_sgd.step()
    return accelerator.unwrap_model(model), (time.perf_counter() - begun) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    theirs, their_seconds = train(accelerator, Theirs, copy.deepcopy(model))
    dist.barrier()
    ours, our_seconds = train(accelerator, Ours, copy.deepcopy(model))
    apart = max(
        float((one - other).abs().max().detach())
        for one, other in zip(theirs.parameters(), ours.parameters(), strict=True)
    )
    moved = max(
        float((one - other).abs().max().detach())
        for one, other in zip(theirs.parameters(), model.parameters(), strict=True)
    )
    result = {
        "rank": dist.get_rank(),
        "apart": apart,
        "moved": moved,
        "their_ms": their_seconds * 1e3,
        "our_ms": our_seconds * 1e3,
    }
    print(json.dumps(result), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
