"""Processes that are killed and processes that join, with the example itself."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cluster import EXAMPLES, PROGRAMS, Cluster

pytest.importorskip("torch")


def test_one_of_four_is_killed_and_another_joins(cluster: Callable[..., Cluster]) -> None:
    four = cluster(4)
    program = EXAMPLES / "digits.py"
    endless = ("--steps", "1000000", "--step-ms", "5", "--tau", "12")
    nodes = list(four.start(program, *endless))
    first = nodes[0]
    first.wait_for(lambda line: line.get("contributors") == 4 and line["round"] > 4)
    nodes[2].kill()
    killed_at = time.monotonic()
    killed_after = len(first.lines)
    three = first.wait_for(lambda line: line.get("contributors") == 3, killed_after)
    # A second, on a machine that has nothing else to do.
    next_round = three["at"] - killed_at
    print(f"the others' next round after {next_round:.2f} s")
    assert next_round < 5
    joined = four.join(program, *endless)
    again = first.wait_for(lambda line: line.get("contributors") == 4, killed_after)
    assert joined.lines[0]["step"] > 0, "it takes over the cluster's step"
    last = again["round"] + 20
    digests = {
        node.wait_for(lambda line: line.get("round") == last)["digest"]
        for node in (nodes[0], nodes[1], nodes[3], joined)
    }
    assert len(digests) == 1, "all hold the same parameters, bit for bit"


def test_the_example_learns_and_ends_with_the_same_parameters(
    cluster: Callable[..., Cluster],
) -> None:
    nodes = cluster(2).start(EXAMPLES / "digits.py", "--steps", "600", "--tau", "12")
    done = [node.ended_well()[-1] for node in nodes]
    assert len({line["digest"] for line in done}) == 1, done
    assert all(line["accuracy"] > 0.9 for line in done), done


def test_a_data_loader_s_process_outlives_its_killed_parent(
    cluster: Callable[..., Cluster],
) -> None:
    """It has closed its copy of the parent's socket, so that the death shows at once."""
    three = cluster(3)
    nodes = three.start(PROGRAMS / "with_loader.py")
    first = nodes[0]
    first.wait_for(lambda line: line["contributors"] == 3 and line["round"] > 3)
    nodes[2].kill()
    killed_at = time.monotonic()
    two = first.wait_for(lambda line: line["contributors"] == 2, len(first.lines))
    print(f"the others' next round after {two['at'] - killed_at:.2f} s")
    assert two["at"] - killed_at < 15


def test_an_exception_in_a_loop_leaves_the_others_in_order(
    cluster: Callable[..., Cluster],
) -> None:
    nodes = cluster(3, log="info").start(PROGRAMS / "raises.py")
    first = nodes[0]
    first.wait_for(lambda line: line["contributors"] == 3)
    assert nodes[2].process.wait(60) == 1
    first.wait_for(lambda line: line["contributors"] == 2)
    assert "ZeroDivisionError: of the program" in nodes[2].errors
    # It said so, as at the end of a training.
    assert "node 3" in first.errors and "the node leaves" in first.errors
