"""The runtime's log in Python's `logging`, as the logger `slowmo` and those below it."""

from __future__ import annotations

import logging
import os
import threading

from . import _slowmo

#: Seconds after which the thread looks whether it should end.
_LOOK_S = 0.2

_logger = logging.getLogger("slowmo")
_thread: threading.Thread | None = None
_ends = threading.Event()


def start() -> None:
    """Starts the thread that takes the runtime's lines, once.

    `SLOWMO_LOG` selects lines (`debug`, or by module `warn,slowmo=debug`). Without it the level
    that the logger `slowmo` has now decides.
    """
    global _thread
    if _thread is not None:
        return
    selection = os.environ.get("SLOWMO_LOG")
    if selection is not None:
        # The variable has selected already; where nobody takes the lines they go to stderr.
        _logger.setLevel(1)
        if not _logger.hasHandlers():
            _logger.addHandler(logging.StreamHandler())
    if not _slowmo.start_log(selection or _level()):
        return
    _thread = threading.Thread(target=_take, name="slowmo-log", daemon=True)
    _thread.start()


def stop() -> None:
    """Ends the thread, after the lines that are there."""
    _ends.set()
    if _thread is not None:
        _thread.join()


def _level() -> str:
    level = _logger.getEffectiveLevel()
    if level <= logging.DEBUG:
        return "debug"
    if level <= logging.INFO:
        return "info"
    return "warn" if level <= logging.WARNING else "error"


def _take() -> None:
    while True:
        ends = _ends.is_set()
        lines, dropped = _slowmo.logged(0.0 if ends else _LOOK_S)
        if dropped:
            _logger.warning("%d lines of the log were dropped: it was written too fast", dropped)
        for level, module, text in lines:
            logging.getLogger(_name(module)).log(level, "%s", text)
        if ends:
            return


def _name(module: str) -> str:
    """`slowmo_actors::coordinator` is the logger `slowmo.actors.coordinator`."""
    name = module.replace("::", ".")
    if name.startswith("slowmo_"):
        return "slowmo." + name.removeprefix("slowmo_")
    return name if name.startswith("slowmo") else "slowmo." + name
