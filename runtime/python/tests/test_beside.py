"""The loops of fairscale's and Accelerate's guides, beside the libraries themselves: same model,
same batches, four processes. Only the import differs, and so the parameters do not."""

from __future__ import annotations

import pytest

from cluster import PROGRAMS, under_torchrun

#: Largest difference of a parameter after 60 steps.
APART_MAX = 1e-5


def test_fairscale_s_loop_gives_fairscale_s_parameters() -> None:
    pytest.importorskip("fairscale")
    nodes = under_torchrun(PROGRAMS / "beside_fairscale.py", world_size=4)
    results = [line for node in nodes for line in node.ended_well()]
    assert len(results) == 4 * 12
    apart = {line["case"]: line["apart"] for line in results}
    for line in results:
        print(line)
    assert not {case: far for case, far in apart.items() if far > APART_MAX}


def test_accelerate_s_loop_gives_accelerate_s_parameters() -> None:
    pytest.importorskip("accelerate")
    nodes = under_torchrun(PROGRAMS / "beside_accelerate.py", world_size=4)
    results = [node.ended_well()[-1] for node in nodes]
    for line in results:
        print(line)
        assert line["apart"] <= APART_MAX
        assert line["moved"] > 0.01, "something was trained"
