"""Whether a plan holds its SLOs for the share of requests asked for: replications with fresh seeds, judged by intervals."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence

import numpy as np

from coralopt.errors import OptionError
from coralopt.plan import Certificate, CertifiedPhase, Plan, PlannedInstance
from coralopt.plan.certificate import FURTHER_LOOKS, LOOKS, RefusedInstances
from coralopt.plan.parts import share_of
from coralopt.plan.verify.certified import certified, kinds_of, requests_s, with_requests
from coralopt.planning.promise.workers import Workers
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation import simulate
from coralopt.simulation.groups import GroupSimulator
from coralopt.simulation.variants import by_variant
from coralopt.types import Bools, Progress
from coralopt.workload import Trace, poisson_for_scenario

#: First seed of certificates; no search uses it or a later one.
FIRST_SEED = 2_000_003
#: Seconds of arrivals of one replication.
WINDOW_S = 600.0
CONFIDENCE = 0.95
#: Share of the error that each attempt at a plan may have. The first has most of it, as most plans need no second.
ERRORS = (0.9, 0.09, 0.009, 0.0009)
#: Requests of windows that are kept to be simulated again; of windows beyond these only so many of the latest.
MOST_KEPT, LATEST = 5_000_000, 16
#: Requests of a model in all windows up to which there are further looks.
FEW_REQUESTS = 1_000_000
#: Seed and seconds of arrivals of the one window that says what to expect of a plan without a certificate.
GLANCE_SEED, GLANCE_S = 1_900_009, 120.0

#: (model, kind of SLO) -> share of requests that met it, by window.
Shares = dict[tuple[str, str], list[float]]


class Replications:
    """Windows of requests by number, and what groups of instances do with them.

    Args:
        scenario: Demand, lengths, serving.
        first_seed: Seed of the first window.
        window_s: Seconds of arrivals.
        simulator: Simulates the instances of one model.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        first_seed: int,
        window_s: float = WINDOW_S,
        simulator: GroupSimulator | None = None,
    ) -> None:
        self.scenario, self.first_seed, self.window_s = scenario, first_seed, window_s
        self.simulator = simulator or GroupSimulator(scenario)
        #: Model, or variant of one -> model that requests ask for.
        self.served = {phase.model.name: phase.served for phase in scenario.model_phases}
        self._windows: dict[int, Trace] = {}
        self._latest: dict[int, Trace] = {}
        self._kept = 0
        self._making = threading.Lock()

    def shares(
        self, instances: Sequence[PlannedInstance], trace: Trace, most_missed: float = 1.0, mixed_share: float = 1.0
    ) -> dict[str, float]:
        """Kind (``"prefill"``: time to first token, ``"decode"``: per output token) -> share of requests that met, alone
        the instances of one model in one window; empty in a window without requests."""
        mine = trace.take(self._mine(instances[0].model, trace))
        if not len(mine):
            return {}
        outcome = self.simulator.simulate(instances, mine, most_missed, mixed_share)
        phases = {item.phase for item in instances}
        met = {"prefill": outcome.met_ttft, "decode": outcome.met_tpot}
        return {kind: float(met[kind].mean()) for kind in met if kind in phases or "mixed" in phases}

    def _mine(self, own: str, trace: Trace) -> Bools:
        """bool (n,): requests of a model; all are for the model itself, where no plan shares them out over its variants."""
        name = own if own in trace.models else self.served[own]
        return trace.model == trace.models.index(name) if name in trace.models else np.zeros(len(trace), dtype=np.bool_)

    def add(self, plan: Plan, windows: Sequence[tuple[int, str]], shares: Shares, workers: Workers, what: str) -> None:
        """Simulate windows by number, each with one model of a plan; ``what`` is how progress calls them."""
        instances = {model: instances_of(plan, model) for _, model in windows}

        def simulate(window: tuple[int, str]) -> dict[str, float]:
            number, model = window
            workers.tell(what, number, windows[-1][0] + 1)
            mixed, whole = (share_of(plan.modes, f"{model}/{phase}") for phase in ("mixed", "prefill"))
            # Of a variant's requests, that share of the model's.
            mixed /= mixed + whole if mixed + whole > 0 else 1.0
            return self.shares(instances[model], by_variant(self.window(number), [(0.0, plan)]), mixed_share=mixed)

        for (_, model), simulated in zip(windows, workers.map(simulate, windows), strict=True):
            for kind, share in simulated.items():
                shares.setdefault((model, kind), []).append(share)

    def window(self, number: int) -> Trace:
        """The requests of one window."""
        with self._making:
            trace = self._windows.get(number, self._latest.get(number))
            if trace is None:
                trace = poisson_for_scenario(self.scenario, None, self.window_s, self.first_seed + number)
                if self._kept + len(trace) <= MOST_KEPT:
                    self._windows[number] = trace
                    self._kept += len(trace)
                else:
                    # Many windows of a model with few requests may hold a great many of the others.
                    self._latest[number] = trace
                    if len(self._latest) > LATEST:
                        del self._latest[next(iter(self._latest))]
            return trace

    def with_requests(self, plan: Plan, model: str, count: int, looks: Sequence[int]) -> list[int]:
        """Numbers of the first ``count`` windows that have requests of a model of a plan, in those until the last look."""
        numbers: list[int] = []
        for number in range(looks[-1]):
            if len(numbers) == count:
                break
            if self._mine(model, by_variant(self.window(number), [(0.0, plan)])).any():
                numbers.append(number)
        return numbers

    def forget(self) -> None:
        """Drop the requests of all windows so far."""
        with self._making:
            self._windows.clear()
            self._latest.clear()
            self._kept = 0


