"""A node that averages its gradients with all others at each step, and batch-norm statistics with
the parameters at rounds. With an argument of 2 it has two workers, each on a thread of its own."""

from __future__ import annotations

import hashlib
import json
import sys
import threading

import torch
from torch import nn

import slowmo

STEPS = 8
lines = threading.Lock()


def train(runtime: slowmo.Runtime, worker: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    # A parameter without a gradient counts as zeros.
    model.register_parameter("unused", nn.Parameter(torch.zeros(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 * runtime.node_id + worker)
    seen = []
    with slowmo.SlowMo(model, optimizer, runtime=runtime, worker=worker) as training:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 3, generator=generator)).square().mean().backward()
            optimizer.step()
            values = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
            seen.append(hashlib.sha256(values.numpy().tobytes()).hexdigest()[:12])
        statistics = model[1].running_mean.tolist()
        report = training.report
        with lines:
            print(
                json.dumps(
                    {
                        "worker": worker,
                        "digests": seen,
                        "statistics": statistics,
                        "exchange": report and report.exchange,
                    }
                ),
                flush=True,
            )


def main() -> None:
    base, workers = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    with slowmo.Runtime(base=base, tau=4, frequency=4, devices=workers) as runtime:
        threads = [
            threading.Thread(target=train, args=(runtime, index)) for index in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
