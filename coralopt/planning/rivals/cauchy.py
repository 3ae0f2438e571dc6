"""Cauchy: prefill and decode on different hardware, paired in GPU combos of most Token/USD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coralopt.allocation import Allocation
from coralopt.errors import InfeasibleError, Mistake, NoSolutionError, ScenarioError
from coralopt.planning.request import PlanOutcome, PlanRequest, count_setting, setting
from coralopt.planning.rivals.combos import ComboProblem
from coralopt.planning.rivals.strategies import HomogeneousPlanner, Strategies, StrategyChoice
from coralopt.scenario.facts.phases import ModelPhase
from coralopt.solving import Reason, Solution, solve
from coralopt.types import Floats, Ints


class CauchyPlanner(HomogeneousPlanner):
    """Cauchy as the paper adapts it (section 5.1).

    Cauchy (Zhang et al., SoCC 2025) deploys prefill and decode on heterogeneous GPUs: it "allocates GPUs in the form of
    GPU Combo", "works out the top performers of cost efficiency", Token/USD, "as GPU Combo candidates, and deploys a set of
    combos to satisfy QoS requirements (e.g., goodput)" (its abstract). Each replica is homogeneous. The paper "retains
    their cost-efficiency model and resource-allocation algorithm, but extends their GPU-combo definition so that a single
    prefill replica can feed multiple decode replicas", and says that it "encodes per-model cost efficiency directly in its
    ILP objective" (section 5.4).

    Neither Cauchy's code nor its exact programme is public. What the sentences above leave open is decided here and said
    in :mod:`coralopt.planning.rivals.combos`: a combo's price is weighted with its model's best Token/USD over its own. The
    setting ``objective: cost`` minimises the plain price over the same combos instead, which is the most that this
    family of plans can do.
    """

    name = "cauchy"
    summary = "combos of one prefill and several decode replicas, each homogeneous; ILP over Token/USD"
    source = "Cauchy (Zhang et al., SoCC 2025), as the paper's section 5.1 extends it"
    settings: Mapping[str, object] = {
        "homogeneous": "configuration",
        "objective": "efficiency",
        "decode_replicas": 16,
        "candidates": 40,
    }

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """As every planner; prefill and decode must be apart.

        Raises:
            ScenarioError: The scenario has mixed instances.
        """
        if any(phase.phase == "mixed" for phase in request.scenario.model_phases):
            problem = "planner 'cauchy' pairs prefill with decode and has no mixed instances"
            raise ScenarioError(request.scenario.name, [Mistake("mode", problem, "use mode: disaggregated")])
        return super().plan(request)

    def choose(self, strategies: Strategies, request: PlanRequest) -> StrategyChoice:
        """Combos; the candidates are doubled until they can meet every demand."""
        kept, objective = count_setting(self, request, "candidates"), setting(self, request, "objective")
        combos = all_combos(strategies, count_setting(self, request, "decode_replicas"))
        while True:
            problem = combos.problem(top_combos(combos, kept), strategies, objective)
            solution: Solution[Ints] = solve(problem, request.backend, None, request.solve_options)
            if solution.termination.reason not in (Reason.INFEASIBLE, Reason.INFEASIBLE_OR_UNBOUNDED):
                break
            if kept >= len(combos.price):
                raise InfeasibleError(
                    f"planner 'cauchy': no set of combos meets every demand from what the regions offer "
                    f"({len(combos.price):,} combos)"
                )
            kept *= 2
        if solution.answer is None:
            raise NoSolutionError("planner 'cauchy': no set of combos was found in time; allow more of it", solution)
        allocation = combos.allocation(top_combos(combos, kept), solution.answer, strategies)
        note = f"the gap is that of Cauchy's own programme, objective {objective!r}, over its combos"
        return StrategyChoice(allocation, request.backend, solution.gap, (note,))


@dataclass(frozen=True, eq=False)
class Combos:
    """Combos as arrays, K of them.

    Attributes:
        prefill, decode: int64 (K,), rows of the strategies' problem.
        replicas: int64 (K,), decode replicas.
        region: int64 (K,).
        model: int64 (K,), index of the model.
        price: float64 (K,), USD/h.
        goodput: float64 (K,), requests/s.
        efficiency: float64 (K,), Token/USD.
        demand: float64 (M,), requests/s by model.
    """

    prefill: Ints
    decode: Ints
    replicas: Ints
    region: Ints
    model: Ints
    price: Floats
    goodput: Floats
    efficiency: Floats
    demand: Floats

    def problem(self, chosen: Ints, strategies: Strategies, objective: str) -> ComboProblem:
        """The integer programme over some combos."""
        allocation = strategies.problem
        regions, configurations = allocation.price.shape
        nodes = allocation.usage.astype(np.int64)
        usage = np.zeros((len(chosen), regions, configurations), dtype=np.int64)
        used = nodes[self.prefill[chosen]] + self.replicas[chosen, None] * nodes[self.decode[chosen]]
        usage[np.arange(len(chosen)), self.region[chosen]] = used
        return ComboProblem(
            price=self.price[chosen],
            goodput=self.goodput[chosen],
            efficiency=self.efficiency[chosen],
            model=self.model[chosen],
            usage=usage.reshape(len(chosen), regions * configurations),
            demand=self.demand,
            availability=allocation.availability.ravel().astype(np.int64),
            objective=objective,
        )

    def allocation(self, chosen: Ints, counts: Ints, strategies: Strategies) -> Allocation:
        """The replicas of some combos as instances of templates."""
        instances: dict[tuple[int, int], int] = {}
        for k, count in zip(chosen.tolist(), counts.tolist(), strict=True):
            if count:
                region = int(self.region[k])
                for template, replicas in ((int(self.prefill[k]), 1), (int(self.decode[k]), int(self.replicas[k]))):
                    instances[template, region] = instances.get((template, region), 0) + count * replicas
        return Allocation.of(instances)


def all_combos(strategies: Strategies, most_replicas: int) -> Combos:
    """Every combo of the scenario: prefill and decode strategy of one model in one region, and k decode replicas.

    k goes up to where decode no longer holds prefill back, and at most to ``most_replicas``.
    """
    problem, scenario = strategies.problem, strategies.scenario
    price = problem.template_price()
    most = problem.most_instances()
    phases = scenario.model_phases
    names = list(dict.fromkeys(phase.model.name for phase in phases))
    combos: list[tuple[float, ...]] = []
    demand = np.zeros(len(names))
    for m, name in enumerate(names):
        p = next(i for i, phase in enumerate(phases) if phase.model.name == name and phase.phase == "prefill")
        d = next(i for i, phase in enumerate(phases) if phase.model.name == name and phase.phase == "decode")
        demand[m] = max(_requests(phases[p]), _requests(phases[d]))
        tokens = phases[p].mean_input_tokens + phases[p].mean_output_tokens
        for r in range(len(scenario.regions)):
            first, second = (
                [t for t in strategies.phase_rows(i).tolist() if most[t, r] > 0 and not np.isnan(price[t, r])]
                for i in (p, d)
            )
            for t in first:
                takes = float(problem.throughput[t]) / phases[p].mean_input_tokens
                for u in second:
                    gives = float(problem.throughput[u]) / phases[p].mean_output_tokens
                    enough = min(most_replicas, max(1, int(np.ceil(takes / gives))))
                    for k in range(1, enough + 1):
                        goodput = min(takes, k * gives)
                        cost = float(price[t, r] + k * price[u, r])
                        efficiency = goodput * tokens * 3600.0 / cost if cost > 0 else np.finfo(float).max
                        # A hair less, so that the replicas' own tokens/s always meet the demand in tokens/s.
                        combos.append((t, u, k, r, m, cost, goodput * (1 - 1e-12), efficiency))
    columns = np.array(combos, dtype=np.float64).reshape(-1, 8).T
    prefill, decode, replicas, region, model = columns[:5].astype(np.int64)
    price_usd_h, goodputs, efficiencies = columns[5:]
    return Combos(prefill, decode, replicas, region, model, price_usd_h, goodputs, efficiencies, demand)


def _requests(phase: ModelPhase) -> float:
    """Requests/s behind a demand in tokens/s, headroom included."""
    mean = phase.mean_input_tokens if phase.phase == "prefill" else phase.mean_output_tokens
    return phase.needed_tokens_s / mean


def top_combos(combos: Combos, kept: int) -> Ints:
    """The ``kept`` combos of most Token/USD of every model and region; of equal ones the cheaper first."""
    chosen: list[int] = []
    order = np.lexsort((combos.price, -combos.efficiency))
    taken: dict[tuple[int, int], int] = {}
    for k in order.tolist():
        place = int(combos.model[k]), int(combos.region[k])
        if taken.get(place, 0) < kept:
            taken[place] = taken.get(place, 0) + 1
            chosen.append(k)
    return np.array(sorted(chosen), dtype=np.int64)