def requests_in_window(scenario: ResolvedScenario, model: str) -> float:
    """Requests of a model in one window."""
    return WINDOW_S * requests_s(scenario, model)


def looks_of(scenario: ResolvedScenario) -> tuple[int, ...]:
    """Windows after which a certificate looks whether more are needed: further ones where some model has few requests."""
    phases = (phase for phase in scenario.model_phases if phase.attainment is not None and phase.demand_tokens_s > 0)
    last = max((last_look(scenario, phase.served) for phase in phases), default=LOOKS[-1])
    return LOOKS + tuple(look for look in FURTHER_LOOKS if look <= last)


def last_look(scenario: ResolvedScenario, model: str, fewest: int = LOOKS[-1]) -> int:
    """Windows of the last look that has few requests of a model, or so many where that is more; those that a certificate
    simulates the model in at most."""
    requests = requests_in_window(scenario, model)
    return max([fewest, *(look for look in LOOKS + FURTHER_LOOKS if look * requests <= FEW_REQUESTS)])


def certify(
    plan: Plan,
    first_seed: int = FIRST_SEED,
    progress: Progress | None = None,
    before: Plan | None = None,
) -> Certificate:
    """Simulate windows of fresh requests against a plan until it is known of every SLO whether it is met.

    Models that miss one, or whose SLOs are all confirmed, need no further windows. Looks are taken after so many windows as
    :func:`looks_of` says; SLOs, looks and attempts share the error, so that all that is confirmed is so at
    :data:`CONFIDENCE` together.

    Args:
        plan: The plan; models planned for mean requests are simulated and judged against nothing. What a certificate of it
            says of earlier attempts stays.
        first_seed: Seed of the first window of the first attempt.
        progress: Told how many windows are simulated.
        before: A plan that its certificate did not confirm: this one is the next attempt. Models that were confirmed and
            have the same instances keep their windows, those of the others are fresh.

    Raises:
        OptionError: Models share nodes or classes instances, so that none can be simulated alone.
    """
    if any(item.shared for item in plan.instances) or plan.resolved.models_in_classes:
        raise OptionError(
            "no certificate for models that share nodes, or requests in classes: windows are simulated model by model; "
            "coralopt simulate simulates the whole plan"
        )
    models, own = list(dict.fromkeys(item.model for item in with_requests(plan))), plan.certificate
    refused = refused_by_now(before) if before is not None else () if own is None else own.refused
    attempt, kept = 1 + max((item.attempt for item in refused), default=0), tuple[CertifiedPhase, ...]()
    mark = Certificate(
        first_seed=first_seed,
        window_s=WINDOW_S,
        confidence=CONFIDENCE,
        looks=looks_of(plan.resolved),
        errors=ERRORS[:attempt],
        phases=(),
        refused=refused,
    )
    if before is not None and before.certificate is not None:
        failed = {item.model for item in refused if item.attempt == attempt - 1}
        same = {m for m in models if m not in failed and instances_of(plan, m) == instances_of(before, m)}
        kept = tuple(phase for phase in before.certificate.phases if phase.model in same)
    attempts = dict.fromkeys(models, attempt) | {phase.model: phase.attempt for phase in kept}
    shares: Shares = {(phase.model, phase.kind): list(phase.shares) for phase in kept}
    for item in itertools.product(models, ("prefill", "decode")):
        if item in kinds_of(plan):
            shares.setdefault(item, [])
    windows, workers, phases = Replications(plan.resolved, mark.seed(attempt)), Workers(progress), kept
    open_ = [model for model in models if model not in {phase.model for phase in kept}]
    for start, look in itertools.pairwise((0, *mark.looks)):
        if not open_:
            break
        wanted = [(number, model) for number in range(start, look) for model in open_]
        windows.add(plan, wanted, shares, workers, "windows of fresh requests")
        windows.forget()
        shares = dict(sorted(shares.items(), key=lambda item: models.index(item[0][0])))
        phases = certified(plan, mark, shares, attempts)
        missed = {phase.model for phase in phases if phase.verdict == "refuted"}
        undecided = {phase.model for phase in phases if phase.verdict == "open"} - missed
        open_ = [model for model in open_ if model in undecided and last_look(plan.resolved, model) > look]
    return mark.model_copy(update={"phases": phases})


