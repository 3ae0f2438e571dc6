"""What every epoch demands and offers, in a scenario's own order, and the scenario of one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coralopt.errors import WorkloadError
from coralopt.scenario.facts.facts import RunningInstances
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.types import Floats, Ints
from coralopt.workload import EpochAvailability, EpochDemand, EpochPrices


@dataclass(frozen=True, eq=False)
class EpochInputs:
    """What a rolling horizon is given.

    Attributes:
        demand: float64 (E, P), tokens/s, in the order of the scenario's model phases.
        availability: int64 (E, R, C), nodes, those rented already included.
        price: float64 (E, R, C), USD per node-hour; NaN only where availability is 0.
    """

    demand: Floats
    availability: Ints
    price: Floats

    def __len__(self) -> int:
        return len(self.demand)


def epoch_inputs(
    scenario: ResolvedScenario,
    demand: EpochDemand | None = None,
    availability: EpochAvailability | None = None,
    prices: EpochPrices | None = None,
    epochs: int | None = None,
) -> EpochInputs:
    """Tables of epochs in the scenario's order; what no table is given for stays as the scenario has it.

    Args:
        scenario: The scenario.
        demand: Must name every model phase of the scenario.
        availability: A pair it never names is not available.
        prices: A pair it never names keeps the scenario's price.
        epochs: How many to plan; all when ``None``.

    Raises:
        WorkloadError: A table names what the scenario lacks, or lacks what the scenario has; tables of different
            lengths; too few epochs (all of these at once); an epoch without any node; a pair that is available without
            a price.
    """
    wrong: list[str] = []
    tables: list[tuple[str, Any]] = [("demand", demand), ("availability", availability), ("prices", prices)]
    lengths = {name: len(table) for name, table in tables if table is not None}
    if epochs is None:
        if not lengths:
            raise WorkloadError("nothing says how many epochs there are: give a table, or the number of epochs")
        if len(set(lengths.values())) > 1:
            wrong.append(
                "the tables have different numbers of epochs: "
                + ", ".join(f"{name} {length}" for name, length in lengths.items())
                + "; give the number to plan"
            )
        epochs = min(lengths.values())
    if epochs < 1:
        wrong.append(f"{epochs} epochs were asked for; there must be at least 1")
    wrong += [
        f"{epochs} epochs were asked for, but {name} has {length}"
        for name, length in lengths.items()
        if length < epochs
    ]
    keys = [phase.key for phase in scenario.model_phases]
    if demand is not None:
        wrong += _strangers("demand", demand.keys, keys, "model phase")
        lacking = [key for key in keys if key not in demand.keys]
        if lacking:
            wrong.append(f"demand has no entries for {', '.join(lacking)}; give 0 tokens/s for what needs nothing")
    names = [configuration.name for configuration in scenario.configurations]
    for what, table in (("availability", availability), ("prices", prices)):
        if table is not None:
            wrong += _strangers(what, table.regions, scenario.regions, "region")
            wrong += _strangers(what, table.configurations, names, "configuration")
    if wrong:
        raise WorkloadError("\n  - ".join(["the tables do not fit the scenario:", *wrong]))
    needed = np.repeat(np.array([[phase.demand_tokens_s for phase in scenario.model_phases]]), epochs, axis=0)
    if demand is not None:
        needed = demand.tokens_s[:epochs][:, [demand.keys.index(key) for key in keys]]
    offered = np.repeat(scenario.availability[None], epochs, axis=0)
    if availability is not None:
        offered = np.zeros_like(offered)
        place = _place(scenario.regions, names, availability.regions, availability.configurations)
        offered[:, place[0], place[1]] = availability.count[:epochs]
        # Tables speak of nodes on demand; spot nodes stay as the scenario has them.
        for item in scenario.operations.classes:
            if item.name == "spot":
                offered[:, scenario.regions.index(item.region), names.index(item.configuration)] += item.nodes
    empty = np.flatnonzero(~(offered > 0).any(axis=(1, 2)))
    if len(empty):
        raise WorkloadError(f"epoch {empty[0]}: no node of the scenario is available in any region; offer some")
    price = np.repeat(scenario.price_usd_h[None], epochs, axis=0)
    if prices is not None:
        place = _place(scenario.regions, names, prices.regions, prices.configurations)
        given = prices.usd_h[:epochs]
        price[:, place[0], place[1]] = np.where(np.isnan(given), price[:, place[0], place[1]], given)
    unpriced = np.argwhere((offered > 0) & np.isnan(price))
    if len(unpriced):
        e, r, c = unpriced[0]
        raise WorkloadError(
            f"epoch {e}: {names[c]} in {scenario.regions[r]} is available but has no price; "
            "add it to the prices or to the scenario's pool"
        )
    return EpochInputs(needed, offered, price)


def _strangers(what: str, given: Sequence[str], known: Sequence[str], kind: str) -> list[str]:
    return [
        f"{what} names the {kind} {name!r}, which the scenario does not have; it has {', '.join(known)}"
        for name in given
        if name not in known
    ]


def _place(
    regions: Sequence[str], names: Sequence[str], given_regions: Sequence[str], given_names: Sequence[str]
) -> Any:
    return np.ix_(
        [list(regions).index(name) for name in given_regions], [list(names).index(name) for name in given_names]
    )


def epoch_scenario(
    scenario: ResolvedScenario,
    demand: Floats,
    availability: Ints,
    price: Floats,
    running: Sequence[RunningInstances],
    penalty: float | None = None,
    name: str | None = None,
) -> ResolvedScenario:
    """The scenario of one epoch. Its document is a whole scenario of its own, so that its plan can be verified anywhere.

    Configurations stay those of ``scenario``, so that its library fits, though a scenario read from the document knows
    only those with nodes somewhere. Running instances on a configuration that is gone everywhere are left out: they
    cannot be kept.

    Args:
        scenario: What stays.
        demand: float64 (P,), tokens/s.
        availability: int64 (R, C), nodes.
        price: float64 (R, C), USD per node-hour.
        running: Instances that run already.
        penalty: K, the scenario's own when ``None``.
        name: Its name.
    """
    if name is not None:
        scenario = scenario.named(name)
    if penalty is not None:
        scenario = scenario.with_penalty(penalty)
    return scenario.with_demand(demand).with_supply(availability, price).with_running(running)
