"""The examples that were written for other libraries, under torchrun's variables and as nodes of a
cluster of slowmo."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster import EXAMPLES, Cluster, under_torchrun

pytest.importorskip("torch")


@pytest.mark.parametrize("torchrun", [True, False])
@pytest.mark.parametrize(
    ("example", "lines"), [("fairscale_loop.py", 4), ("accelerate_loop.py", 3)]
)
def test_all_nodes_end_with_the_same_parameters(
    example: str, lines: int, torchrun: bool, cluster: Callable[..., Cluster]
) -> None:
    if example.startswith("accelerate"):
        pytest.importorskip("accelerate")
    program = EXAMPLES / example
    nodes = under_torchrun(program, world_size=2) if torchrun else cluster(2).start(program)
    for node in nodes:
        node.ended_well()
        assert "without leave()" not in node.errors, "the end of a loop is the end of its training"
    told = [node.output.splitlines() for node in nodes]
    assert [len(one) for one in told] == [lines, lines]
    for one, other in zip(*told, strict=True):
        assert one.split("parameters")[1] == other.split("parameters")[1]
    if torchrun or example.startswith("fairscale"):
        losses = {one[0].split(", parameters")[0] for one in told}
        assert len(losses) == 2, "the nodes train on different batches"
