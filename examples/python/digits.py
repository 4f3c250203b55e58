"""A small network learns handwritten digits on several nodes, with SlowMo.

    slowmo launch --nodes 4 -- python examples/python/digits.py --steps 2400 --step-ms 20

Kill a process, and the others go on; start one with SLOWMO_JOIN=true (`slowmo scale`): it joins.
Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from torch import nn

import slowmo

DATA = Path(__file__).parents[1] / "data"


def images(file: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 64 values from 0 to 1, and the digits that they show."""
    rows = [
        [float(value) for value in line.split(",")]
        for line in (DATA / file).read_text().splitlines()
    ]
    table = torch.tensor(rows)
    return table[:, :64] / 16, table[:, 64].long()


def digest(model: nn.Module) -> str:
    """Equal on two nodes only if every bit of their parameters is."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()[:16]


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--step-ms", type=float, default=0, help="imitates a larger model")
    parser.add_argument("--tau", type=int, default=12)
    options, _ = parser.parse_known_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, targets = images("digits_train.csv")
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    loss_fn = nn.CrossEntropyLoss()
    sampler = slowmo.ElasticSampler(len(inputs), 16, 0)

    with slowmo.SlowMo(
        model, optimizer, sampler=sampler, tau=options.tau, frequency=options.tau
    ) as training:
        node = training.runtime.node_id
        say(event="start", node=node, step=training.step)
        while training.is_running and training.step < options.steps:
            begun = time.monotonic()
            batch = sampler.next_batch()
            loss = loss_fn(model(inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            training.report_loss(loss.item())
            report = training.report
            if report is not None and report.round is not None:
                say(
                    event="round",
                    node=node,
                    round=report.round,
                    step=report.step,
                    contributors=report.contributors,
                    loss=loss.item(),
                    digest=digest(model),
                )
            left = options.step_ms / 1000 - (time.monotonic() - begun)
            time.sleep(max(0.0, left))

    test_inputs, test_targets = images("digits_test.csv")
    right = (model(test_inputs).argmax(1) == test_targets).float().mean().item()
    say(event="done", node=node, step=training.step, accuracy=right, digest=digest(model))


if __name__ == "__main__":
    main()
