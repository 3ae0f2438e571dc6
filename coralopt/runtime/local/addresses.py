"""Ports and devices of one machine that plays all nodes of a plan."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
from collections.abc import Iterable

from coralopt.errors import LaunchError


class LocalAddresses:
    """Every node is this machine; ports are free ones, devices are dealt out in order.

    Found ports stay reserved until :meth:`release`, so that no two uses get the same one.

    Args:
        host: Address that all servers bind to.
        taken: Devices that other servers use.
    """

    def __init__(self, host: str = "127.0.0.1", taken: Iterable[int] = ()) -> None:
        self._host = host
        used = frozenset(taken)
        self._free = (index for index in itertools.count() if index not in used)
        self._reserved: list[socket.socket] = []
        self._devices: dict[tuple[str, int], int] = {}

    def host(self, pipeline: str, node: str, machine: str) -> str:
        return self._host

    def bind(self, host: str) -> str:
        return host

    def port(self, machine: str, use: str) -> int:
        taken = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
        taken.bind((self._host, 0))
        self._reserved.append(taken)
        return int(taken.getsockname()[1])

    def devices(self, machine: str, gpus: tuple[int, ...]) -> tuple[int, ...]:
        for gpu in gpus:
            if (machine, gpu) not in self._devices:
                self._devices[machine, gpu] = next(self._free)
        return tuple(self._devices[machine, gpu] for gpu in gpus)

    def crowded(self) -> bool:
        return True

    @property
    def gpus_needed(self) -> int:
        """GPUs dealt out so far."""
        return len(self._devices)

    def release(self) -> None:
        """Free the ports for the servers they were found for."""
        while self._reserved:
            self._reserved.pop().close()


def gpus_here() -> tuple[str, ...]:
    """Names of this machine's GPUs as its driver reports them; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    answer = subprocess.run(
        [program, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=False
    )
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip()) if answer.returncode == 0 else ()


def require_free_port(host: str, port: int) -> None:
    """Say so now rather than after minutes of loading weights.

    Raises:
        LaunchError: The address is not ours or the port is taken.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LaunchError(f"the router cannot listen on {host}:{port}: {why}; choose another with --port") from error
