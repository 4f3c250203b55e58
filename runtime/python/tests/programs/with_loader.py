"""A node whose data come from a process that was forked after the runtime had started. Prints its
rounds."""

from __future__ import annotations

import json

import torch
from torch.utils.data import DataLoader

import slowmo


def main() -> None:
    torch.set_num_threads(1)
    values = torch.zeros(1000)
    worker = slowmo.Runtime(tau=10, frequency=10).worker()
    worker.synchronize([values])
    loader = DataLoader(torch.arange(100_000.0), batch_size=4, num_workers=1)
    for batch in loader:
        values += batch.mean() * 1e-9
        report = worker.step([values], 0.1)
        if report.round is not None:
            print(json.dumps({"round": report.round, "contributors": report.contributors}))
        if not worker.is_running() or report.step >= 3000:
            break
    worker.leave()


if __name__ == "__main__":
    main()
