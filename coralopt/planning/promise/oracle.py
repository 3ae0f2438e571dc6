"""Whether a group of equal instances holds its SLO at a rate: simulated with requests common to all, and remembered."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from coralopt import routing, simulation
from coralopt._version import __version__
from coralopt.plan import PlannedInstance
from coralopt.planning.promise.instances import MOST_NUMBERS, WIDTHS, GroupPart, PhaseInstances
from coralopt.planning.promise.memory import keep, recalled
from coralopt.planning.promise.workers import Workers
from coralopt.planning.stages import StageTables
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation.groups import GroupSimulator, QuickestDecoding
from coralopt.simulation.possible import possible_requests, quickest_steps_ms
from coralopt.templates import PhaseTemplates
from coralopt.throughput import throughput_source
from coralopt.types import Bools
from coralopt.workload import Trace, poisson_for_scenario

#: Modules of the simulator that replications run; the others report.
SIMULATOR_MODULES: tuple[str, ...] = ("compiled", "state", "queues", "kernels", "turns", "scheduling", "coordinator")
SIMULATOR_MODULES += ("events", "config", "times", "layout", "fleet", "groups")
#: Digest of these and of routing: what was found out by other rules does not hold.
RULES = hashlib.sha256(
    b"".join(
        path.read_bytes()
        for path in (
            Path(routing.__file__),
            *(Path(simulation.__file__).with_name(f"{name}.py") for name in SIMULATOR_MODULES),
        )
    )
).hexdigest()
Verdict = Literal["holds", "fails", "unclear"]
#: From the best to the worst.
VERDICTS: tuple[Verdict, ...] = ("holds", "unclear", "fails")
#: Seed of the requests that the search simulates; certificates use others.
SEARCH_SEED = 1_000_003
#: Requests of one replication: so many that this many may miss.
MAY_MISS, FEWEST, MOST = 50, 3_000, 30_000
#: Replications until a verdict is given up.
REPLICATIONS = 12
#: Replications of a verdict on which a bound hangs, when few did not tell; standard errors of the mean that decide then.
MANY, MANY_ERRORS = (60, 120), 2.5
#: One replication decides where misses are so many times as many as allowed, or fewer than this share of it.
SURE_FAIL, SURE_HOLD = 2.0, 0.4
#: Several decide where their mean is farther from what is allowed than this many standard errors.
ERRORS = 1.5
#: Idle times are held against the prompt length that so much more than the share allowed exceeds.
IDLE_SLACK = 0.1
#: Load at which nothing waits, and templates looked at for what is possible at best.
IDLE_LOAD, SHOWN = 0.01, 10
#: Standard errors beyond what may miss at which an idle instance says that its template is hopeless.
IDLE_ERRORS = 3.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of one group.

    Attributes:
        verdicts: (rate in requests/s, verdict, share of misses, replications), oldest first.
    """

    verdicts: list[tuple[float, Verdict, float, int]] = field(default_factory=list)

    @staticmethod
    def read(rows: Sequence[tuple[float, Verdict, float, int]]) -> Evidence:
        """Evidence as it was kept."""
        return Evidence(
            [(float(rate), verdict, float(missed), int(replications)) for rate, verdict, missed, replications in rows]
        )

    def at(self, rate: float, many: bool = False) -> Verdict | None:
        """What follows for a rate from few replications, or from many: what holds at a rate holds below it, what fails
        at one fails above.

        Few replications tell the same whether or not many were made before, so that a repeated search takes the same way.
        """
        verdicts = [
            (known, verdict)
            for known, verdict, _, replications in self.verdicts
            if (replications > REPLICATIONS) == many
        ]
        same = [verdict for known, verdict in verdicts if known == rate]
        if same:
            return same[-1]
        if any(verdict == "holds" and known >= rate for known, verdict in verdicts):
            return "holds"
        return "fails" if any(verdict == "fails" and known <= rate for known, verdict in verdicts) else None

    def replications_at(self, rate: float, many: bool = False) -> int:
        """Replications that told of this very rate."""
        return sum(
            replications
            for known, *_, replications in self.verdicts
            if known == rate and (replications > REPLICATIONS) == many
        )


