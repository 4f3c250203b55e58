"""`slowmo.SlowMo` on one node: buffers, optimizer state, the slow momentum in a state."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

import slowmo

torch = pytest.importorskip("torch")


def trained(
    model: Any, steps: int, state: Any = None, lr: float = 0.1, **keys: object
) -> dict[str, Any]:
    """Trains on a fixed problem; returns the state at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    training = slowmo.SlowMo(
        model, optimizer, slowmo.Config(), carry_slow_momentum=True, frequency=3, tau=3, **keys
    )
    if state is not None:
        training.load_state_dict(state)
    with training:
        for _ in range(steps):
            optimizer.zero_grad()
            ((model(torch.eye(2)) - torch.ones(2, 2)) ** 2).sum().backward()
            optimizer.step()
        return training.state_dict()


def test_a_saved_slow_momentum_continues() -> None:
    torch.manual_seed(0)
    whole = torch.nn.Linear(2, 2)
    halves = copy.deepcopy(whole)
    forgetful = copy.deepcopy(whole)
    trained(whole, 12)
    state = trained(halves, 6)
    trained(forgetful, 6)
    trained(halves, 6, state)
    trained(forgetful, 6)
    for one, other in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert not torch.allclose(whole.weight, forgetful.weight, atol=1e-3)


def test_a_saved_slow_momentum_continues_at_another_rate() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    state = trained(model, 6)
    before = copy.deepcopy(model)
    trained(model, 3, state, lr=0.01)
    # The formula: m <- beta * (lr / saved) * m + delta, x <- o - m.
    alone = copy.deepcopy(before)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        ((alone(torch.eye(2)) - torch.ones(2, 2)) ** 2).sum().backward()
        optimizer.step()
    momentum = state["slow_momentum"]["momentum"]["weight"].view(2, 2)
    expected = alone.weight - 0.5 * 0.1 * momentum
    assert torch.allclose(model.weight, expected, atol=1e-6)


def test_a_step_with_nothing_due_costs_microseconds() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with slowmo.SlowMo(model, optimizer, slowmo.Config(), frequency=10**6, tau=10**6) as training:
        worker = training.worker
        times = []
        for _ in range(2000):
            begun = time.perf_counter()
            worker.step(model.named_parameters(), 0.1)
            times.append(time.perf_counter() - begun)
    median = sorted(times)[len(times) // 2]
    print(f"{median * 1e6:.1f} µs")
    assert median < 50e-6


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
def test_state_that_is_made_early_changes_nothing(kind: str) -> None:
    """What joiners and checkpoints take exists before the first step."""
    torch.manual_seed(0)
    more = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
    models = [torch.nn.Linear(2, 2)]
    models.append(copy.deepcopy(models[0]))
    for model, keys in zip(models, ({}, {"joiner_buffers": "copy"}), strict=True):
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **more)
        with slowmo.SlowMo(model, optimizer, slowmo.Config(), tau=3, **keys) as training:
            lent = training._optimizer_buffers()
            assert bool(lent) == bool(keys)
            for _ in range(6):
                optimizer.zero_grad()
                ((model(torch.eye(2)) - 1) ** 2).sum().backward()
                optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_buffers_are_lent_and_counters_stay() -> None:
    from slowmo.torch import model_buffers

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    assert [name for name, _ in model_buffers(model)] == ["1.running_mean", "1.running_var"]


def test_rates_that_change_relative_to_each_other_are_told(caplog: Any) -> None:
    model = torch.nn.Linear(2, 2)
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with slowmo.SlowMo(model, optimizer, slowmo.Config(), frequency=1, tau=1):
        for group in optimizer.param_groups:
            group["lr"] /= 10
            optimizer.step()
            optimizer.step()
    assert sum("relative to each other" in record.message for record in caplog.records) == 1


def test_a_checkpoint_is_read_with_safetensors(tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Linear(2, 2)
    trained(model, 3, checkpoints=tmp_path / "kept", checkpoint_every=1)
    (folder,) = [one for one in (tmp_path / "kept").rglob("*") if one.is_dir() and one.suffix == ""]
    slowmo.export_checkpoint(folder, tmp_path / "model.safetensors")
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert torch.equal(loaded["weight"], model.weight)
