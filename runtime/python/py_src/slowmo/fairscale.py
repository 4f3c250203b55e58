"""fairscale's `SlowMoDistributedDataParallel` on slowmo: the loop stays, the import changes.

```python
from slowmo.fairscale import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel
```

Every argument of the original is there: it is used, or it has no meaning here and is taken, or it
is refused with the reason. Three things differ on purpose. The first anchor is taken before the
first inner step. Buffers are averaged with the parameters, and broadcast within a node only. A node
that was drained ends its program: loops of fairscale do not ask whether they go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from . import _torchrun
from ._runtime import Runtime, Worker
from ._slowmo import Config, SlowmoError, StepReport
from .torch import Rates, is_new, learning_rate, model_buffers, slow_momentum

__all__ = ["SlowMoBaseAlgorithm", "SlowMoDistributedDataParallel"]

#: Gossip graphs of fairscale by class, and slowmo's topologies by their own names.
_TOPOLOGIES = {
    "NPeerDynamicDirectedExponentialGraph": "exponential",
    "DynamicDirectedExponentialGraph": "exponential",
    "DynamicBipartiteExponentialGraph": "bipartite_exponential",
    "RingGraph": "ring",
}
#: The key of a state dict under which the slow momentum is.
_SLOW_MOMENTUM = "slow_momentum"
_PUSH_SUM = ("ps_weight", "is_sgp_ps_numerator")


class SlowMoBaseAlgorithm(str, Enum):
    """The algorithm between slow steps."""

    LOCALSGD = "localsgd"
    SGP = "sgp"


class SlowMoDistributedDataParallel(torch.nn.Module):
    """Wraps a module; call `perform_slowmo(optimizer)` after every `optimizer.step()`.

    The first forward pass of a training waits for the other nodes and takes over the parameters of
    the first one; a process that joins a running cluster gets that cluster's. `nprocs_per_node`
    processes of `torchrun` are one node, and average their gradients in `torch.distributed`. The
    settings that arguments name come from them, all others from `SLOWMO_*` variables and
    `--slowmo-*` flags.

    `carry_slow_momentum` (not in fairscale): `state_dict` holds the slow momentum, for two more
    copies of the model in memory while SlowMo is on.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        nprocs_per_node: int,
        broadcast_buffers: bool = True,
        slowmo_base_algorithm: SlowMoBaseAlgorithm = SlowMoBaseAlgorithm.LOCALSGD,
        slowmo_momentum: float = 0.5,
        slowmo_memory_efficient: bool = True,
        slowmo_frequency: int = 48,
        slowmo_lr: float = 1.0,
        slowmo_num_shards: int = 32,
        localsgd_frequency: int = 3,
        graph: Any = None,
        mixing: Any = None,
        push_sum: bool = True,
        overlap: bool = False,
        synch_freq: int = 0,
        use_streams: bool = True,
        slowmo_sgp_average_params: bool = False,
        verbose: bool = False,
        profile_mode: bool = False,
        process_rank: int | None = None,
        process_world_size: int | None = None,
        global_group: Any = None,
        master_group: Any = None,
        local_node_group: Any = None,
        comm_device: torch.device | None = None,
        *,
        carry_slow_momentum: bool = True,
    ) -> None:
        super().__init__()
        self.logger = logging.getLogger("slowmo.fairscale")
        if verbose:
            self.logger.setLevel(logging.DEBUG)
        _refuse_groups(global_group, master_group)
        _refuse_mixing(mixing, push_sum)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ValueError("the module has no parameter that requires a gradient: nothing trains")

        self.module = module
        self.nprocs_per_node = nprocs_per_node
        self.broadcast_buffers = broadcast_buffers
        self._find_place(process_rank, process_world_size)

        self.slowmo = slowmo_lr != 1 or slowmo_momentum != 0
        self.slowmo_lr = slowmo_lr
        self.slowmo_momentum = slowmo_momentum
        self.slowmo_frequency = slowmo_frequency
        self.slowmo_memory_efficient = slowmo_memory_efficient
        self.slowmo_num_shards = slowmo_num_shards
        self.slowmo_sgp_average_params = slowmo_sgp_average_params
        self.localsgd_frequency = localsgd_frequency
        base = SlowMoBaseAlgorithm(slowmo_base_algorithm)
        self.localsgd = base == SlowMoBaseAlgorithm.LOCALSGD
        self.sgp = base == SlowMoBaseAlgorithm.SGP
        self.overlap = overlap
        self.synch_freq = synch_freq
        self.num_updates = 0
        self.global_momentum_buffers_initialized = False
        #: This node's push-sum weight. The parameters are always de-biased.
        self.ps_weight = torch.ones(1)
        self.is_sgp_ps_numerator = False
        #: What the last step reported; `None` in processes that are not the first of their node.
        self.report: StepReport | None = None
        self._told_of_masters = False
        self._rates: Rates | None = None

        self._config = self._configured(graph)
        self._momentum = slow_momentum(self._config, carry_slow_momentum and self.slowmo)
        self.local_node_group = self._local_group(local_node_group)
        self._started = False
        self._has_left = False
        self._goes_on = True
        #: What the start added to the parameters of a model that is not float32.
        self._shift: list[torch.Tensor] | None = None
        self._runtime: Runtime | None = None
        self._worker: Worker | None = None
        self._averages_gradients = False
        if self.local_node_group is not None:
            self._average_after_backward()

    # ---- what programs call ----

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the module. The first pass in training mode starts this process's node."""
        if self.training:
            self._start()
            if self.broadcast_buffers:
                self._broadcast_in_node(list(self.module.buffers()))
        return self.module(*inputs, **kwargs)

    def perform_slowmo(self, optimizer: torch.optim.Optimizer, fp32_params: Any = None) -> None:
        """Completes an inner step: exchanges what is due. Call it after every `optimizer.step()`.

        `fp32_params` are the float32 masters of a model in another precision: a list in the order
        of the parameters, one flat tensor, or a dict that holds one of these. They are exchanged,
        and the model gets their values.

        Raises StepError as `Worker.step` does, and SystemExit(0) at the first call after this node
        was drained and has handed over. Loops that ask `is_running` end before that. RuntimeError
        after `leave`.
        """
        if self._has_left:
            raise RuntimeError("leave was called: nothing is exchanged any more; end the loop")
        if not self._goes_on:
            self.logger.info("this node was drained and has handed over: its program ends")
            raise SystemExit(0)
        self._start()
        if self._rates is None:
            self._rates = Rates(optimizer)
        if self._shift is not None:
            self._shift_masters(optimizer, fp32_params, self._shift)
            self._shift = None
        exchanged = self._exchange(optimizer, fp32_params) if self._worker is not None else False
        if self._worker is not None:
            self._goes_on = self._worker.is_running()
        if self.local_node_group is not None:
            device = next(self.module.parameters()).device
            told = torch.tensor([float(exchanged), float(self._goes_on)], device=device)
            dist.broadcast(told, self._first_of_node(), group=self.local_node_group)
            exchanged, self._goes_on = (bool(one) for one in told.tolist())
            if exchanged:
                self._broadcast_in_node(list(self.module.parameters()))
                self._copy_to_masters(optimizer, fp32_params)
        self.num_updates += 1

    def _init_global_momentum_buffers(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the first anchor; programs may call it before the first step."""
        self._rates = Rates(optimizer)
        self._start()

    @property
    def is_running(self) -> bool:
        """Whether the training goes on: `False` once this node was drained and has handed over."""
        if self._worker is not None:
            self._goes_on = self._worker.is_running()
        return self._goes_on

    @property
    def runtime(self) -> Runtime | None:
        """This node's runtime; `None` in processes that are not the first of their node."""
        return self._runtime

    def leave(self) -> None:
        """Leaves the cluster, which ends the training; the end of the program does so too."""
        self._has_left = True
        self._goes_on = False
        if self._worker is not None:
            self._worker.leave()
        if self._runtime is not None:
            self._runtime.close()
        self._worker = self._runtime = None

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The module's state, the push-sum weight of SGP, and the slow momentum.

        Save it after a slow step (`report.slow_step`): in between, nodes differ.
        """
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        if self.sgp:
            state["ps_weight"] = self.ps_weight.clone()
            state["is_sgp_ps_numerator"] = self.is_sgp_ps_numerator
        momentum = self._momentum.state(self._names())
        if momentum is not None:
            state[_SLOW_MOMENTUM] = momentum
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads the module's state and lets the next slow step continue from the slow momentum.

        Call it on all nodes, before the first forward pass. States of fairscale, which have no slow
        momentum, load too: it restarts at zero.
        """
        if self._started and self.is_running:
            self.logger.warning(
                "a state is loaded into a training that runs: the slow momentum continues without "
                "it; load states before the first forward pass"
            )
        rest = dict(state_dict)
        # The runtime starts with weights of 1, and parameters are saved de-biased.
        weight, numerators = (rest.pop(key, None) for key in _PUSH_SUM)
        momentum = rest.pop(_SLOW_MOMENTUM, None)
        loaded = super().load_state_dict(rest, strict=strict, assign=assign)
        if numerators and weight is not None:
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.div_(weight.to(parameter))
        if not self._started:
            if momentum is None and self.slowmo:
                self.logger.warning("the state holds no slow momentum: it restarts at zero")
            self._momentum.restore(momentum, self._names())
        return loaded

    # ---- arguments ----

    def _find_place(self, rank: int | None, world_size: int | None) -> None:
        place = _torchrun.place()
        self.process_rank = place.rank if rank is None else rank
        self.process_world_size = place.world_size if world_size is None else world_size
        if self.nprocs_per_node < 1 or self.process_world_size % self.nprocs_per_node != 0:
            raise ValueError(
                f"nprocs_per_node = {self.nprocs_per_node} does not divide the world size "
                f"{self.process_world_size}. Without torchrun a process is a node, and "
                "nprocs_per_node is 1"
            )
        self.local_rank = self.process_rank % self.nprocs_per_node
        self.logical_rank = self.process_rank // self.nprocs_per_node
        self.logical_world_size = self.process_world_size // self.nprocs_per_node

    def _configured(self, graph: Any) -> Config:
        config = Config.load()
        keys: dict[str, object] = {
            "base": "sgp" if self.sgp else "local_sgd",
            "frequency": self.localsgd_frequency,
            "tau": self.slowmo_frequency,
            "alpha": self.slowmo_lr,
            "beta": self.slowmo_momentum,
            "sharded": str(self.slowmo_memory_efficient).lower(),
        }
        if self.sgp:
            keys["staleness"] = max(1, self.synch_freq) if self.overlap else 0
            own = not (self.slowmo_memory_efficient or self.slowmo_sgp_average_params)
            keys["no_average"] = str(own and self.slowmo).lower()
            if graph is not None:
                keys["topology"] = _topology(graph)
                keys["peers_per_step"] = getattr(graph, "peers_per_itr", 1)
        for key, value in keys.items():
            config.set(key, str(value))
        return config

    def _local_group(self, given: Any) -> Any:
        """The process group of this node's processes; `None` if it is one."""
        if self.nprocs_per_node == 1:
            return None
        if given is not None:
            return given
        if not dist.is_initialized():
            raise ValueError(
                f"nprocs_per_node = {self.nprocs_per_node} needs torch.distributed: call "
                "init_process_group before, as fairscale does"
            )
        ours = None
        for node in range(self.logical_world_size):
            first = node * self.nprocs_per_node
            # Every process takes part in making every group.
            group = dist.new_group(list(range(first, first + self.nprocs_per_node)))
            if node == self.logical_rank:
                ours = group
        return ours

    # ---- the node's first process ----

    def _start(self) -> None:
        if self._started:
            return
        self._started = self.global_momentum_buffers_initialized = True
        parameters = list(self.module.parameters())
        needs_masters = any(parameter.dtype != torch.float32 for parameter in parameters)
        before = _single(parameters) if needs_masters else []
        if self.local_rank == 0:
            self._start_node()
        self._broadcast_in_node([*parameters, *self.module.buffers()])
        if needs_masters:
            after = _single(parameters)
            self._shift = [new.sub_(old) for new, old in zip(after, before, strict=True)]

    def _start_node(self) -> None:
        _torchrun.form_cluster(self._config, self.logical_rank, self.logical_world_size)
        self._runtime = Runtime(self._config)
        self._worker = worker = self._runtime.worker()
        named = self.module.named_parameters()
        with self._lent(named) as parameters, self._lent(model_buffers(self.module)) as buffers:
            synchronized = worker.synchronize(parameters, model=buffers)
        self.num_updates = synchronized.step
        if self.process_world_size == 1:
            # No launcher of PyTorch counted the processes: the view does.
            self.process_rank = self.logical_rank = synchronized.node_rank
            self.process_world_size = self.logical_world_size = synchronized.nodes
        self._momentum.begin(self.module.parameters(), is_new(worker, synchronized))

    def _exchange(self, optimizer: torch.optim.Optimizer, fp32_params: Any) -> bool:
        """Takes the step; returns whether parameters may have changed."""
        worker = self._worker
        if worker is None:
            return False
        rate = learning_rate(optimizer)
        if not worker.is_due():
            self.report = worker.step_alone(rate)
            return False
        if self._rates is not None:
            self._rates.check()
        named: list[tuple[str, torch.Tensor]] = list(self.module.named_parameters())
        own = values = [parameter for _, parameter in named]
        masters = _masters(optimizer, fp32_params, own)
        if masters is not None:
            named = [(name, master) for (name, _), master in zip(named, masters, strict=True)]
            values = masters
        elif any(parameter.dtype != torch.float32 for parameter in own):
            self._tell_of_masters()
        changed = self._momentum.before(values, self.num_updates, rate)
        try:
            with self._lent(named) as parameters, self._lent(model_buffers(self.module)) as buffers:
                self.report = worker.step(parameters, rate, model=buffers)
        except SlowmoError:
            if changed:
                self._momentum.undo(values, rate)
            raise
        self._momentum.after(values, self.report, rate)
        if masters is not None:
            _copy(masters, own)
        self.ps_weight.fill_(self.report.weight)
        self.num_updates = self.report.step
        return True

    def _lent(self, named: Iterable[tuple[str, torch.Tensor]]) -> Lent:
        return Lent(named, "cuda" if self._config.on_gpu else "cpu")

    @torch.no_grad()
    def _shift_masters(
        self, optimizer: torch.optim.Optimizer, fp32_params: Any, shift: list[torch.Tensor]
    ) -> None:
        """Moves the masters as the start moved the parameters, which took over another node's.

        The optimizer has stepped them once since, with gradients at the new parameters.
        """
        parameters: list[torch.Tensor] = list(self.module.parameters())
        masters = _masters(optimizer, fp32_params, parameters)
        if masters is None:
            return
        for master, parameter, change in zip(masters, parameters, shift, strict=True):
            # Where a parameter is float32 it is its own master.
            if master is not parameter:
                master.add_(change.view(master.shape).to(master))
                parameter.copy_(master.view(parameter.shape))

    def _tell_of_masters(self) -> None:
        if not self._told_of_masters:
            self._told_of_masters = True
            self.logger.warning(
                "the model is not float32: pass its float32 masters to perform_slowmo as "
                "fp32_params, or every exchange rounds"
            )

    def _names(self) -> Iterator[str]:
        return (name for name, _ in self.module.named_parameters())

    # ---- the processes of one node ----

    def _first_of_node(self) -> int:
        return self.logical_rank * self.nprocs_per_node

    def _broadcast_in_node(self, tensors: list[torch.Tensor]) -> None:
        if self.local_node_group is not None:
            for flat in _Flat.by_kind([tensor.detach() for tensor in tensors]):
                dist.broadcast(flat.values, self._first_of_node(), group=self.local_node_group)
                flat.write_back()

    def _copy_to_masters(self, optimizer: torch.optim.Optimizer, fp32_params: Any) -> None:
        """Processes that did not exchange take what the first one of their node has."""
        masters = _masters(optimizer, fp32_params, list(self.module.parameters()))
        if masters is not None:
            self._broadcast_in_node(masters)

    def _average_after_backward(self) -> None:
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                hook: Any = parameter.register_post_accumulate_grad_hook
                hook(self._when_backward_ends)

    def _when_backward_ends(self, _: torch.Tensor) -> None:
        if not self._averages_gradients:
            self._averages_gradients = True
            torch.autograd.Variable._execution_engine.queue_callback(self._average_gradients)

    def _average_gradients(self) -> None:
        self._averages_gradients = False
        gradients = [
            parameter.grad
            for parameter in self.module.parameters()
            if parameter.requires_grad and parameter.grad is not None
        ]
        for flat in _Flat.by_kind(gradients):
            flat.values.div_(self.nprocs_per_node)
            dist.all_reduce(flat.values, group=self.local_node_group)
            flat.write_back()


class Lent:
    """Tensors as the runtime takes them: those that are not float32 on the worker's kind of device
    are copied for the time of the context, and written back at its end."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]], device: str) -> None:
        self._named = named
        self._device = device
        self._staged: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, self._lent(tensor.detach())) for name, tensor in self._named]

    @torch.no_grad()
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for staged, own in self._staged:
                # Values that share memory are equal, and were sent as often as they are seen.
                whole = own.as_strided(_stored(own), own.stride())
                whole.copy_(staged.as_strided(_stored(own), staged.stride()))
        self._staged.clear()

    def _lent(self, tensor: torch.Tensor) -> torch.Tensor:
        fits = tensor.dtype == torch.float32 and tensor.device.type == self._device
        if fits and tensor.is_contiguous():
            return tensor
        there = tensor.device if tensor.device.type == self._device else self._device
        staged = tensor.to(there, torch.float32).contiguous()
        self._staged.append((staged, tensor))
        return staged


class _Flat:
    """Tensors of one type and device as one, because a collective costs more than a copy."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self.values = torch.cat([tensor.reshape(-1) for tensor in tensors])

    @classmethod
    def by_kind(cls, tensors: list[torch.Tensor]) -> list[_Flat]:
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        return [cls(same) for same in kinds.values()]

    def write_back(self) -> None:
        parts = torch.split(self.values, [tensor.numel() for tensor in self._tensors])
        _copy(parts, self._tensors)


def _stored(tensor: torch.Tensor) -> list[int]:
    """The shape of what a tensor stores: a dimension that was expanded stores one value."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return [size if stride else min(size, 1) for size, stride in sizes]


def _single(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors as float32."""
    return [tensor.detach().to(torch.float32, copy=True) for tensor in tensors]


@torch.no_grad()
def _copy(sources: Any, targets: Any) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source.view(target.shape))


