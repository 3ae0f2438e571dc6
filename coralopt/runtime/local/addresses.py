"""Ports and devices of one machine that plays all nodes of a plan."""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Sequence

from coralopt.catalog import gpus
from coralopt.processes import output_of
from coralopt.runtime.lower import OneNodeEach


class LocalAddresses(OneNodeEach):
    """Every node is this machine; ports are free ones, devices are dealt out in order, each of the planned kind.

    Found ports stay reserved until :meth:`release`, so that no two uses get the same one.

    Args:
        host: Address that all servers bind to.
        taken: Devices that other servers use.
        kinds: GPU type of each device by our names, ``"any"`` for one that stands for every type, ``None`` for one we do
            not know. Without them there is no end of devices.
    """

    def __init__(
        self, host: str = "127.0.0.1", taken: Iterable[int] = (), kinds: Sequence[str | None] | None = None
    ) -> None:
        super().__init__()
        self._host = host
        self._used = set(taken)
        self._kinds = kinds
        self._reserved: list[socket.socket] = []
        self._devices: dict[tuple[str, int], int] = {}
        #: GPU type -> devices that were asked for, and of these, how many there are not.
        self.needed: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()

    def host(self, pipeline: str, node: str, machine: str) -> str:
        return self._host

    def port(self, machine: str, use: str) -> int:
        taken = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET, socket.SOCK_STREAM)
        taken.bind((self._host, 0))
        self._reserved.append(taken)
        return int(taken.getsockname()[1])

    def devices(self, machine: str, gpus: tuple[int, ...], gpu: str) -> tuple[int, ...]:
        for index in gpus:
            if (machine, index) not in self._devices:
                self.needed[gpu] += 1
                self._devices[machine, index] = self._next(gpu)
        return tuple(self._devices[machine, index] for index in gpus)

    def _next(self, gpu: str) -> int:
        devices = itertools.count() if self._kinds is None else range(len(self._kinds))
        for index in devices:
            if index not in self._used and (self._kinds is None or self._kinds[index] in (gpu, "any")):
                self._used.add(index)
                return index
        self.missing[gpu] += 1
        return -1

    def crowded(self) -> bool:
        return True

    def release(self) -> None:
        """Free the ports for the servers they were found for."""
        while self._reserved:
            self._reserved.pop().close()


def gpu_kind(product: str) -> str | None:
    """Our name of a GPU that its driver calls ``product``: ``NVIDIA A100-SXM4-40GB`` is ``A100-40``; else ``None``."""
    words = re.split(r"[\s-]+", product)
    known = {name.split("-")[0] for name in gpus()}
    kind = next((word for word in words if word in known), None)
    memory = next((word.removesuffix("GB") for word in words if re.fullmatch(r"\d+GB", word)), None)
    # A100 alone is the one with 80 GB.
    return f"{kind}-{memory}" if f"{kind}-{memory}" in gpus() else kind


def gpus_here() -> tuple[str, ...]:
    """Names of this machine's GPUs in the order of its bus; empty without a driver.

    One that ``CUDA_VISIBLE_DEVICES`` keeps from this process, by number or UUID, has no name.
    """
    query = ["nvidia-smi", "--query-gpu=pci.bus_id,uuid,name", "--format=csv,noheader"]
    lines = (output_of(query, timeout_s=30) or "").splitlines()
    devices = sorted([part.strip() for part in line.split(",", 2)] for line in lines if line.count(",") >= 2)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = None if shown is None else [word.strip() for word in shown.split(",") if word.strip()]

    def visible(index: int, uuid: str) -> bool:
        return words is None or any(
            word == str(index) or (word[:4] == "GPU-" and uuid.startswith(word)) for word in words
        )

    return tuple(name if visible(index, uuid) else "" for index, (_, uuid, name) in enumerate(devices))
