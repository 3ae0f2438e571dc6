"""Random problems by seed, with every trait that has ever broken a solver; plain numpy, no test library needed.

Most figures are multiples of 1/8 (placement) or 1/4 (allocation) of moderate size, so that sums of floating-point numbers
are exact in any order and two answers can be compared without tolerance. A fifth of the seeds draws *wide* figures: tokens/s
over twelve orders of magnitude in one table, in powers of two times the others, which keeps sums exact.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coralopt.allocation import AllocationProblem, Joint, ModelRoutes, Route, RouteMean, SideConstraint, SupplyClass
from coralopt.placement import PlacementProblem
from coralopt.placement.limits import EngineLimits
from coralopt.types import Floats, Ints

PLACEMENT_TRAITS = ("ordinary", "ties", "one node", "equal nodes", "holes", "no memory", "rising", "roles", "huge")
ALLOCATION_TRAITS = (
    "ordinary",
    "degenerate",
    "scarce",
    "infeasible",
    "no demand",
    "one phase",
    "running",
    "huge",
    "routes",
)


def is_wide(seed: int) -> bool:
    """Whether the instances of this seed have figures of every size."""
    return seed // 9 % 5 == 4


def placement_instance(seed: int, max_nodes: int = 4, max_stages: int = 3, max_layers: int = 6) -> PlacementProblem:
    """A placement problem with a fixed stage count; the trait is ``PLACEMENT_TRAITS[seed % 9]``."""
    rng = np.random.default_rng((seed, 1))
    trait = PLACEMENT_TRAITS[seed % len(PLACEMENT_TRAITS)]
    width = int(rng.integers(1, 4))
    nodes = 1 if trait == "one node" else int(rng.integers(2, max_nodes + 1))
    layers = int(rng.integers(2, max_layers + 1))
    stages = int(rng.integers(1, min(max_stages, nodes, layers) + 1))
    shape = (stages, 3, width, layers + 1)
    levels = 6 if trait == "ties" else 4000
    values = np.ceil(rng.integers(1, levels + 1, shape) / np.maximum(np.arange(layers + 1), 1) ** rng.integers(0, 3))
    if trait != "rising":
        values[..., 1:] = np.sort(values[..., 1:], axis=-1)[..., ::-1]
    if trait != "roles":
        values[:] = values[:, :1]
    if trait == "equal nodes":
        values[:] = values[:, :, :1]
    if trait == "holes":
        values[rng.random(shape) < 0.25] = 0.0
    if trait == "no memory":
        values[:, :, :, np.maximum(1, layers // (stages + 1)) :] = 0.0
    if trait == "huge":
        values *= 2.0**16
    if is_wide(seed):
        values *= np.exp2(np.random.default_rng((seed, 3)).integers(-19, 20, shape))
    values[..., 0] = 0.0
    drawn = rng.integers(0, width, nodes)
    return PlacementProblem(
        values=values / 8.0,
        node_set=tuple(int((drawn == c).sum()) for c in range(width)),
        configurations=tuple(f"c{c}" for c in range(width)),
        stages=stages,
    )


def allocation_instance(seed: int, max_templates: int = 12) -> AllocationProblem:
    """An allocation problem; the trait is ``ALLOCATION_TRAITS[seed % 9]``."""
    rng = np.random.default_rng((seed, 2))
    trait = ALLOCATION_TRAITS[seed % len(ALLOCATION_TRAITS)]
    phases = 1 if trait == "one phase" else int(rng.integers(1, 4))
    regions, configurations = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    templates = int(rng.integers(phases, max_templates + 1))
    usage = rng.integers(0, 3, (templates, configurations)).astype(np.int16)
    empty = usage.sum(axis=1) == 0
    usage[empty, rng.integers(0, configurations, int(empty.sum()))] = 1
    levels = 3 if trait == "degenerate" else 400
    throughput = rng.integers(1, levels + 1, templates) / 4.0
    phase = np.concatenate([np.arange(phases), rng.integers(0, phases, templates - phases)]).astype(np.int32)
    most = {"scarce": 4, "infeasible": 1}.get(trait, 12)
    availability = rng.integers(0, most + 1, (regions, configurations))
    demand = rng.integers(1, 4 * levels if trait == "scarce" else 2 * levels, phases) / 4.0
    if trait == "infeasible":
        demand *= 16
    if trait == "no demand":
        demand[rng.random(phases) < 0.7] = 0.0
    if trait == "routes":
        # Shares of requests are then fractions of powers of two.
        demand = np.exp2(rng.integers(3, 8, phases))
    price = rng.integers(1, 4 if trait == "degenerate" else 120, (regions, configurations)) / 4.0
    price[(availability == 0) & (rng.random(price.shape) < 0.5)] = np.nan
    if trait == "huge":
        throughput, demand = throughput * 2.0**14, demand * 2.0**14
    if is_wide(seed) and trait != "routes":
        sizes = np.exp2(np.random.default_rng((seed, 3)).integers(-20, 21, phases))
        throughput, demand = throughput * sizes[phase], demand * sizes
    running = None
    if trait == "running" or rng.random() < 0.2:
        running = rng.integers(0, 3, (templates, regions)) * (rng.random((templates, regions)) < 0.4)
    routes: tuple[ModelRoutes, ...] = ()
    if trait == "routes":
        ways = random_routes(rng, phases, regions)
        own = np.random.default_rng((seed, 4))
        routes = (with_random_means(own, ways) if own.random() < 0.5 else ways,)
    sides: list[SideConstraint] = []
    if seed // len(ALLOCATION_TRAITS) % 2:
        # Every other one of these has what is said of running instances, or of the loss of one.
        if running is not None:
            sides = starting_rows(running, usage, availability)
        if trait in ("ordinary", "one phase", "degenerate"):
            share = float(np.random.default_rng((seed, 4)).choice([0.5, 1.0]))
            sides += [
                SideConstraint(f"without one of {p}", "least", "tokens_s", share, (p,), one_lost=True)
                for p in range(phases)
            ]
    unmet = None
    if trait == "scarce" and not is_wide(seed):
        # Half of all demand comes with a probability of one half.
        unmet = np.random.default_rng((seed, 6)).integers(1, 40, phases) / 4.0
    joint, together = Joint(), tuple[tuple[int, ...], ...]()
    if seed // 9 % 6 == 4:
        # None of these loses instances or has start costs by template. Half of them divide their time.
        joint = _random_joint(np.random.default_rng((seed, 7)), phase, throughput, phases)
        if seed % 2 and not routes:
            joint, together = replace(joint, divided=True), (tuple(range(phases)),)
    return AllocationProblem(
        usage=usage,
        throughput=throughput,
        phase=phase,
        demand=demand,
        routes=routes,
        joint=joint,
        unmet_together=together,
        unmet_price=unmet,
        unmet_tiers=() if unmet is None else (((0.5, 0.5), (1.0, 1.0)),) * phases,
        availability=availability,
        price=price,
        running=running,
        penalty=float(rng.choice([0.0, 0.25, 2.0])),
        side_constraints=tuple(sides),
        start_penalty=np.random.default_rng((seed, 5)).choice([0.0, 0.25, 2.0], templates)
        if seed // 9 % 3 == 2
        else None,
        phase_names=tuple(f"model{p}/decode" for p in range(phases)),
        region_names=tuple(f"region{r}" for r in range(regions)),
        configuration_names=tuple(f"{c + 1}xGPU" for c in range(configurations)),
    )


def _random_joint(rng: np.random.Generator, phase: npt.NDArray[np.int32], throughput: Floats, phases: int) -> Joint:
    """Further phases of some templates, each at the throughput of some template of that phase."""
    pairs = [(t, p) for t, own in enumerate(phase.tolist()) for p in range(phases) if p != own and rng.random() < 0.4]
    template, further = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    speeds = [float(rng.choice(throughput[phase == p])) for p in further.tolist()]
    return Joint(template, further.astype(np.int32), np.array(speeds))


def starting_rows(running: Ints, usage: npt.NDArray[np.int16], availability: Ints) -> list[SideConstraint]:
    """Nodes of new instances that are free beside all that run, wherever something runs."""
    runs = np.einsum("tr,tc->rc", running, usage.astype(np.int64))
    free = np.maximum(0, availability - runs)
    return [
        SideConstraint(f"new nodes {r},{c}", "most", "new_nodes", float(free[r, c]), None, (r,), (c,))
        for r, c in np.argwhere(runs > 0).tolist()
    ]


def random_routes(rng: np.random.Generator, phases: int, regions: int) -> ModelRoutes:
    """Routes of one model whose phases 0 and 1 are prefill and decode, and 2 mixed, as far as there are so many.

    Prices are whole numbers, so that costs are exact where demands are powers of two.
    """
    cross = rng.choice([0.0, 1.0, 8.0, 64.0], (regions, regions)) * (1 - np.eye(regions))
    allowed = (rng.random((regions, regions)) < 0.8) | np.eye(regions, dtype=np.bool_)
    if phases == 1:
        return ModelRoutes("model0", tuple(Route(((0, r),), float(cross[0, r])) for r in range(regions)))
    ways = [
        Route(((0, r), (1, s)), float(cross[r, s])) for r in range(regions) for s in range(regions) if allowed[r, s]
    ]
    if phases > 2 and rng.random() < 0.3:
        # Either mode, and caches anywhere for nothing.
        ways = [Route(((0, None), (1, None)))]
    return ModelRoutes("model0", (*ways, *((Route(((2, None),)),) if phases > 2 else ())))


def random_variants(rng: np.random.Generator, phases: int, regions: int) -> ModelRoutes:
    """Routes of one model through variants, each with prefill and decode of its own, within regions or wherever they are.

    An odd number of phases leaves a variant with mixed instances.
    """
    places = [None] if rng.random() < 0.5 else list(range(regions))
    ways = [Route(((p, r), (p + 1, r))) for p in range(0, phases - 1, 2) for r in places]
    alone = [Route(((phases - 1, None),))] if phases % 2 else []
    return with_random_means(rng, ModelRoutes("model0", (*ways, *alone)))


def with_random_means(rng: np.random.Generator, model: ModelRoutes) -> ModelRoutes:
    """The routes with one or two means that some shares reach together; the numbers are 16ths."""
    means, some = [], rng.integers(0, len(model.routes), 2)
    for position in range(int(rng.integers(1, 3))):
        values = rng.integers(0, 9, len(model.routes)) / 8.0
        least = min(float(values[some].mean()), float(rng.integers(4, 17)) / 16.0)
        means.append(RouteMean(f"mean{position}", tuple(values.tolist()), least))
    return replace(model, means=tuple(means))


def problem_to_json(problem: PlacementProblem | AllocationProblem) -> dict[str, Any]:
    """Plain data that :func:`problem_from_json` reads back bit for bit; NaN is ``null``."""
    return {"kind": problem.kind, **{item.name: _plain(getattr(problem, item.name)) for item in fields(problem)}}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        held: Any = value.astype(object)
        if value.dtype.kind == "f":
            held[np.isnan(value)] = None
        return held.tolist()
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def problem_from_json(data: dict[str, Any]) -> PlacementProblem | AllocationProblem:
    """The problem that :func:`problem_to_json` wrote.

    Raises:
        ValueError: The data is of no such problem.
    """
    held = dict(data)
    kind = held.pop("kind", None)
    if kind == "placement":
        return PlacementProblem(
            values=np.array(held["values"], dtype=np.float64),
            node_set=tuple(held["node_set"]),
            configurations=tuple(held["configurations"]),
            stages=held["stages"],
            limits=EngineLimits(**held.get("limits", {})),
            gpus=tuple(held.get("gpus", ())),
        )
    if kind == "allocation":
        types = {"usage": np.int16, "phase": np.int32, "availability": np.int64, "running": np.int64}
        arrays = ("usage", "throughput", "phase", "demand", "availability", "price", "running", "unmet_price")
        for name in (*arrays, "start_penalty"):
            if held.get(name) is not None:
                held[name] = np.array(held[name], dtype=types.get(name, np.float64))
        held["supply"] = tuple(
            SupplyClass(
                item["name"], np.array(item["nodes"], dtype=np.int64), np.array(item["price"], dtype=np.float64)
            )
            for item in held.get("supply", ())
        )
        held["side_constraints"] = tuple(
            SideConstraint(**{k: _tuple(v) for k, v in item.items()}) for item in held.get("side_constraints", ())
        )
        held["routes"] = tuple(
            ModelRoutes(
                item["model"],
                tuple(Route(tuple(map(tuple, way["pools"])), way["usd_h"]) for way in item["routes"]),
                tuple(RouteMean(m["name"], tuple(m["values"]), m["least"]) for m in item.get("means", ())),
            )
            for item in held.get("routes", ())
        )
        if "joint" in held:
            types = {"template": np.int64, "phase": np.int32}
            own = {name: some for name, some in held["joint"].items() if name != "divided"}
            parts = {name: np.array(some, dtype=types.get(name, np.float64)) for name, some in own.items()}
            held["joint"] = Joint(**parts, divided=held["joint"].get("divided", False))
        held["unmet_together"] = tuple(map(tuple, held.get("unmet_together", ())))
        held["unmet_tiers"] = tuple(tuple(map(tuple, tiers)) for tiers in held.get("unmet_tiers", ()))
        for name in ("phase_names", "region_names", "configuration_names"):
            held[name] = tuple(held[name])
        return AllocationProblem(**held)
    raise ValueError(f"kind is {kind!r}; it must be placement or allocation")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