def _masters(
    optimizer: torch.optim.Optimizer, fp32_params: Any, parameters: list[torch.Tensor]
) -> list[torch.Tensor] | None:
    """The float32 masters of the parameters, in their order; `None` if there are none."""
    stash = getattr(optimizer, "_amp_stash", None)
    if stash is not None and hasattr(stash, "fp16_groups"):
        halves = [half for group in stash.fp16_groups for half in group]
        singles = [single for group in stash.fp32_from_fp16_groups for single in group]
        masters = {id(half): single for half, single in zip(halves, singles, strict=True)}
        return [masters.get(id(parameter), parameter) for parameter in parameters]
    if isinstance(fp32_params, dict):
        (fp32_params,) = fp32_params.values()
    if fp32_params is None:
        return None
    if torch.is_tensor(fp32_params):
        return list(torch.split(fp32_params.detach(), [one.numel() for one in parameters]))
    masters_list = list(fp32_params)
    if len(masters_list) != len(parameters):
        raise ValueError(
            f"fp32_params holds {len(masters_list)} tensors, the model {len(parameters)} parameters"
        )
    return masters_list


def _topology(graph: Any) -> str:
    if isinstance(graph, str):
        return graph
    name = type(graph).__name__
    if name not in _TOPOLOGIES:
        raise ValueError(
            f"graph = {name} has no counterpart: pass one of {', '.join(_TOPOLOGIES)}, or the name "
            "of a topology of slowmo"
        )
    return _TOPOLOGIES[name]


def _refuse_mixing(mixing: Any, push_sum: bool) -> None:
    name = type(mixing).__name__
    if mixing is not None and name != "UniformMixing":
        raise ValueError(f"mixing = {name} has no counterpart: slowmo mixes uniformly")
    if not push_sum:
        raise ValueError(
            "push_sum = False has no counterpart: without push-sum weights a node that dies would "
            "leave the average wrong. With all nodes alive both give the same values"
        )


def _refuse_groups(global_group: Any, master_group: Any) -> None:
    given = {"global_group": global_group, "master_group": master_group}
    for name, group in given.items():
        if group is not None:
            raise ValueError(
                f"{name} has no counterpart: the nodes form the view, which changes as they come "
                "and go. Leave it out; process_rank and process_world_size choose the processes"
            )
