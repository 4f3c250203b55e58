"""Rounds of a model of 25 million parameters: seconds of a round, the memory that they take beside
the model, and, in further rounds, the longest time for which another thread of Python stood still,
also while nothing else ran. One node of a cluster. `examples/large.rs` is the same in Rust."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

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


def kilobytes(name: str) -> int:
    """A line of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(25)])
    runtime = slowmo.Runtime(tau=1, frequency=1)
    worker = runtime.worker()
    # The peak starts again here.
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS:")
    worker.synchronize(model.named_parameters())
    seconds = []
    for _ in range(ROUNDS):
        time.sleep(0.01)
        begun = time.monotonic()
        worker.step(model.named_parameters(), 0.1)
        seconds.append(time.monotonic() - begun)
    more = kilobytes("VmHWM:") - before
    # It wakes so often that it would show in the seconds above.
    watch = Watch()
    watch.start()
    time.sleep(1.0)
    idle = watch.longest
    stalls = []
    for _ in range(ROUNDS):
        time.sleep(0.01)
        watch.longest = 0.0
        worker.step(model.named_parameters(), 0.1)
        stalls.append(watch.longest)
    result = {
        "seconds": seconds,
        "stalls_ms": [stall * 1e3 for stall in stalls],
        "idle_ms": idle * 1e3,
        "more_mb": more / 1e3,
    }
    print(json.dumps(result))
    worker.leave()


if __name__ == "__main__":
    main()
