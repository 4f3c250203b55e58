"""slowmo: nodes train one model together over slow links, while they join, leave and crash.

`Runtime` and `Worker` are the runtime's own calls. `SlowMo` is all that a PyTorch loop needs.
`slowmo.fairscale` and `slowmo.accelerate` run loops that were written for those libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._runtime import Runtime, Worker
from ._slowmo import (
    CheckpointError,
    Config,
    ConfigError,
    ElasticSampler,
    GradientError,
    ProcessError,
    ResumedFrom,
    SamplerError,
    SlowmoError,
    SpawnError,
    StepError,
    StepReport,
    Synchronized,
    SynchronizeError,
    TensorError,
    WorkerError,
    __version__,
    export_checkpoint,
)

if TYPE_CHECKING:
    from .torch import SlowMo

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "ElasticSampler",
    "GradientError",
    "ProcessError",
    "ResumedFrom",
    "Runtime",
    "SamplerError",
    "SlowMo",
    "SlowmoError",
    "SpawnError",
    "StepError",
    "StepReport",
    "SynchronizeError",
    "Synchronized",
    "TensorError",
    "Worker",
    "WorkerError",
    "__version__",
    "export_checkpoint",
]


def __getattr__(name: str) -> Any:
    # PyTorch is imported only for those who use it.
    if name == "SlowMo":
        from .torch import SlowMo

        return SlowMo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
