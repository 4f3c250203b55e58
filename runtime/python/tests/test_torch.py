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


#: Optimizers of PyTorch, with arguments under which their first step differs from later ones.
OPTIMIZERS: dict[str, dict[str, object]] = {
    "ASGD": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "dampening": 0.5},
}
#: Those that cannot take a step without a closure, or with dense gradients.
NO_TRIAL_STEP = ["LBFGS", "SparseAdam"]


def test_every_optimizer_of_pytorch_is_in_a_test() -> None:
    base = torch.optim.Optimizer
    kinds = {kind.__name__ for kind in base.__subclasses__() if kind.__module__.startswith("torch")}
    assert {kind for kind in kinds if hasattr(torch.optim, kind)} <= {*OPTIMIZERS, *NO_TRIAL_STEP}


def optimizer_of(kind: str, model: Any) -> Any:
    if not hasattr(torch.optim, kind):
        pytest.skip(f"this PyTorch has no {kind}")
    return getattr(torch.optim, kind)(model.parameters(), lr=0.1, **OPTIMIZERS[kind])


def one_step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    ((model(torch.eye(2)) - 1) ** 2).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_that_travels_changes_nothing(kind: str) -> None:
    """What joiners and checkpoints take is known before the first step."""
    torch.manual_seed(0)
    models = [torch.nn.Linear(2, 2, bias=False)]
    models.append(copy.deepcopy(models[0]))
    for model, keys in zip(models, ({"joiner_buffers": "reset"}, {}), strict=True):
        optimizer = optimizer_of(kind, model)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        with slowmo.SlowMo(
            model, optimizer, slowmo.Config(), tau=3, frequency=3, beta=0, alpha=1, **keys
        ):
            for _ in range(6):
                one_step(model, optimizer)
                scheduler.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_that_arrives_is_used(kind: str) -> None:
    from slowmo.torch import OptimizerState

    torch.manual_seed(0)
    veteran = torch.nn.Linear(2, 2, bias=False)
    joiner = copy.deepcopy(veteran)
    optimizers = [optimizer_of(kind, model) for model in (veteran, joiner)]
    states = [OptimizerState(optimizer) for optimizer in optimizers]
    for _ in range(3):
        one_step(veteran, optimizers[0])
    lent = [state.lend() for state in states]
    assert lent[0], "every one of these has a state"
    for (name, own), (other, zeros) in zip(*lent, strict=True):
        assert name == other and own.shape == zeros.shape
        zeros.copy_(own)
    for state in states:
        state.take()
    with torch.no_grad():
        joiner.weight.copy_(veteran.weight)
    for _ in range(3):
        one_step(veteran, optimizers[0])
        one_step(joiner, optimizers[1])
    assert torch.equal(veteran.weight, joiner.weight)


@pytest.mark.parametrize("kind", NO_TRIAL_STEP)
def test_an_optimizer_without_a_trial_step_is_told_what_to_set(kind: str) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = getattr(torch.optim, kind)(list(model.parameters()))
    with pytest.raises(TypeError, match=rf'{kind}.*joiner_buffers="reset"'):
        with slowmo.SlowMo(model, optimizer, slowmo.Config()):
            pass
    with slowmo.SlowMo(model, optimizer, slowmo.Config(), joiner_buffers="reset"):
        pass


def test_a_context_that_fails_leaves_nothing_behind() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with pytest.raises(slowmo.WorkerError):
            with slowmo.SlowMo(model, optimizer, slowmo.Config(), worker=5):
                pass
    with slowmo.Runtime(slowmo.Config(), tau=5, frequency=5) as runtime:
        with pytest.raises(TypeError, match="has its settings already"):
            slowmo.SlowMo(model, optimizer, runtime=runtime, tau=2)
        with slowmo.SlowMo(model, optimizer, runtime=runtime) as training:
            for _ in range(5):
                one_step(model, optimizer)
            assert training.report is not None and training.report.slow_step


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
