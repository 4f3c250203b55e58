"""A bfloat16 model with float32 masters, each node's from weights of its own, and gradients of 1.
Prints the first and the last values of the masters."""

from __future__ import annotations

import json
import os

import torch

from slowmo.fairscale import SlowMoDistributedDataParallel

STEPS = 4


def main() -> None:
    torch.set_num_threads(1)
    module = torch.nn.Linear(2, 2, bias=False).to(torch.bfloat16)
    torch.nn.init.constant_(module.weight, float(os.environ["SLOWMO_NODE_ID"]))
    model = SlowMoDistributedDataParallel(
        module, 1, slowmo_frequency=STEPS, localsgd_frequency=STEPS, slowmo_momentum=0.0
    )
    masters = [parameter.detach().float() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.125)
    for _ in range(STEPS):
        model(torch.zeros(1, 2, dtype=torch.bfloat16))
        for master in masters:
            master.grad = torch.ones_like(master)
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, module.parameters(), strict=True):
                parameter.copy_(master)
        model.perform_slowmo(optimizer, fp32_params=masters)
    values = {"masters": masters[0].tolist(), "model": module.weight.tolist()}
    print(json.dumps(values), flush=True)
    model.leave()


if __name__ == "__main__":
    main()
