"""Processes that are killed and processes that join, with the example itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster import EXAMPLES, Cluster

pytest.importorskip("torch")


def test_one_of_four_is_killed_and_another_joins(cluster: Callable[..., Cluster]) -> None:
    four = cluster(4)
    program = EXAMPLES / "digits.py"
    nodes = list(four.start(program, "--steps", "1200", "--step-ms", "5", "--tau", "12"))
    first = nodes[0]

    def after(round_: int) -> Callable[[dict[str, Any]], bool]:
        return lambda line: line["event"] == "round" and line["round"] >= round_

    full = first.wait_for(after(5))
    assert full["contributors"] == 4
    nodes[2].kill()
    killed_after = len(first.lines)
    three = first.wait_for(lambda line: line.get("contributors") == 3, killed_after)
    joined = four.join(program, "--steps", "1200", "--step-ms", "5", "--tau", "12")
    first.wait_for(
        lambda line: line.get("contributors") == 4 and line["round"] > three["round"], killed_after
    )
    rest = [nodes[0], nodes[1], nodes[3], joined]
    done = [node.ended_well()[-1] for node in rest]
    assert len({line["digest"] for line in done}) == 1, done
    assert all(line["accuracy"] > 0.8 for line in done), done
    started = joined.lines[0]
    assert started["step"] > 0, "it takes over the cluster's step"
