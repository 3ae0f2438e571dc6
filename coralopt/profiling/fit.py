"""From times of truncated models to the time of one layer and of what is not a layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coralopt.errors import CoraloptError
from coralopt.scenario.facts.phases import Phase

#: What grids are of; mixed steps are measured at points of their own.
PHASES: tuple[Phase, ...] = ("prefill", "decode")


@dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes:
        phase: ``prefill``: a batch of whole prompts up to the first token; ``decode``: one token of each sequence;
            ``mixed``: the same, and a piece of a prompt in the same step.
        layers: Layers of the truncated model, j.
        batch: Prompts or sequences.
        tokens: Length of each prompt, or context of each sequence.
        ms: Median time, ms.
        prompt: Mixed: tokens of the piece.
        history: Mixed: tokens of its prompt before them.
    """

    phase: Phase
    layers: int
    batch: int
    tokens: float
    ms: float
    prompt: int = 0
    history: int = 0

    @property
    def place(self) -> tuple[float, ...]:
        """What was measured, whatever the layers."""
        return self.batch, self.tokens, self.prompt, self.history


@dataclass(frozen=True)
class Fit:
    """c0 + c1 j of one phase on a grid.

    Attributes:
        tokens: Token counts, ascending.
        batch: Batches, ascending.
        layer_ms: c1, ms: a row a token count, a column a batch.
        other_ms: c0, ms, in the same shape.
        error: Largest relative difference between a point and its line.
    """

    tokens: tuple[float, ...]
    batch: tuple[int, ...]
    layer_ms: tuple[tuple[float, ...], ...]
    other_ms: tuple[tuple[float, ...], ...]
    error: float

    def to_document(self) -> dict[str, Any]:
        """The part of a measured node of a scenario."""
        return {
            "tokens": list(self.tokens),
            "batch": list(self.batch),
            "layer_ms": [list(row) for row in self.layer_ms],
            "other_ms": [list(row) for row in self.other_ms],
        }


def fit_line(layers: Sequence[int], ms: Sequence[float]) -> tuple[float, float]:
    """(c0, c1), both at least 0, with the least sum of squared relative differences to ``ms``.

    Relative, because a run of many layers is not measured to the same microsecond as one of few.
    """
    weights = [1.0 / (value * value) for value in ms]
    total = sum(weights)
    mean_j = sum(w * j for w, j in zip(weights, layers, strict=True)) / total
    mean_t = sum(w * t for w, t in zip(weights, ms, strict=True)) / total
    spread = sum(w * (j - mean_j) ** 2 for w, j in zip(weights, layers, strict=True))
    slope = sum(w * (j - mean_j) * (t - mean_t) for w, j, t in zip(weights, layers, ms, strict=True)) / spread
    if slope <= 0:
        return mean_t, 0.0
    if mean_t - slope * mean_j >= 0:
        return mean_t - slope * mean_j, slope
    # On the edge c0 = 0: the line through the origin.
    squares = sum(w * j * j for w, j in zip(weights, layers, strict=True))
    return 0.0, sum(w * j * t for w, j, t in zip(weights, layers, ms, strict=True)) / squares


def fit_points(points: Sequence[Point], phase: Phase) -> Fit:
    """Fit every (batch, tokens) of a phase.

    Raises:
        CoraloptError: There are no points, the grid has holes, some place has one layer count only, or times do not grow
            with the layers; names the place.
    """
    mine = [point for point in points if point.phase == phase]
    if not mine:
        raise CoraloptError(f"there are no {phase} points to fit")
    tokens = sorted({point.tokens for point in mine})
    batches = sorted({point.batch for point in mine})
    layer_ms: list[list[float]] = [[0.0] * len(batches) for _ in tokens]
    other_ms: list[list[float]] = [[0.0] * len(batches) for _ in tokens]
    error = 0.0
    for (row, length), (column, batch) in itertools.product(enumerate(tokens), enumerate(batches)):
        here = [point for point in mine if (point.tokens, point.batch) == (length, batch)]
        other, layer = _line(here, f"{phase} of {batch} x {length:g} tokens")
        layer_ms[row][column], other_ms[row][column] = layer, other
        error = max(error, *(abs(other + layer * p.layers - p.ms) / p.ms for p in here))
    return Fit(tuple(tokens), tuple(batches), tuple(map(tuple, layer_ms)), tuple(map(tuple, other_ms)), error)


def _line(points: Sequence[Point], where: str) -> tuple[float, float]:
    """:func:`fit_line` through points of one place, refused where it says nothing."""
    counts = sorted({point.layers for point in points})
    if len(counts) < 2:
        known = f"only with {counts[0]} layers" if counts else "not"
        raise CoraloptError(
            f"{where} was measured {known}; every batch and length needs at least two layer counts to tell a layer "
            "from what is not one"
        )
    other, layer = fit_line([point.layers for point in points], [point.ms for point in points])
    if layer <= 0:
        seen = ", ".join(f"{point.layers}: {point.ms:.3g} ms" for point in points)
        raise CoraloptError(
            f"{where}: times do not grow with the layers ({seen}): too noisy; measure on a quiet machine, with "
            "layer counts further apart or more repeats"
        )
    return other, layer


def mixed_layers(points: Sequence[Point]) -> dict[Point, float]:
    """A point of every mixed step that was measured -> ms of a layer.

    Raises:
        CoraloptError: As :func:`fit_points`.
    """
    places: dict[tuple[float, ...], list[Point]] = {}
    for point in points:
        if point.phase == "mixed":
            places.setdefault(point.place, []).append(point)
    return {
        here[0]: _line(here, "a step of {:g} sequences at {:g} tokens and {:g} of a prompt after {:g}".format(*place))[
            1
        ]
        for place, here in places.items()
    }
