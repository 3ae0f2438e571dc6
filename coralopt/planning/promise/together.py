"""Whether the instances of one model hold its SLOs together: raced over windows of requests, and remembered."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coralopt.plan import PlannedInstance
from coralopt.plan.certificate import LOOKS, RefusedInstances, quantile
from coralopt.planning.promise.certificate import (
    CONFIDENCE,
    ERRORS,
    FEW_REQUESTS,
    WINDOW_S,
    Replications,
    last_look,
    looks_of,
    requests_in_window,
)
from coralopt.planning.promise.memory import keep, recalled
from coralopt.planning.promise.workers import Workers
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.simulation.groups import GroupSimulator

#: First seed of the windows in which the instances of a model are simulated together.
TOGETHER_SEED = 1_500_007
#: Windows of fewer requests count as one only together: a handful of misses among a few hundred says little.
REQUESTS_TO_TELL = 1_000
#: Windows after which a plan may be refused where it surely misses, and may pass or be refused where that is unlikely to be
#: confirmed. A few windows do not tell how rare bad ones are.
FEWEST_WINDOWS, ENOUGH = 3, 12
#: Windows of one race simulated side by side: some may be simulated for nothing.
AT_ONCE = 2
#: A plan is to be confirmed by a certificate of so many windows, or of the most that have few requests. It passes sooner
#: where that is so many standard errors of the mean from doubt, and fails where that is unlikely, or not so after this share
#: of the windows without further ones: of many plans raced the cheapest that passes is taken, which is the one that had
#: luck.
CERTIFIED_BY, SURE, UNLIKELY, DECIDED = 160, 2.0, 0.5, 1 / 2
#: It passes before so many windows only where it misses fewer than this share of what is allowed: bad windows are rare, and
#: a dozen good ones say little of them.
LATE, EARLY = 40, 0.4
#: Windows after which it is sure that an SLO is missed, where the mean is so many standard errors below the share asked for;
#: share of the certificate's windows after which that is given up.
FEWEST_TO_MISS, SURE_TO_MISS, GIVEN_UP = 5, 2.5, 1 / 4
#: A race that is to settle what shorter ones left open goes on to the certificate's last look; standard errors below the
#: share asked for after which it is sure that an SLO is missed, more since so many means are looked at; share of the windows
#: after which it ends where the others would hardly tell.
SETTLED_TO_MISS, HARDLY = 3.0, 1 / 4
#: Mean shares that so many times the misses allowed leave, and worse ones, are refused after so many windows.
HOPELESS = ((1, 5.0), (2, 3.0))


@dataclass(frozen=True)
class Together:
    """What a race told.

    Attributes:
        holds: Whether every SLO is met by the share asked for.
        shares: Kind (``"prefill"``, ``"decode"``) -> mean share of requests that met it.
        windows: Windows that it took.
        misses: Whether some SLO is surely missed; that it does not hold says less.
    """

    holds: bool
    shares: Mapping[str, float]
    windows: int = 0
    misses: bool = False

    @property
    def least(self) -> float:
        """The smallest mean share."""
        return min(self.shares.values(), default=1.0)

    @staticmethod
    def read(entry: tuple[bool, Mapping[str, float], int, bool]) -> Together:
        """An outcome as it was kept."""
        holds, shares, windows, misses = entry
        return Together(bool(holds), {kind: float(share) for kind, share in shares.items()}, int(windows), bool(misses))


class TogetherRaces:
    """Races of the instances of one model, each run once.

    Args:
        scenario: Demand, lengths, serving.
        simulator: Simulates the instances.
        digests: What decides the replications of each model phase.
        workers: Simulate windows side by side.
        remember: Whether what earlier searches found out is read.
        refused: What certificates did not confirm: these instances hold in no race.

    Attributes:
        windows_of: Model -> windows that this search asked for, those that earlier searches have simulated for it, too.
    """

    def __init__(
        self,
        scenario: ResolvedScenario,
        simulator: GroupSimulator,
        digests: Sequence[str],
        workers: Workers,
        remember: bool = True,
        refused: Sequence[RefusedInstances] = (),
    ) -> None:
        self.scenario, self.workers = scenario, workers
        self._looks = looks_of(scenario)
        self.windows = Replications(scenario, TOGETHER_SEED, simulator=simulator)
        facts = (
            tuple(digests),
            [(phase.key, phase.demand_tokens_s) for phase in scenario.model_phases],
            scenario.regions,
            (
                WINDOW_S,
                TOGETHER_SEED,
                (FEWEST_WINDOWS, REQUESTS_TO_TELL),
                ENOUGH,
                (CERTIFIED_BY, FEW_REQUESTS, DECIDED, "by the last window", self._looks),
                SURE,
                UNLIKELY,
                LATE,
                EARLY,
                HOPELESS,
                (FEWEST_TO_MISS, SURE_TO_MISS, GIVEN_UP),
                (SETTLED_TO_MISS, HARDLY),
                (CONFIDENCE, ERRORS[0]),
            ),
        )
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()
        self._name = f"together-{digest[:16]}"
        self._outcomes = recalled(self._name, Together.read) if remember else {}
        self._asked: set[str] = set()
        self._refused = {self._set(item.instances): item for item in refused}
        self.windows_of: Counter[str] = Counter()

    def requests(self, model: str) -> float:
        """Requests of a model in one window."""
        return requests_in_window(self.scenario, model)

    def race(self, instances: tuple[PlannedInstance, ...]) -> Together:
        """Whether the instances of one model hold its SLOs together."""
        if (known := self.refused(instances)) is not None:
            return known
        key = self._key(instances)
        settled = f"settled{key}"
        if settled in self._asked and self._outcomes[settled].holds:
            return self._outcomes[settled]
        return self._known(key, instances, self._raced)

    def surely_misses(self, instances: tuple[PlannedInstance, ...]) -> bool:
        """Whether the instances of one model surely miss one of its SLOs."""
        if (known := self.refused(instances)) is not None and known.misses:
            return True
        return self._known(f"misses{self._key(instances)}", instances, self._refuted).misses

    def settled(self, instances: tuple[PlannedInstance, ...]) -> Together:
        """A race that goes on where :meth:`race` and :meth:`surely_misses` gave up, as long as a certificate may.

        What it sees to hold does so from then on.
        """
        if (known := self.refused(instances)) is not None:
            return known
        return self._known(f"settled{self._key(instances)}", instances, self._settled)

    def refused(self, instances: Sequence[PlannedInstance]) -> Together | None:
        """What a certificate said of the instances of one model that it did not confirm."""
        item = self._refused.get(self._set(instances)) if self._refused else None
        if item is None:
            return None
        shares: dict[str, float] = {phase.kind: phase.mean for phase in item.phases}
        return Together(False, shares, len(item.phases[0].shares), item.is_refuted)

    def _known(
        self,
        key: str,
        instances: tuple[PlannedInstance, ...],
        find_out: Callable[[tuple[PlannedInstance, ...]], Together],
    ) -> Together:
        if key not in self._outcomes:
            self._outcomes[key] = find_out(self._in_one_place(instances))
        if key not in self._asked:
            self._asked.add(key)
            self.windows_of[self.windows.served[instances[0].model]] += self._outcomes[key].windows
        return self._outcomes[key]

    def _in_one_place(self, instances: tuple[PlannedInstance, ...]) -> tuple[PlannedInstance, ...]:
        """Which region instances share makes no difference."""
        if len({item.region for item in instances}) > 1:
            return instances
        return tuple(item.model_copy(update={"region": self.scenario.regions[0]}) for item in instances)

    def _key(self, instances: tuple[PlannedInstance, ...]) -> str:
        """Instances by what decides their races."""
        return hashlib.sha256(f"[{', '.join(self._facts(instances))}]".encode()).hexdigest()

    def _set(self, instances: Sequence[PlannedInstance]) -> tuple[str, ...]:
        """The same in any order, since a plan has another one."""
        return tuple(sorted(self._facts(tuple(instances))))

    def _facts(self, instances: tuple[PlannedInstance, ...]) -> list[str]:
        exclude = {"name", "kept", "price_usd_h"}
        facts = (item.model_dump(mode="json", exclude=exclude) for item in self._in_one_place(instances))
        return [json.dumps(item, sort_keys=True) for item in facts]

    def save(self) -> None:
        """Keep what is known for the next search."""
        outcomes = self._outcomes.items()
        keep(self._name, {key: (one.holds, dict(one.shares), one.windows, one.misses) for key, one in outcomes})

    def _raced(self, instances: tuple[PlannedInstance, ...]) -> Together:
        target = self._target(instances)
        if target is None:
            return Together(True, {})
        allowed, each = 1 - target, self._windows_to_tell(instances[0].model)
        outcome, certified_by = Together(False, {}), self.certified_by(instances[0].model)
        # Of a model with next to no requests all windows together say little, and no race may say more.
        most = min(round(DECIDED * certified_by), LOOKS[-1])
        for number, shares in self._so_far(instances, allowed, most):
            outcome = Together(False, {kind: float(np.mean(values)) for kind, values in shares.items()}, number)
            if any(number >= windows * each and outcome.least < 1 - times * allowed for windows, times in HOPELESS):
                return outcome
            if number < min(FEWEST_WINDOWS * each, most):
                continue
            limits = [(self._limit(values, certified_by), _standard_error(values)) for values in shares.values()]
            enough = LATE if outcome.least < 1 - EARLY * allowed else ENOUGH
            if number >= min(enough * each, most) and all(low - SURE * error >= target for low, error in limits):
                return replace(outcome, holds=True)
            unlikely = number >= ENOUGH * each and any(low + UNLIKELY * error < target for low, error in limits)
            if unlikely or any(float(np.mean(v)) + SURE * _standard_error(v) < target for v in shares.values()):
                return outcome
        return outcome

    def _refuted(self, instances: tuple[PlannedInstance, ...]) -> Together:
        """Whether it surely misses."""
        target = self._target(instances)
        assert target is not None
        model = instances[0].model
        outcome, most = Together(False, {}), min(round(GIVEN_UP * self.certified_by(model)), CERTIFIED_BY)
        fewest = FEWEST_TO_MISS * self._windows_to_tell(model)
        for number, shares in self._so_far(instances, 1 - target, most):
            outcome = Together(False, {kind: float(np.mean(values)) for kind, values in shares.items()}, number)
            if number < fewest:
                continue
            if any(float(np.mean(v)) + SURE_TO_MISS * _standard_error(v) < target for v in shares.values()):
                return replace(outcome, misses=True)
            if outcome.least >= target:
                break
        return outcome

    def _settled(self, instances: tuple[PlannedInstance, ...]) -> Together:
        """Until it holds or surely misses, or what is left of the windows would hardly tell."""
        model = instances[0].model
        target = self._target(instances)
        assert target is not None
        outcome, each, last = Together(False, {}), self._windows_to_tell(model), last_look(self.scenario, model)
        for number, shares in self._so_far(instances, 1 - target, last):
            means = {kind: float(np.mean(values)) for kind, values in shares.items()}
            outcome = Together(False, means, number)
            if number < FEWEST_TO_MISS * each:
                continue
            errors = {kind: _standard_error(values) for kind, values in shares.items()}
            if any(means[kind] + SETTLED_TO_MISS * error < target for kind, error in errors.items()):
                return replace(outcome, misses=True)
            passes = {kind: self._limit(values, last) - SURE * errors[kind] for kind, values in shares.items()}
            if number >= LATE * each and min(passes.values()) >= target:
                return replace(outcome, holds=True)
            if number < HARDLY * last:
                continue
            # With the errors that all windows would leave: what it takes to hold, and to miss.
            final = {kind: error * math.sqrt(number / last) for kind, error in errors.items()}
            holding = all(
                self._limit(shares[kind], last) + SURE * (error - final[kind]) >= target
                for kind, error in errors.items()
            )
            missing = any(
                means[kind] + SETTLED_TO_MISS * final[kind] - SURE * (error - final[kind]) < target
                for kind, error in errors.items()
            )
            if not holding and not missing:
                break
        return outcome

    def _so_far(
        self, instances: Sequence[PlannedInstance], allowed: float, most: int
    ) -> Iterator[tuple[int, Mapping[str, Sequence[float]]]]:
        """Windows so far and, by kind, the share of each; shares far below what may miss count as just that."""
        shares: dict[str, list[float]] = {}
        misses = allowed * self._windows_to_tell(instances[0].model)
        for number, window in enumerate(self._windows(instances, 5 * misses, most), 1):
            for kind, share in window.items():
                shares.setdefault(kind, []).append(max(share, 1 - 6 * misses))
            yield number, shares

    def _windows(
        self, instances: Sequence[PlannedInstance], most_missed: float, most: int
    ) -> Iterator[dict[str, float]]:
        """Shares of one window after the other; those after which a race may not end are simulated side by side."""
        ends = (0, 1, 2, FEWEST_WINDOWS, *range(FEWEST_WINDOWS + AT_ONCE, most, AT_ONCE), most)
        for start, end in itertools.pairwise(ends):
            self.workers.tell(f"windows of {instances[0].model}", start, most)
            yield from self.workers.map(
                lambda number: self.windows.shares(instances, self.windows.window(number), most_missed),
                range(start, end),
            )

    def certified_by(self, model: str) -> int:
        """Windows of the certificate that is to confirm a plan of a model: one of its looks."""
        return last_look(self.scenario, model, CERTIFIED_BY)

    def _target(self, instances: Sequence[PlannedInstance]) -> float | None:
        """Share of requests that is asked for; ``None`` where mean requests are planned for."""
        return next(phase.attainment for phase in self.scenario.model_phases if phase.key == instances[0].key)

    def _windows_to_tell(self, model: str) -> int:
        """Windows of a model that count as one."""
        return max(1, math.ceil(REQUESTS_TO_TELL / max(self.requests(model), 1.0)))

    def _limit(self, values: Sequence[float], windows: int) -> float:
        """Where a certificate of so many windows like these would place its lower limit."""
        sharing = len(self.scenario.model_phases) * len(self._looks) / ERRORS[0]
        reach = quantile(windows - 1, CONFIDENCE, sharing)
        return float(np.mean(values) - reach * np.std(values, ddof=1) / math.sqrt(windows))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
