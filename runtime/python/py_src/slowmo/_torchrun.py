"""Finds the other nodes where PyTorch's launchers started the processes.

`torchrun`, `accelerate launch` and their like set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
The processes exchange their addresses, and a cluster key that rank 0 makes, through PyTorch's
store. That store is neither encrypted nor authenticated: where strangers reach it, give every
process a key of `slowmo keygen` (SLOWMO_CLUSTER_KEY_FILE), which then does not travel.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ._slowmo import Config

#: How long a process waits for the addresses of the others.
_WAIT_MAX = timedelta(minutes=5)

#: Number of clusters that this process has formed, so that each has names of its own.
_formed = 0

#: The store that this process made. In rank 0 it serves the others: one that came late would find
#: it gone.
_made: Any = None


@dataclass(frozen=True)
class Place:
    """A process's place among those that a launcher started."""

    rank: int
    world_size: int


def place() -> Place:
    """This process's place; the only one, if no launcher of PyTorch started it."""
    if dist.is_available() and dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size())
    variables = os.environ
    if "RANK" in variables and "WORLD_SIZE" in variables and "MASTER_ADDR" in variables:
        return Place(int(variables["RANK"]), int(variables["WORLD_SIZE"]))
    return Place(0, 1)


def form_cluster(config: Config, node: int, nodes: int) -> None:
    """Sets the keys by which `nodes` nodes find each other; this one is number `node`, from 0.

    Call it in one process of each node. Does nothing if the configuration names other nodes, or
    if there are none.
    """
    global _formed
    if config.names_others or nodes < 2:
        return
    store = PrefixStore(f"slowmo/{_restarts()}/{_formed}", _store())
    _formed += 1
    store.set_timeout(_WAIT_MAX)
    if not config.has_credentials:
        if node == 0:
            store.set("key", secrets.token_hex(32))
        config.set("cluster_key", store.get("key").decode())
    host = _own_address()
    port = _free_port(host)
    store.set(f"address/{node}", _joined(host, port))
    addresses = [store.get(f"address/{other}").decode() for other in range(nodes)]
    config.set("listen", addresses[node])
    config.set("peers", ",".join(other for other in addresses if other != addresses[node]))
    config.set("min_nodes", str(nodes))
    config.set("node_id", str(node + 1))


def _restarts() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _store() -> Any:
    """The store of the process group, or the one that it would have."""
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    global _made
    if _made is None:
        _made, _, _ = next(rendezvous("env://"))
    return _made


def _own_address() -> str:
    """This machine's address on the way to the first one."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, protocol, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as way:
        # A datagram socket that connects sends nothing.
        way.connect(address)
        return str(way.getsockname()[0])


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
