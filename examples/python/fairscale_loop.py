"""A loop that was written for fairscale: only the import is another one.

torchrun --nproc-per-node 4 examples/python/fairscale_loop.py
slowmo launch --nodes 4 -- python examples/python/fairscale_loop.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from digits import digest, images
from torch import nn

from slowmo.fairscale import SlowMoDistributedDataParallel as SlowMoDDP


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        # slowmo needs no process group; a loop that makes one keeps doing so.
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs, targets = images("digits_train.csv")
    model = SlowMoDDP(
        nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        nprocs_per_node=1,
        slowmo_momentum=0.5,
        slowmo_frequency=12,
        localsgd_frequency=4,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    torch.seed()  # other batches on every node
    model.train()
    for step in range(240):
        batch = torch.randint(len(inputs), (16,))
        loss = loss_fn(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        model.perform_slowmo(optimizer)
        if step % 60 == 59:
            print(
                f"step {step + 1}: loss {loss.item():.3f}, parameters {digest(model)}", flush=True
            )


if __name__ == "__main__":
    main()