class PhaseOracle:
    """Groups of the templates of one model phase, simulated at any rate.

    Args:
        scenario: Lengths, links, serving.
        phase: The model phase.
        templates: Its templates.
        tables: Throughput tables of stages.
        simulator: Simulates groups of its instances.
        remember: Whether what earlier searches found out is read.

    Attributes:
        replications: Simulations that this search asked for, those that earlier searches have made for it, too.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        phase: ModelPhase,
        templates: PhaseTemplates,
        tables: StageTables,
        simulator: GroupSimulator,
        remember: bool = True,
    ) -> None:
        self.scenario, self.phase, self.templates, self.tables, self.simulator = (
            scenario,
            phase,
            templates,
            tables,
            simulator,
        )
        # Idle replicas have no SLO to meet.
        self.target = phase.attainment if phase.demand_tokens_s > 0 else None
        self.replications = 0
        self.requests = int(min(MOST, max(FEWEST, MAY_MISS / (1.0 - (self.target or 0.0)))))
        #: Instances of its groups.
        self.instances = PhaseInstances(scenario, phase, templates, tables)
        self._traces: dict[int, tuple[Trace, QuickestDecoding | None]] = {}
        self._asked: set[tuple[str, float, bool]] = set()
        self.digest = self._digest()
        self._name = f"{phase.key.replace('/', '-')}-{self.digest[:16]}"
        self.evidence = recalled(self._name, Evidence.read) if remember else {}

    def rate(self, tokens_s: float) -> float:
        """Requests/s of so many tokens/s of the phase."""
        return tokens_s / self.phase.request_tokens

    def too_slow(self) -> Bools:
        """bool (T,): templates on which, though idle, a larger share of prompts than may miss takes longer than the SLO.

        All prompts beyond a quantile take at least as long as one of that length on the quickest node of each stage.
        """
        templates, phase = self.templates, self.phase
        share = 0.0 if self.target is None else self.target - IDLE_SLACK * (1.0 - self.target)
        if share <= 0.0 or phase.phase != "prefill":
            return np.zeros(len(templates), dtype=np.bool_)
        tokens = float(phase.lengths.input.quantile([share])[0])
        source = throughput_source(self.scenario.throughput_source)
        layer_ms = [
            float(source.times(phase.model, c).prefill_ms(np.ones(1), tokens)[0][0])
            for c in self.scenario.configurations
        ]
        quickest = np.full(templates.stage_layers.shape, np.inf)
        for node in range(templates.node_stage.shape[1]):
            rows = np.flatnonzero(templates.node_stage[:, node] >= 0)
            stage, own = templates.node_stage[rows, node], np.array(layer_ms)[templates.node_configuration[rows, node]]
            quickest[rows, stage] = np.minimum(quickest[rows, stage], own)
        layers = templates.stage_layers.astype(np.float64)
        idle_ms = (layers * np.where(layers > 0, quickest, 0.0)).sum(axis=1)
        return np.asarray(idle_ms > phase.prefill_ms)

    def best_share(self, workers: Workers, requests: int | None = None) -> tuple[float, str, int | None]:
        """The largest share of requests that meets the SLO on one idle instance, its nodes in words, and its template.

        Looked at are templates of one node, and those of most throughput; without templates, layer times alone.

        Args:
            workers: Simulate them side by side.
            requests: How many are simulated; those of a replication when ``None``.
        """
        templates = self.templates
        if not len(templates.throughput):
            possible = possible_requests(self.scenario, self.requests_at(0, 1.0))
            kinds = [met for (name, _), met in possible.items() if name == self.phase.served]
            return float(np.all(kinds, axis=0).mean()), "the quickest node", None
        some = self._likely()
        missed = self.idle_missed(some, 1.0, workers, requests)
        k = int(np.argmin(missed))
        return 1.0 - missed[k], nodes_in_words([self.instance(some[k])]), some[k]

    def best_share_sent(self, workers: Workers) -> tuple[float, str]:
        """The same of a prefill phase where KV caches are to be in time for the quickest decoding, too; nodes may be cut
        into pipelines. Without the template."""
        groups = [
            self.instances.parts(parts)
            for template in self._likely()
            for count in (1, *WIDTHS)
            for parts in ((GroupPart(template, count),), *self.instances.pipelines(template, count, 0.0))
        ]

        def met(group: Sequence[PlannedInstance]) -> float:
            requests = self.requests_at(0, IDLE_LOAD * self.rate(min(item.tokens_s for item in group)))
            return 1.0 - self.simulator.simulate(group, requests, decoding=self._of_replication(0)[1]).missed

        shares = workers.map(met, groups)
        k = int(np.argmax(shares))
        return shares[k], nodes_in_words(groups[k])

    def _likely(self) -> list[int]:
        """Templates of one node, and those of most throughput."""
        single = np.flatnonzero(self.templates.usage.sum(axis=1) == 1)
        return [int(t) for t in np.unique(np.concatenate([single, np.argsort(-self.templates.throughput)[:SHOWN]]))]

    def hopeless(self, templates: Sequence[int], workers: Workers) -> list[int]:
        """Those of some templates that one instance, though idle, misses the SLO on for more requests than may miss: no
        number of them holds anything."""
        allowed = 1.0 - (self.target or 0.0)
        most = allowed + IDLE_ERRORS * math.sqrt(allowed * (1.0 - allowed) / self.requests)
        return [
            template
            for template, missed in zip(templates, self.idle_missed(templates, most, workers), strict=True)
            if missed > most
        ]

    def idle_missed(
        self, templates: Sequence[int], most: float, workers: Workers, requests: int | None = None
    ) -> list[float]:
        """Share of requests that miss the SLO on one idle instance of each template; a run ends beyond ``most``, so that a
        larger share says no more than that."""
        few = len(self.requests_at(0, 1.0)) if requests is None else requests
        looked_at = itertools.count(1)

        def missed(template: int) -> float:
            workers.tell(f"idle instances for {self.phase.key}", next(looked_at), len(templates))
            trace = self.requests_at(0, IDLE_LOAD * self.rate(float(self.templates.throughput[template])))
            return self.simulator.simulate(
                [self.instance(template)], trace.take(np.arange(len(trace)) < few), most
            ).missed

        return workers.map(missed, templates)

    def verdict(self, template: int, count: int, rate: float, many: bool = False) -> Verdict:
        """Whether ``count`` instances of a template hold the SLO at so many requests/s, by few replications or by many."""
        key = self._key(template, count)
        evidence = self.evidence.setdefault(key, Evidence())
        known = evidence.at(rate, many)
        if known is None:
            known, missed, replications = self._race(template, count, rate, many)
            evidence.verdicts.append((rate, known, missed, replications))
        if (key, rate, many) not in self._asked:
            self._asked.add((key, rate, many))
            self.replications += evidence.replications_at(rate, many)
        return known

    def requests_at(self, replication: int, rate: float) -> Trace:
        """The requests of one replication: the same for every group, and but for their distances the same at every rate."""
        trace, _ = self._of_replication(replication)
        return replace(trace, arrival_s=trace.arrival_s / rate)

    def _of_replication(self, replication: int) -> tuple[Trace, QuickestDecoding | None]:
        """The requests of one replication at one request/s, and how quickly answers to them are decoded at best."""
        if replication not in self._traces:
            trace = requests_alone(self.scenario, self.phase, self.requests, SEARCH_SEED + replication)
            decoding = None
            if self.phase.phase == "prefill":
                decoding = QuickestDecoding(quickest_steps_ms(self.scenario, self.phase, trace))
            self._traces[replication] = trace, decoding
        return self._traces[replication]

    def instance(self, template: int) -> PlannedInstance:
        """One instance of a template as a plan shows it."""
        return self.instances.of(template)

    def save(self) -> None:
        """Keep what is known for other demands and prices."""
        keep(self._name, {key: item.verdicts for key, item in self.evidence.items()})

    def _race(self, template: int, count: int, rate: float, many: bool = False) -> tuple[Verdict, float, int]:
        """Verdict, share of misses and replications of a group.

        A prefill group is to send KV caches in time, too: whole, or where first tokens alone are in time, cut into
        pipelines.
        """
        whole = self.instances.parts((GroupPart(template, count),))
        best = self._raced(whole, rate, many, caches=self.phase.phase == "prefill")
        replications = best[2]
        if best[0] == "fails" and self.phase.phase == "prefill":
            alone = self._raced(whole, rate, many, caches=False)
            replications += alone[2]
            tokens_s = rate * max(self.phase.mean_input_tokens, 1.0)
            cuts = self.instances.pipelines(template, count, tokens_s) if alone[0] != "fails" else ()
            for parts in cuts:
                cut = self._raced(self.instances.parts(parts), rate, many, caches=True)
                replications += cut[2]
                best = min(best, cut, key=lambda outcome: (VERDICTS.index(outcome[0]), outcome[1]))
                if best[0] == "holds":
                    break
        # Verdicts of few replications are told from those of many by their number.
        return best[0], best[1], replications if many else min(replications, REPLICATIONS)

    def _raced(
        self, group: Sequence[PlannedInstance], rate: float, many: bool, caches: bool
    ) -> tuple[Verdict, float, int]:
        """The same of some instances; with or without KV caches in time."""
        assert self.target is not None
        allowed = 1.0 - self.target
        # Of many replications the mean counts, so that each is simulated to its end.
        most = 1.0 if many else SURE_FAIL * allowed
        shares: list[float] = []
        for look in MANY if many else range(1, REPLICATIONS + 1):
            while len(shares) < look:
                requests, (_, decoding) = self.requests_at(len(shares), rate), self._of_replication(len(shares))
                outcome = self.simulator.simulate(group, requests, most, decoding=decoding if caches else None)
                shares.append(min(outcome.missed, most * 1.01))
            verdict = judge_many(shares, allowed) if many else judge(shares, allowed)
            if verdict != "unclear":
                break
        return verdict, float(np.mean(shares)), len(shares)

    def _key(self, template: int, count: int) -> str:
        placement = self.templates.placement(template)
        stages = ";".join(f"{stage.layers}:{','.join(map(str, stage.nodes))}" for stage in placement.stages)
        return f"{count}x{stages}"

    def _digest(self) -> str:
        """SHA-256 hex of everything that decides a verdict but template, count and rate."""
        phase, table = self.phase, self.tables.plain[self.phase.key]
        facts = (
            __version__,
            RULES,
            # Demand and headroom decide the rate, which every verdict names.
            {**vars(phase), "demand_tokens_s": 0.0, "throughput_headroom": 0.0},
            self.scenario.configurations,
            self.scenario.placement,
            self.scenario.throughput_source,
            table.provenance,
            (self.target, self.requests, SEARCH_SEED, REPLICATIONS, SURE_FAIL, SURE_HOLD, ERRORS, WIDTHS, MOST_NUMBERS),
        )
        digest = hashlib.sha256(repr(facts).encode())
        for array in (table.values, table.batch, table.stage_ms):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def judge(shares: Sequence[float], allowed: float) -> Verdict:
    """What the shares of misses of several replications say against the share that may miss."""
    mean = float(np.mean(shares))
    if len(shares) == 1:
        return "fails" if mean > SURE_FAIL * allowed else "holds" if mean < SURE_HOLD * allowed else "unclear"
    error = float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
    if abs(mean - allowed) <= ERRORS * max(error, 0.05 * allowed):
        return "unclear"
    return "fails" if mean > allowed else "holds"


def judge_many(shares: Sequence[float], allowed: float) -> Verdict:
    """The same of many replications."""
    mean = float(np.mean(shares))
    if abs(mean - allowed) <= MANY_ERRORS * float(np.std(shares, ddof=1)) / math.sqrt(len(shares)):
        return "unclear"
    return "fails" if mean > allowed else "holds"


def nodes_in_words(instances: Sequence[PlannedInstance]) -> str:
    """Such as ``1xL4 + 2 of 1xL40S (pipeline of 3 stages)``."""
    nodes: dict[str, int] = {}
    for instance in instances:
        for name, count in instance.nodes().items():
            nodes[name] = nodes.get(name, 0) + count * instance.count
    words = " + ".join(name if count == 1 else f"{count} of {name}" for name, count in nodes.items())
    stages = max(len(instance.stages) for instance in instances)
    return words if stages == 1 else f"{words} (pipeline of {stages} stages)"


def requests_alone(scenario: ResolvedScenario, phase: ModelPhase, count: int, seed: int) -> Trace:
    """About ``count`` requests of one model, as the scenario describes them, at one request/s."""
    trace = poisson_for_scenario(scenario, 1.0, float(count), seed)
    return trace.take(trace.model == trace.models.index(phase.served))
