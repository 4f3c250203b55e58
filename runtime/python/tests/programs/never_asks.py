"""A loop of another library that never asks whether its node goes on. Prints its rounds."""

from __future__ import annotations

import json
import sys
import time

import torch


def say(report: object) -> None:
    round_number = getattr(report, "round", None)
    if round_number is not None:
        print(json.dumps({"round": round_number}), flush=True)


def of_fairscale() -> None:
    from slowmo.fairscale import SlowMoDistributedDataParallel

    model = SlowMoDistributedDataParallel(
        torch.nn.Linear(2, 2), 1, slowmo_frequency=4, localsgd_frequency=4
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.eye(2)).sum().backward()
        optimizer.step()
        model.zero_grad()
        model.perform_slowmo(optimizer)
        say(model.report)
        time.sleep(0.002)


def of_accelerate() -> None:
    from accelerate import Accelerator

    from slowmo.accelerate import LocalSGD

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    while True:
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=4) as local_sgd:
            for _ in range(6):
                local_sgd.step()
                say(local_sgd.report)
                time.sleep(0.002)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"fairscale": of_fairscale, "accelerate": of_accelerate}[sys.argv[1]]()
