"""A few instances of one model, simulated by themselves as quickly as possible: the oracle of a search over plans.

Same compiled rules as :func:`coralopt.simulation.simulate`; no plan document, no report, and layouts and stage times
are kept from one call to the next.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.errors import CoraloptError
from coralopt.plan.parts import PlannedInstance
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation.config import SimulationConfig
from coralopt.simulation.fleet import Fleet, empty_state
from coralopt.simulation.layout import Blueprint, Draughtsman
from coralopt.simulation.state import DECODE, FINISHED, MIXED, NODE, PHASES, PREFILL, requests_of
from coralopt.simulation.times import TimesOf, TimeTables
from coralopt.types import Bools, Floats, Ints
from coralopt.workload import Trace

#: Looks at a run that may end early.
LOOKS = 40


@dataclass(frozen=True, eq=False)
class GroupOutcome:
    """What became of the requests that a group of instances was given, one entry a request.

    Attributes:
        ttft_ms: float64 (n,), time to first token; NaN where no instance of the group makes first tokens, or for ever.
        tpot_ms: float64 (n,), time per output token, KV transfer and waits included; NaN for answers of one token,
            where the group does not decode, or for ever.
        met_ttft, met_tpot: bool (n,), within the SLO of the model phase; a phase that the group lacks is met.
        busy: Largest share of the time up to the last arrival that a node ran micro-batches.
    """

    ttft_ms: Floats
    tpot_ms: Floats
    met_ttft: Bools
    met_tpot: Bools
    busy: float

    @property
    def attainment(self) -> float:
        """Share of requests that met the SLOs of all phases in the group."""
        return float((self.met_ttft & self.met_tpot).mean()) if len(self.ttft_ms) else math.nan

    @property
    def missed(self) -> float:
        """Share of requests that missed the SLO on the time to first token or per output token, whichever is more."""
        return (
            max(1.0 - float(self.met_ttft.mean()), 1.0 - float(self.met_tpot.mean())) if len(self.ttft_ms) else math.nan
        )


@dataclass(frozen=True, eq=False)
class QuickestDecoding:
    """Decode instances at their best, to which a prefill group sends KV caches: no queues, no limits, links never busy.

    Attributes:
        step_ms: float64 (n,), least time of one output token of each request, ms.
    """

    step_ms: Floats


@dataclass(frozen=True, eq=False)
class _Slos:
    """Model phases that make first tokens and that decode, ``None`` where there is none; what a time per output token lacks.

    Attributes:
        first, last: The phases.
        step_ms: float64 (n,) or a number, ms of each token that are not simulated.
    """

    first: ModelPhase | None
    last: ModelPhase | None
    step_ms: Floats | float = 0.0


class GroupSimulator:
    """Simulates groups of planned instances of one model; a call costs the run and a few milliseconds.

    Several threads may simulate at once.

    Args:
        scenario: Model phases with their SLOs, node configurations, layer times.
        config: Links, noise, seed; instances serve from the start.
        source: Layer times; by default the scenario's.
        longest: Most tokens of a prompt and its answer together in any later call.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        *,
        config: SimulationConfig | None = None,
        source: TimesOf | None = None,
        longest: int = 2**17,
    ) -> None:
        self.config = config or SimulationConfig()
        self.longest = longest
        self._draughtsman = Draughtsman(scenario, TimeTables(longest), self.config, source)
        self._blueprints: dict[PlannedInstance, Blueprint] = {}
        # A drawing may sample stage times, which all runs look up.
        self._drawing = threading.Lock()

    def simulate(
        self,
        instances: Sequence[PlannedInstance],
        requests: Trace,
        most_missed: float = 1.0,
        mixed_share: float = 1.0,
        decoding: QuickestDecoding | None = None,
    ) -> GroupOutcome:
        """Simulate requests against instances of one model, ``count`` of each.

        Prefill instances alone end with the first token; decode instances alone get every request with its first token
        made at its arrival and its KV cache on nodes whose links are free; together, or mixed, they serve it whole.

        Args:
            instances: The group.
            requests: What arrives.
            most_missed: The run ends as soon as a larger share of the requests has missed one of the SLOs for certain;
                those that are not done by then count as missed.
            mixed_share: Share of the requests for mixed instances, where there are others beside them.
            decoding: To whom prefill instances alone send KV caches; times per output token are then the least possible.

        Raises:
            CoraloptError: No instances, instances of several models, a request longer than ``longest``, or as
                :meth:`Draughtsman.draw`.
        """
        names = sorted({instance.model for instance in instances})
        if len(names) != 1:
            raise CoraloptError(f"a group holds instances of one model; these are of {', '.join(names) or 'none'}")
        from coralopt.simulation.events import run

        most = int((requests.input_tokens + requests.output_tokens).max(initial=0))
        if most > self.longest:
            raise CoraloptError(f"a request has {most} tokens; this simulator reaches {self.longest} (longest)")
        kinds = {instance.phase for instance in instances}
        slos = self._slos(instances, decoding)
        rows = np.ones(len(requests), dtype=np.bool_)
        outputs = requests.output_tokens
        if kinds == {"prefill"} and decoding is None:
            outputs = np.ones_like(outputs)
        elif kinds == {"decode"}:
            rows = outputs > 1
        records = requests_of(
            requests.arrival_s[rows],
            requests.input_tokens[rows],
            outputs[rows],
            np.zeros(int(rows.sum()), dtype=np.int64),
            self._draughtsman.phases[instances[0].key].prefix_hit,
        )
        with self._drawing:
            blueprints = [(self._blueprint(instance), instance.count) for instance in instances]
            tables = replace(self._draughtsman.tables)
        if kinds == {"decode"}:
            # Caches come from an instance without nodes: it holds nothing, and none of its links is busy.
            blueprints.append((_nowhere(names[0], instances[0].region, "prefill"), 1))
            records["first_token"], records["prefilled"], records["generated"] = records["arrival"], records["input"], 1
            records["prefill_instance"] = sum(count for _, count in blueprints) - 1
        elif decoding is not None:
            blueprints.append((_nowhere(names[0], instances[0].region, "decode"), 1))
        stages = max(len(blueprint.stage_sizes) for blueprint, _ in blueprints)
        state = empty_state(records, 1, stages, tables, self.config, self._draughtsman.serving)
        if kinds == {"decode"}:
            # Host time was before the first token.
            state.clock["host_request"] = 0.0
        else:
            slo_ms = max(self._draughtsman.phases[instance.key].prefill_ms for instance in instances)
            records["latest"] = records["arrival"] + slo_ms / 1e3
        fleet = Fleet(state, (names[0],), self.config)
        for blueprint, count in blueprints:
            fleet.ready += [(0.0, fleet.add(blueprint, 0.0)) for _ in range(count)]
        shares = np.zeros(3)
        shares[MIXED] = (mixed_share if len(kinds) > 1 else 1.0) if "mixed" in kinds else 0.0
        shares[PREFILL if "prefill" in kinds else DECODE] = 1.0 - shares[MIXED]
        fleet.state.entry[0] = shares
        fleet.advance(0.0)
        looks = np.linspace(0.0, requests.last_arrival_s, LOOKS + 1)[1:].tolist() if most_missed < 1 else []
        for until in (*looks, math.inf):
            run(fleet.state, until, 2**62)
            if most_missed < 1 and self._late(fleet, slos, until) > most_missed * len(rows):
                break
        return self._outcome(fleet, slos, requests, rows)

    def _late(self, fleet: Fleet, slos: _Slos, now: float) -> int:
        """Requests that have missed one SLO at ``now``, or must; the larger number of both SLOs."""
        records, most = fleet.state.requests, 0
        first_token: Floats = records["first_token"]
        finish: Floats = records["finish"]
        first, last = slos.first, slos.last
        with np.errstate(invalid="ignore"):
            if first:
                end = np.where(np.isnan(first_token), now, first_token)
                most = int((1e3 * (end - records["arrival"]) > first.prefill_ms).sum())
            if last:
                end = np.where(np.isnan(finish), now, finish)
                spent = 1e3 * (end - first_token)
                left_ms = (last.decode_ms - slos.step_ms) * np.maximum(records["output"] - 1, 1)
                most = max(most, int((spent > left_ms).sum()))
        return most

    def _slos(self, instances: Sequence[PlannedInstance], decoding: QuickestDecoding | None) -> _Slos:
        of = {instance.phase: self._draughtsman.phases[instance.key] for instance in instances}
        first, last = of.get("prefill") or of.get("mixed"), of.get("decode") or of.get("mixed")
        return _Slos(first, last) if decoding is None else _Slos(first, first, decoding.step_ms)

    def _outcome(self, fleet: Fleet, slos: _Slos, requests: Trace, rows: Bools) -> GroupOutcome:
        records = fleet.state.requests
        first_token: Floats = records["first_token"]
        first, last = slos.first, slos.last
        ttft_ms, tpot_ms = np.full((2, len(rows)), np.nan)
        met_ttft, met_tpot = np.ones((2, len(rows)), dtype=np.bool_)
        with np.errstate(invalid="ignore"):
            if first:
                ttft_ms[rows] = 1e3 * (first_token - records["arrival"])
                met_ttft = ttft_ms <= first.prefill_ms
            if last:
                output: Ints = records["output"]
                several = output > 1
                tokens = np.where(several, output - 1, np.nan)
                tpot_ms[rows] = 1e3 * (records["finish"] - first_token) / tokens + slos.step_ms
                met_tpot[rows] = (records["status"] == FINISHED) & (~several | (tpot_ms[rows] <= last.decode_ms))
        nodes, end = fleet.state.nodes, max(requests.last_arrival_s, 1e-9)
        return GroupOutcome(ttft_ms, tpot_ms, met_ttft, met_tpot, float(nodes["busy_s"].max(initial=0.0)) / end)

    def _blueprint(self, instance: PlannedInstance) -> Blueprint:
        if instance not in self._blueprints:
            self._blueprints[instance] = self._draughtsman.draw(instance)
        return self._blueprints[instance]


def _nowhere(model: str, region: str, phase: str) -> Blueprint:
    return Blueprint(
        key=(model,),
        name="",
        model=model,
        phase=PHASES.index(phase),
        region=region,
        nodes=np.zeros(0, dtype=NODE),
        stage_sizes=(),
        configurations=(),
        labels=(),
        weight=1.0,
        price_usd_h=0.0,
        load_s=0.0,
    )
