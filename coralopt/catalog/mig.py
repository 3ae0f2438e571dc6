"""MIG: the slices that a GPU can be divided into, and what a slice has of it.

Sizes and places are those of NVIDIA's MIG user guide ("Supported MIG Profiles" and "Partitioning"; ``nvidia-smi mig -lgipp``
prints the places): a GPU has 7 parts of processors and 8 of memory, and a slice has so many of each, from one of a few of
the memory's parts on. Profiles with media engines (``+me``) are sized like those without.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from coralopt.catalog.types import Gpu, NodeConfiguration

#: Parts of the processors and of the memory of a GPU.
PROCESSORS, MEMORY = 7, 8


@dataclass(frozen=True)
class SliceSize:
    """One size of slice.

    Attributes:
        processors: Parts of the processors, of 7.
        memory: Parts of the memory, of 8.
        places: Parts of the memory that it may begin at.
    """

    processors: int
    memory: int
    places: tuple[int, ...]


SIZES = (
    SliceSize(1, 1, (0, 1, 2, 3, 4, 5, 6)),
    SliceSize(1, 2, (0, 2, 4, 6)),
    SliceSize(2, 2, (0, 2, 4)),
    SliceSize(3, 4, (0, 4)),
    SliceSize(4, 4, (0,)),
)
#: GPU type -> names of its profiles, in the order of ``SIZES``.
PROFILES = {
    "A100-40": ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb"),
    "A100": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"),
    "H100": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"),
    "H200": ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb"),
    "B200": ("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb"),
}


def profiles(configuration: NodeConfiguration) -> tuple[str, ...]:
    """Profiles that the only GPU of a node can be divided into; none where it has several, or cannot be divided."""
    gpu = configuration.gpu
    return () if configuration.count > 1 or gpu.mig else PROFILES.get(gpu.like or gpu.name, ())


def slice_of(gpu: Gpu, profile: str) -> Gpu:
    """A slice as a GPU: of 7 parts of the processors and 8 of the memory, whose sizes in the profile are rounded."""
    compute, memory = (int(number) for number in re.findall(r"[0-9]+", profile))
    processors, parts = compute / PROCESSORS, min(MEMORY, max(1, round(MEMORY * memory / gpu.memory_gib))) / MEMORY
    return replace(
        gpu,
        mig=profile,
        memory_gib=gpu.memory_gib * parts,
        bandwidth_gb_s=gpu.bandwidth_gb_s * parts,
        bf16_tflops=gpu.bf16_tflops * processors,
        fp8_tflops=None if gpu.fp8_tflops is None else gpu.fp8_tflops * processors,
        source=f"{profile} of {gpu.like}",
    )


def sliced(configuration: NodeConfiguration, profile: str) -> NodeConfiguration:
    """A slice of a node's only GPU as a node of its own."""
    gpu = replace(configuration.gpu, like=configuration.gpu.like or configuration.gpu.name)
    return replace(configuration, name=f"{configuration.name}/{profile}", gpu=slice_of(gpu, profile))


def fits_together(sizes: tuple[int, ...]) -> bool:
    """Whether slices of these sizes, positions in ``SIZES``, have places beside each other."""
    if sum(SIZES[k].processors for k in sizes) > PROCESSORS:
        return False
    for places in itertools.product(*(SIZES[k].places for k in sizes)):
        taken = [part for k, place in zip(sizes, places, strict=True) for part in range(place, place + SIZES[k].memory)]
        if len(set(taken)) == len(taken):
            return True
    return False


@lru_cache
def divisions(count: int) -> tuple[tuple[int, ...], ...]:
    """All ways to divide a GPU into so many slices, positions in ``SIZES`` in every order, none of which could be larger."""
    fitting = {some for some in itertools.product(range(len(SIZES)), repeat=count) if fits_together(some)}

    def within(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        pairs = [(SIZES[a], SIZES[b]) for a, b in zip(one, other, strict=True)]
        return all(a.processors <= b.processors and a.memory <= b.memory for a, b in pairs)

    return tuple(sorted(one for one in fitting if not any(within(one, other) for other in fitting if other != one)))
