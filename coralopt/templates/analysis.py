"""What a library holds: the most efficient templates, the spread of throughputs, differences between two libraries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from coralopt.errors import LibraryError
from coralopt.placement import Placement
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.templates.library import PhaseTemplates, TemplateLibrary
from coralopt.types import Floats, Ints

Mix = Literal["any", "mixed", "pure"]


@dataclass(frozen=True)
class RankedTemplate:
    """One template with its price.

    Attributes:
        row: Row in its model phase.
        tokens_s: Throughput, tokens/s.
        price_usd_h: Price of its nodes in ``region``, USD/h.
        tokens_s_per_usd_h: Cost efficiency: tokens/s for one USD/h.
        region: Where it is cheapest, or the region asked for.
        nodes: Configuration -> number of nodes.
        placement: Its stages.
    """

    row: int
    tokens_s: float
    price_usd_h: float
    tokens_s_per_usd_h: float
    region: str
    nodes: dict[str, int]
    placement: Placement


def phase_of(library: TemplateLibrary, key: str) -> PhaseTemplates:
    """The model phase of this key.

    Raises:
        LibraryError: The library has none; lists those it has.
    """
    if key not in library.by_key:
        raise LibraryError(f"the library has no model phase {key!r}; it has: {', '.join(library.by_key)}")
    return library.by_key[key]


def template_prices(
    library: TemplateLibrary, scenario: ResolvedScenario, key: str, region: str | None = None
) -> tuple[Floats, Ints]:
    """Price of every template of a model phase, float64 (T,) in USD/h, and the region of that price, int64 (T,).

    Without a region it is the cheapest one that sells all of its nodes; infinite where none does.

    Raises:
        LibraryError: Unknown model phase or region, or the scenario has other configurations than the library.
    """
    phase = phase_of(library, key)
    if tuple(c.name for c in scenario.configurations) != library.configurations:
        raise LibraryError("the scenario has other node configurations than the library; name the one it was built for")
    if region is not None and region not in scenario.regions:
        raise LibraryError(f"unknown region {region!r}; the scenario has: {', '.join(scenario.regions)}")
    best, where = np.full(len(phase), np.inf), np.zeros(len(phase), dtype=np.int64)
    for r, name in enumerate(scenario.regions):
        if region is not None and name != region:
            continue
        sold = (scenario.availability[r] > 0) & np.isfinite(scenario.price_usd_h[r])
        price = phase.usage @ np.where(sold, scenario.price_usd_h[r], 0.0)
        price[(phase.usage[:, ~sold] > 0).any(axis=1)] = np.inf
        cheaper = price < best
        best[cheaper], where[cheaper] = price[cheaper], r
    return best, where


def gpu_types_used(usage: npt.NDArray[np.signedinteger], scenario: ResolvedScenario) -> Ints:
    """int64 (T,): number of different GPU types in each node set of ``usage`` (T, C)."""
    types = scenario.gpu_types
    of_type = np.array([[own == name for name in dict.fromkeys(types)] for own in types], dtype=np.int64)
    kinds: Ints = ((usage > 0) @ of_type > 0).sum(axis=1, dtype=np.int64)
    return kinds


def rank_templates(
    library: TemplateLibrary,
    scenario: ResolvedScenario,
    key: str,
    *,
    region: str | None = None,
    mix: Mix = "any",
    gpus: Collection[str] | None = None,
    limit: int = 10,
) -> list[RankedTemplate]:
    """The templates of a model phase with the most tokens/s for one USD/h, best first.

    Args:
        library: The library.
        scenario: Prices come from here.
        key: Model phase key.
        region: Prices of this region; the cheapest one for each template when ``None``.
        mix: ``"mixed"``: two GPU types or more; ``"pure"``: one GPU type.
        gpus: Only templates of these GPU types.
        limit: How many.

    Raises:
        LibraryError: Unknown model phase, region or GPU type.
    """
    phase = phase_of(library, key)
    price, where = template_prices(library, scenario, key, region)
    chosen = np.isfinite(price) & (price > 0)
    if mix != "any":
        types = gpu_types_used(phase.usage, scenario)
        chosen &= types > 1 if mix == "mixed" else types == 1
    if gpus is not None:
        known = set(scenario.gpu_types)
        if unknown := sorted(set(gpus) - known):
            raise LibraryError(f"unknown GPU type {unknown[0]!r}; the scenario has: {', '.join(sorted(known))}")
        outside = [c for c, name in enumerate(scenario.gpu_types) if name not in gpus]
        chosen &= ~(phase.usage[:, outside] > 0).any(axis=1)
    rows = np.flatnonzero(chosen)
    efficiency = phase.throughput[rows] / price[rows]
    # Ties: fewer nodes first, then the library's order.
    order = np.lexsort((rows, phase.usage[rows].sum(axis=1), -efficiency))[:limit]
    return [
        RankedTemplate(
            row=int(rows[i]),
            tokens_s=float(phase.throughput[rows[i]]),
            price_usd_h=float(price[rows[i]]),
            tokens_s_per_usd_h=float(efficiency[i]),
            region=scenario.regions[int(where[rows[i]])],
            nodes={n: int(k) for n, k in zip(library.configurations, phase.usage[rows[i]], strict=True) if k},
            placement=phase.placement(int(rows[i])),
        )
        for i in order
    ]


@dataclass(frozen=True, eq=False)
class Spread:
    """Throughputs that a class of templates offers (the paper's figure 2b).

    Attributes:
        throughput: float64 (T,), tokens/s, ascending.
        levels: Number of different throughputs.
        overshoot: Mean of (T - d) / d, with T the least throughput of one instance that covers a demand d, over
            demands spread evenly up to the largest throughput that pure node sets reach.
    """

    throughput: Floats
    levels: int
    overshoot: float


def throughput_spread(library: TemplateLibrary, scenario: ResolvedScenario, key: str) -> tuple[Spread, Spread]:
    """Spread of all templates and of those of one GPU type, for a model phase.

    Raises:
        LibraryError: Unknown model phase.
    """
    phase = phase_of(library, key)
    pure = np.sort(phase.throughput[gpu_types_used(phase.usage, scenario) == 1])
    everything = np.sort(phase.throughput)
    demands = np.linspace(0.0, pure[-1] if len(pure) else 0.0, 1001)[1:]
    return tuple(_spread(levels, demands) for levels in (everything, pure))  # type: ignore[return-value]


def _spread(throughput: Floats, demands: Floats) -> Spread:
    if not len(throughput):
        return Spread(throughput, 0, float("nan"))
    covering = throughput[np.searchsorted(throughput, demands, side="left").clip(max=len(throughput) - 1)]
    return Spread(throughput, len(np.unique(throughput)), float(((covering - demands) / demands).mean()))


@dataclass(frozen=True)
class PhaseDifference:
    """How one model phase differs between two libraries.

    Attributes:
        key: Model phase key.
        only_first, only_second: Templates on node sets that the other library does not have.
        equal, higher, lower: Common node sets, by the throughput of the second against the first.
        largest_rise, largest_fall: Largest relative changes, 0 or more.
    """

    key: str
    only_first: int
    only_second: int
    equal: int
    higher: int
    lower: int
    largest_rise: float
    largest_fall: float

    @property
    def same(self) -> bool:
        return not (self.only_first or self.only_second or self.higher or self.lower)


def compare_libraries(first: TemplateLibrary, second: TemplateLibrary) -> list[PhaseDifference]:
    """Differences by model phase; node sets are matched by configuration names."""
    names = sorted(set(first.configurations) | set(second.configurations))
    keys = list(dict.fromkeys([*first.by_key, *second.by_key]))
    return [_difference(key, first, second, names) for key in keys]


def _difference(key: str, first: TemplateLibrary, second: TemplateLibrary, names: list[str]) -> PhaseDifference:
    sides = []
    for library in (first, second):
        phase = library.by_key.get(key)
        count = 0 if phase is None else len(phase)
        usage = np.zeros((count, len(names)), dtype=np.int16)
        if phase is not None:
            usage[:, [names.index(name) for name in library.configurations]] = phase.usage
        throughput = np.zeros(0) if phase is None else phase.throughput
        codes = np.ascontiguousarray(usage).view(np.dtype((np.void, usage.itemsize * len(names)))).reshape(-1)
        sides.append((codes, throughput))
    (codes_a, a), (codes_b, b) = sides
    common, in_a, in_b = np.intersect1d(codes_a, codes_b, assume_unique=True, return_indices=True)
    change = b[in_b] / a[in_a] - 1 if len(common) else np.zeros(0)
    return PhaseDifference(
        key=key,
        only_first=len(codes_a) - len(common),
        only_second=len(codes_b) - len(common),
        equal=int((change == 0).sum()),
        higher=int((change > 0).sum()),
        lower=int((change < 0).sum()),
        largest_rise=float(change.max(initial=0.0)),
        largest_fall=float(max(0.0, -change.min(initial=0.0))),
    )
