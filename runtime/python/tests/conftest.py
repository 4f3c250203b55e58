from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters whose processes end with the test."""
    made: list[Cluster] = []

    def make(nodes: int, **keys: str) -> Cluster:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Cluster(folder, nodes, **keys))
        return made[-1]

    yield make
    for one in made:
        one.end()
