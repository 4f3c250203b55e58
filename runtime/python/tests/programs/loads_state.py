"""A node that loads a slow momentum before it trains, as a script does that is started again.
Nothing trains, so whatever moves the parameters comes from that momentum. Prints its rounds."""

from __future__ import annotations

import json
import sys
import time

import torch

import slowmo


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = slowmo.SlowMo(model, optimizer, tau=5, frequency=5)
    if "loads" in sys.argv:
        momentum = {"learning_rate": 0.1, "momentum": {"weight": torch.full((4,), 100.0)}}
        training.load_state_dict({"step": 0, "slow_momentum": momentum})
    with training:
        while training.is_running:
            optimizer.step()
            time.sleep(0.01)
            report = training.report
            if report is not None and report.round is not None:
                line = {
                    "contributors": report.contributors,
                    "most": model.weight.abs().max().item(),
                }
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
