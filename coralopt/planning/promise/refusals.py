"""What a search for plans that hold says where it has none: what is possible at best, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coralopt.display import percent
from coralopt.errors import Mistake, NoSolutionError, ScenarioError
from coralopt.planning.promise.capacities import Groups
from coralopt.planning.promise.workers import Workers
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.types import Floats

#: Requests that tell about what is possible at best where there is no time for more.
FEW = 500
#: Templates of most throughput whose idle instances are looked at where no group holds.
MOST_IDLE = 50


@dataclass(frozen=True, eq=False)
class Refusals:
    """Why there is no plan.

    Attributes:
        scenario: What is planned.
        groups: Groups of every model phase, as far as they are known.
        demand: float64 (P,), tokens/s of every model phase.
        workers: Simulate idle instances.
    """

    scenario: ResolvedScenario
    groups: Sequence[Groups]
    demand: Floats
    workers: Workers

    def check_slo(self, p: int) -> None:
        """No group of this model phase holds anything: is it the SLO?

        Raises:
            ScenarioError: On no node so many requests meet it; says how many do at best.
            NoSolutionError: On some they do, but replications refused every group.
        """
        phase, groups = self.scenario.model_phases[p], self.groups[p]
        oracle = groups.oracle
        share, nodes, template = oracle.best_share(self.workers)
        if oracle.target is None or share >= oracle.target:
            # There are too few nodes, which the allocation says better, or too few groups were simulated: those without a
            # chance are left out, and a large one of the quickest instances likely holds if any does.
            open_ = np.setdiff1d(groups.template[groups.most > 0], groups.template[groups.least > 0])
            open_ = open_[np.argsort(-oracle.templates.throughput[open_], kind="stable")][:MOST_IDLE]
            groups.most[np.isin(groups.template, oracle.hopeless(open_.tolist(), self.workers))] = 0
            for j in np.flatnonzero(groups.template == template)[-1:].tolist():
                groups.settle(j)
            if len(groups.most) and not groups.most.any():
                raise self.in_vain(p)
            return
        mistake = Mistake(
            place=f"models.{self.scenario.model_keys[phase.model.name]}.slo.attainment",
            problem=f"no node of the pool meets {_said(phase)} for {percent(oracle.target)} of the requests; "
            f"at most {percent(share)} meet it, alone on {nodes}",
            hint=f"ask for less than that, for a larger {' or '.join(_limits(phase))}, or add quicker nodes",
        )
        raise ScenarioError(self.scenario.name, [mistake])

    def in_vain(self, p: int) -> NoSolutionError:
        """What to say where instances may hold a model phase, but no replication came upon any that do in this pool."""
        phase, oracle = self.scenario.model_phases[p], self.groups[p].oracle
        share, nodes, _ = oracle.best_share(self.workers)
        rate, sent, better = oracle.rate(float(self.demand[p])), "", "quicker or more nodes"
        if phase.phase == "prefill":
            best, sender = oracle.best_share_sent(self.workers)
            sent = f", and with KV caches in time for tpot_ms: {phase.decode_ms:g}, {sender} for {percent(best)}"
            better += ", or nodes with quicker links"
        return NoSolutionError(
            f"{phase.key}: no instances that the pool has room for were seen to meet {_said(phase)} for "
            f"{percent(oracle.target or 0.0)} of {rate:g} requests/s in {oracle.replications} simulations; though idle, "
            f"{nodes} meets it for {percent(share)}{sent}. Ask for a smaller share or a longer time, or add {better}",
            None,
        )

    def too_soon(self, workers: Workers) -> NoSolutionError:
        """What to say where time was over before any plan was known: what is possible for the phases that nothing holds.

        Args:
            workers: Of their own time: that of the search is over.
        """
        lines = list[str]()
        for phase, groups in zip(self.scenario.model_phases, self.groups, strict=True):
            oracle = groups.oracle
            if oracle.target is None or not groups.unit_tokens or groups.least.any():
                continue
            share, nodes, _ = oracle.best_share(workers, FEW)
            lines.append(
                f"  - {phase.key}: after {oracle.replications} simulations no instances are known that meet {_said(phase)} "
                f"for {percent(oracle.target)} of any part of its requests; though idle, {nodes} meets it for "
                f"{percent(share)}"
            )
        first = (
            "time was over before a plan was known that serves the share of requests asked for within SLO; give it more "
            "time: what was found out is kept, and the search goes on from there"
        )
        without = lines or ["  - every phase has instances that hold it, but the pool has no room for all of these"]
        return NoSolutionError("\n".join([first, *without]), None)


def _limits(phase: ModelPhase) -> dict[str, float]:
    """What the scenario calls the SLOs of a phase -> ms."""
    slo_ms = {"ttft_ms": phase.prefill_ms, "tpot_ms": phase.decode_ms}
    names = {"prefill": ("ttft_ms",), "decode": ("tpot_ms",), "mixed": tuple(slo_ms)}[phase.phase]
    return {name: slo_ms[name] for name in names}


def _said(phase: ModelPhase) -> str:
    return " and ".join(f"{name}: {ms:g}" for name, ms in _limits(phase).items())
