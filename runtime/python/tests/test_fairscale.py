"""Arguments and attributes of fairscale's wrapper, on one node."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from slowmo.fairscale import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel  # noqa: E402


@pytest.fixture
def wrapped() -> Iterator[Any]:
    made: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        made.append(SlowMoDistributedDataParallel(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.leave()


def train(model: Any, steps: int, lr: float = 0.1, **more: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        ((model(torch.eye(2)) - 1) ** 2).sum().backward()
        optimizer.step()
        model.perform_slowmo(optimizer, **more)


def test_every_argument_of_the_original_is_there() -> None:
    original = pytest.importorskip("fairscale.experimental.nn.data_parallel")
    theirs = inspect.signature(original.SlowMoDistributedDataParallel.__init__).parameters
    ours = inspect.signature(SlowMoDistributedDataParallel.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    defaults = {name: one.default for name, one in theirs.items()}
    del defaults["slowmo_base_algorithm"]
    assert {name: ours[name].default for name in defaults} == defaults


def test_what_programs_read(wrapped: Any) -> None:
    module = torch.nn.Linear(2, 2)
    model = wrapped(module, nprocs_per_node=1, slowmo_lr=1.0, slowmo_momentum=0.0)
    assert (model.module, model.slowmo, model.sgp) == (module, False, False)
    assert (model.slowmo_lr, model.slowmo_momentum, model.localsgd_frequency) == (1.0, 0.0, 3)
    assert model.process_rank == 0
    assert model.train().training and not model.eval().training
    assert sorted(model.state_dict()) == ["module.bias", "module.weight"]


def test_sgp_s_state_has_the_push_sum_weight(wrapped: Any) -> None:
    base = SlowMoBaseAlgorithm.SGP
    model = wrapped(
        torch.nn.Linear(2, 2), 1, slowmo_base_algorithm=base, overlap=True, synch_freq=2
    )
    train(model, 4)
    state = model.state_dict()
    assert state["ps_weight"].tolist() == [1.0] and state["is_sgp_ps_numerator"] is False
    model.load_state_dict(state)


def test_the_state_carries_the_slow_momentum(wrapped: Any) -> None:
    settings = {"nprocs_per_node": 1, "slowmo_frequency": 3, "localsgd_frequency": 3}
    module = torch.nn.Linear(2, 2)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    whole = wrapped(module, **settings)
    train(whole, 12)
    whole.leave()

    module = torch.nn.Linear(2, 2)
    module.load_state_dict(start)
    first = wrapped(module, **settings)
    train(first, 6)
    state = {name: value for name, value in first.state_dict().items()}
    assert "slow_momentum" in state
    first.leave()

    second = wrapped(torch.nn.Linear(2, 2), **settings)
    second.load_state_dict(state)
    train(second, 6)
    assert torch.allclose(second.module.weight, whole.module.weight, atol=1e-6)


@pytest.mark.parametrize("masters", ["list", "flat", "dict"])
def test_masters_are_exchanged_and_copied_back(wrapped: Any, masters: str) -> None:
    module = torch.nn.Linear(2, 2).to(torch.bfloat16)
    model = wrapped(module, 1, slowmo_frequency=2, localsgd_frequency=2)
    values = torch.cat([parameter.detach().float().view(-1) for parameter in module.parameters()])
    given: Any = values
    if masters == "list":
        given = [piece.clone() for piece in values.split([4, 2])]
        values = given[0]
    elif masters == "dict":
        given = {torch.float32: values}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        values += 1
        model.perform_slowmo(optimizer, fp32_params=given)
    assert torch.equal(module.weight.view(-1), values[:4].view(-1)[:4].to(torch.bfloat16))


def test_buffers_of_any_layout_are_copied(wrapped: Any) -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("mask", torch.ones(1).expand(4))
    module.register_buffer("rows", torch.arange(6.0).view(2, 3).T)
    train(wrapped(module, 1, slowmo_frequency=2, localsgd_frequency=2), 4)
    assert module.rows.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_end_of_a_training_is_told(wrapped: Any) -> None:
    drained = wrapped(torch.nn.Linear(2, 2), 1, slowmo_frequency=2, localsgd_frequency=2)
    train(drained, 2)
    drained.runtime.drain()
    with pytest.raises(SystemExit) as end:
        train(drained, 100)
    assert end.value.code == 0 and not drained.is_running
    drained.leave()
    with pytest.raises(RuntimeError, match="leave was called"):
        train(drained, 1)


def test_a_model_in_another_precision_is_told_of(wrapped: Any, caplog: Any) -> None:
    model = wrapped(torch.nn.Linear(2, 2).to(torch.bfloat16), 1, slowmo_frequency=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model.perform_slowmo(optimizer)
    assert sum("pass its float32 masters" in record.message for record in caplog.records) == 1


class Graph:
    peers_per_itr = 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nprocs_per_node": 3}, "does not divide the world size 1"),
        ({"global_group": object()}, "global_group has no counterpart"),
        ({"master_group": object()}, "master_group has no counterpart"),
        ({"push_sum": False}, "push_sum = False has no counterpart"),
        ({"mixing": object()}, "mixing = object has no counterpart"),
        ({"graph": Graph(), "slowmo_base_algorithm": "sgp"}, "graph = Graph has no counterpart"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SlowMoDistributedDataParallel(torch.nn.Linear(2, 2), **{"nprocs_per_node": 1, **arguments})
