"""Starts the nodes of a test as processes, and reads what they print: one JSON object a line."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"

#: Longest time for anything that a test waits for. Machines that build at the same time are slow.
WAIT_MAX_S = 240.0


class Node:
    """One process."""

    def __init__(self, program: Path, arguments: list[str], variables: dict[str, str]) -> None:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("SLOWMO_")
        }
        threads = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={**inherited, **threads, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self.output = ""
        self.errors = ""
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.output += line
                if line.startswith("{"):
                    self.lines.append({**json.loads(line), "at": time.monotonic()})
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def wait_for(self, found: Any, start: int = 0) -> dict[str, Any]:
        """The first line from number `start` on for which `found` is true."""
        end = time.monotonic() + WAIT_MAX_S
        with self._news:
            while True:
                for line in self.lines[start:]:
                    if found(line):
                        return line
                left = end - time.monotonic()
                ended = not self._readers[0].is_alive()
                if left <= 0 or ended:
                    raise AssertionError(f"never said: {self.lines[-3:]}\n{self.errors[-3000:]}")
                self._news.wait(min(left, 0.5))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ended_well(self) -> list[dict[str, Any]]:
        """Waits for its end, which must be a success; returns all lines."""
        code = self.process.wait(WAIT_MAX_S)
        for reader in self._readers:
            reader.join()
        assert code == 0, f"exit code {code}: {self.errors[-3000:]}"
        return self.lines


class Cluster:
    """Nodes of one machine that find each other in a folder."""

    def __init__(self, folder: Path, nodes: int, **keys: str) -> None:
        key = folder / "cluster.key"
        key.write_text(secrets.token_hex(32) + "\n")
        key.chmod(0o600)
        (folder / "rendezvous").mkdir()
        self._variables = {
            "SLOWMO_CLUSTER_KEY_FILE": str(key),
            "SLOWMO_RENDEZVOUS": str(folder / "rendezvous"),
            "SLOWMO_MIN_NODES": str(nodes),
            **{f"SLOWMO_{key.upper()}": value for key, value in keys.items()},
        }
        self._wanted = nodes
        self.nodes: list[Node] = []

    def start(self, program: Path, *arguments: str) -> list[Node]:
        for _ in range(self._wanted):
            self.add(program, *arguments)
        return self.nodes

    def join(self, program: Path, *arguments: str) -> Node:
        return self.add(program, *arguments, SLOWMO_JOIN="true")

    def variables(self, number: int) -> dict[str, str]:
        """The settings of node `number`, as variables."""
        return {**self._variables, "SLOWMO_NODE_ID": str(number)}

    def add(self, program: Path, *arguments: str, **more: str) -> Node:
        variables = self.variables(len(self.nodes) + 1)
        node = Node(program, list(arguments), {**variables, **more})
        self.nodes.append(node)
        return node

    def end(self) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                node.kill()


def under_torchrun(program: Path, *arguments: str, world_size: int) -> list[Node]:
    """Starts processes with the variables that torchrun sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [
        Node(program, list(arguments), {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world_size)
    ]