def refused_by_now(plan: Plan) -> tuple[RefusedInstances, ...]:
    """What the certificate of a plan refused: in attempts before it, and its own instances of models that failed."""
    mark = plan.certificate
    if mark is None:
        return ()
    own = (
        RefusedInstances(
            first_seed=mark.seed(len(mark.errors)),
            instances=instances_of(plan, model),
            modes=plan.modes,
            phases=tuple(phase for phase in mark.phases if phase.model == model),
        )
        for model in mark.failed
    )
    return (*mark.refused, *own)


def certify_again(plan: Plan, progress: Progress | None = None) -> tuple[str, ...]:
    """Simulate the windows of a plan's certificate once more, those of earlier attempts, too.

    Returns:
        One sentence for every SLO whose shares are not those of the certificate; empty when it stands.
    """
    mark = plan.certificate
    if mark is None:
        return ()
    parts: list[tuple[Plan, int, list[CertifiedPhase]]] = [
        (plan, mark.seed(attempt), [phase for phase in mark.phases if phase.attempt == attempt])
        for attempt in sorted({phase.attempt for phase in mark.phases})
    ]
    for item in mark.refused:
        earlier = plan.model_copy(update={"instances": item.instances, "modes": item.modes})
        parts.append((earlier, item.first_seed, list(item.phases)))
    workers, different = Workers(progress), list[str]()
    for own, seed, phases in parts:
        windows, shares = Replications(plan.resolved, seed, mark.window_s), Shares()
        counts = {phase.model: len(phase.shares) for phase in phases}
        wanted = [
            (k, model) for model, count in counts.items() for k in windows.with_requests(own, model, count, mark.looks)
        ]
        windows.add(own, wanted, shares, workers, "windows simulated again")
        again = [(phase, shares.get((phase.model, phase.kind), [])) for phase in phases]
        different += [
            f"certificate: {phase.model}, {phase.kind}: {phase.mean:.4%} met in the plan, "
            f"{np.mean(values):.4%} when simulated again"
            for phase, values in again
            if len(values) != len(phase.shares) or not np.allclose(values, phase.shares, rtol=0, atol=1e-9)
        ]
    return tuple(different)


def expected_shares(plan: Plan) -> dict[str, float]:
    """Model phase -> share of requests expected within its SLO: those of the certificate, or of one short simulation.

    Raises:
        WorkloadError: The scenario has no demand.
    """
    if plan.certificate is None:
        # Whole, since models may share nodes, and classes instances.
        trace = poisson_for_scenario(plan.resolved, None, GLANCE_S, GLANCE_SEED)
        rows = [(row.key, row.attainment) for row in simulate(plan, trace).outcomes if not math.isnan(row.attainment)]
    else:
        phases = {phase.key for phase in plan.resolved.model_phases}
        # In mode auto some requests of either kind are served by mixed instances.
        rows = [
            (key if (key := f"{item.model}/{item.kind}") in phases else f"{item.model}/mixed", item.mean)
            for item in plan.certificate.phases
            if item.shares
        ]
    expected: dict[str, float] = {}
    for key, share in rows:
        expected[key] = min(expected.get(key, 1.0), share)
    return expected


def instances_of(plan: Plan, model: str) -> tuple[PlannedInstance, ...]:
    """Those of one model that get requests."""
    return tuple(item for item in with_requests(plan) if item.model == model)
