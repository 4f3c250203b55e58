"""A round of 25 million parameters from PyTorch beside the same round from Rust: two nodes each, by
turns.

    cargo build --release --manifest-path runtime/python/Cargo.toml --example large
    python runtime/python/benches/large.py TARGET/release/examples/large

Prints medians over all nodes and rounds: seconds of a round, memory beside the model, and the
longest time for which another thread of Python stood still in a round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from cluster import PROGRAMS, Cluster  # noqa: E402

NODES = 2
TURNS = 5
#: A model's bytes.
MODEL_MB = 25 * 1_001_000 * 4 / 1e6


def from_python() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), NODES)
        nodes = cluster.start(PROGRAMS / "large.py")
        return [node.ended_well()[-1] for node in nodes]


def from_rust(program: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), NODES)
        processes = [
            subprocess.Popen(
                [program], env={**os.environ, **cluster.variables(number)}, stdout=subprocess.PIPE
            )
            for number in range(1, NODES + 1)
        ]
        return [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]


def median(results: list[dict[str, Any]], name: str) -> float:
    # The first round is the bootstrap's; its buffers are made.
    values = [value for result in results for value in result[name][1:]]
    return statistics.median(values)


def main() -> None:
    python: list[dict[str, Any]] = []
    rust: list[dict[str, Any]] = []
    for _ in range(TURNS):
        python += from_python()
        rust += from_rust(sys.argv[1])
    seconds = {"Python": median(python, "seconds"), "Rust": median(rust, "seconds")}
    memory = {
        name: max(result["more_mb"] for result in results)
        for name, results in (("Python", python), ("Rust", rust))
    }
    for name in ("Python", "Rust"):
        models = memory[name] / MODEL_MB
        print(
            f"{name}: {seconds[name] * 1e3:.1f} ms a round, {memory[name]:.0f} MB beside the model "
            f"of {MODEL_MB:.0f} MB ({models:.2f} models)"
        )
    stalls = [stall for result in python for stall in result["stalls_ms"]]
    idle = statistics.median(result["idle_ms"] for result in python)
    print(f"ratio: {seconds['Python'] / seconds['Rust']:.3f}")
    print(
        f"another thread stood still for {statistics.median(stalls):.1f} ms (median of rounds), "
        f"{max(stalls):.1f} ms at most; {idle:.1f} ms while nothing else ran"
    )


if __name__ == "__main__":
    main()
