"""What a forked child gives up of its parent's node.

A child has copies of the parent's sockets. One that outlives a killed parent, as workers of a
DataLoader do for seconds, would keep the node's port open, and the other nodes would learn of the
death by silence alone. A copy of a socket between two nodes of this machine would keep the other
node from learning that this one closed it. So a child closes its copies, which it cannot use
anyway.
"""

from __future__ import annotations

import os
import socket

#: Beginning of the names of sockets between two nodes of this machine.
_SAME_HOST = b"\0slowmo-"
#: Addresses at which this process's nodes have listened.
_addresses: set[tuple[str, int]] = set()


def note(address: str) -> None:
    """Remembers the address of a node of this process."""
    host, _, port = address.rpartition(":")
    _addresses.add((host.strip("[]"), int(port)))


def _is_node_s(copy: socket.socket) -> bool:
    if copy.type == socket.SOCK_DGRAM:
        return copy.getsockname()[:2] in _addresses
    if copy.family != socket.AF_UNIX:
        return False
    # The end that listens has the name, and the sockets that it accepted.
    names = [copy.getsockname()]
    try:
        names.append(copy.getpeername())
    except OSError:
        # It listens.
        pass
    return any(isinstance(name, bytes) and name.startswith(_SAME_HOST) for name in names)


def _close_copies() -> None:
    try:
        handles = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return
    for handle in handles:
        try:
            copy = socket.socket(fileno=handle)
        except OSError:
            # It is no socket, or the one by which the folder was listed.
            continue
        try:
            closes = _is_node_s(copy)
        except OSError:
            closes = False
        if closes:
            copy.close()
        else:
            copy.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _close_copies() if _addresses else None)
