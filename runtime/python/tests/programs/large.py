"""Rounds of a model of 25 million parameters: seconds of a round, peak memory, and the longest time
for which another thread of Python stood still. One node of a cluster."""

from __future__ import annotations

import json
import resource
import threading
import time

import torch

import slowmo

ROUNDS = 6


class Watch(threading.Thread):
    """Notes the longest pause between two of its own steps."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.0005)
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(25)])
    runtime = slowmo.Runtime(tau=1, frequency=1)
    worker = runtime.worker()
    worker.synchronize(model.named_parameters())
    watch = Watch()
    watch.start()
    seconds = []
    stalls = []
    for _ in range(ROUNDS):
        time.sleep(0.01)
        watch.longest = 0.0
        begun = time.monotonic()
        worker.step(model.named_parameters(), 0.1)
        seconds.append(time.monotonic() - begun)
        stalls.append(watch.longest)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "stalls_ms": [s * 1e3 for s in stalls], "peak": peak}))
    worker.leave()


if __name__ == "__main__":
    main()
