"""A process of a launcher of PyTorch that made no process group; the last one comes late."""

from __future__ import annotations

import os
import time

import torch

import slowmo


def main() -> None:
    torch.set_num_threads(1)
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        time.sleep(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with slowmo.SlowMo(model, optimizer, tau=2, frequency=2) as training:
        for _ in range(2):
            optimizer.step()
        assert training.report is not None
        assert training.report.contributors == int(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    main()
