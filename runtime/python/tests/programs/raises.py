"""A node that trains and prints its rounds. Node 3 fails in its loop, at a step between rounds."""

from __future__ import annotations

import json

import torch

import slowmo

FAILS_AT = 45


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with slowmo.SlowMo(model, optimizer, tau=10, frequency=10) as training:
        while training.step < 100_000:
            if training.runtime.node_id == 3 and training.step == FAILS_AT:
                raise ZeroDivisionError("of the program")
            optimizer.zero_grad()
            model(torch.ones(1, 4)).square().sum().backward()
            optimizer.step()
            report = training.report
            if report is not None and report.round is not None:
                told = {"round": report.round, "contributors": report.contributors}
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
