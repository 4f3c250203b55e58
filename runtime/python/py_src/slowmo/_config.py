"""Settings from Python's own values."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ._slowmo import Config


def configured(config: Config | Mapping[str, object] | None, **keys: object) -> Config:
    """Returns a copy of `config` with `keys` set; without one, the configuration of this process.

    The configuration of this process comes from a file, `SLOWMO_*` variables and `--slowmo-*`
    flags. A mapping, and `keys`, are set on top of it. A key that is `None` stays as it is.
    """
    if isinstance(config, Config):
        settings = config.copy()
    else:
        settings = Config.load()
        keys = {**(config or {}), **keys}
    for key, value in keys.items():
        if value is not None:
            settings.set(key, text(value))
    return settings


def text(value: object) -> str:
    """The text of a value, as a configuration file would hold it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(text(entry) for entry in value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    return str(value)
