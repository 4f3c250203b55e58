"""Time of a step on the digits, 4 processes, beside fairscale and Accelerate: by turns, in one run.

    python runtime/python/benches/beside.py [METHOD ...]

Prints a table: microseconds of a step on average over all steps (the median of three turns), theirs
and ours, and the ratio. Where processes are more than processors, compare only what one run says.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS), str(TESTS / "programs")]

from speed import METHODS  # noqa: E402

from cluster import PROGRAMS, under_torchrun  # noqa: E402

PROCESSES = 4


def main() -> None:
    print("| method | theirs, µs | ours, µs | ratio |")
    print("|---|---|---|---|")
    for method in sys.argv[1:] or [*METHODS, "Accelerate"]:
        nodes = under_torchrun(PROGRAMS / "speed.py", method, world_size=PROCESSES)
        lines = [line for node in nodes for line in node.ended_well()]
        mean = {}
        for who in ("theirs", "ours"):
            told = [line["mean_us"] for line in lines if line["who"] == who]
            mean[who] = statistics.median(told)
        ratio = mean["ours"] / mean["theirs"]
        print(f"| {method} | {mean['theirs']:.0f} | {mean['ours']:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
