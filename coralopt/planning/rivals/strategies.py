"""Homogeneous strategies: templates whose nodes are all alike, and plans made from them.

The paper's baselines serve every replica on homogeneous hardware (section 5.1). A homogeneous strategy here is a node set of
one node configuration with its throughput-optimal placement, made by the same dynamic programme and from the same
throughput tables as every other template, so that planners differ in what they decide and in nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coralopt._version import __version__
from coralopt.allocation import Allocation, AllocationProblem, AllocationResult, Served
from coralopt.allocation.check import check_allocation
from coralopt.catalog.types import GIB
from coralopt.errors import InfeasibleError, LibraryError, Mistake, OptionError, ScenarioError, WrongAnswerError
from coralopt.plan import Plan
from coralopt.planning.coral import allocation_problem
from coralopt.planning.make_plan import make_plan
from coralopt.planning.request import Planner, PlanOutcome, PlanRequest, StepClock, setting
from coralopt.scenario.facts.facts import Sharing
from coralopt.scenario.facts.operations import Operations
from coralopt.scenario.resolved import ResolvedScenario
from coralopt.solving import Backend, backend_version, get_backend, relative_gap
from coralopt.templates import TemplateLibrary, build_library, library_digest, node_sets_for, parts_of
from coralopt.templates.estimate import count_node_sets
from coralopt.throughput import ThroughputTables
from coralopt.types import Floats, Ints

#: What "homogeneous" may mean: a single node, nodes of one configuration, or nodes of one GPU type in several sizes.
KINDS = ("node", "configuration", "gpu")
#: Strategies of all models at most, and ways to split their nodes over the stages of a pipeline: some 60 s.
MOST_STRATEGIES, MOST_PARTS = 2_000_000, 1e9


class Strategies:
    """The templates a planner may choose from, as one allocation problem.

    Attributes:
        scenario: The scenario.
        tables: Its throughput tables.
        library: The templates.
        problem: Its allocation problem over them; running instances count where they are among them.
    """

    def __init__(
        self, scenario: ResolvedScenario, tables: tuple[ThroughputTables, ...], library: TemplateLibrary
    ) -> None:
        self.scenario, self.tables, self.library = scenario, tables, library
        self.problem: AllocationProblem = allocation_problem(_with_known_running(scenario, library), library)

    @classmethod
    def homogeneous(cls, request: PlanRequest, kind: str, known: dict[str, TemplateLibrary]) -> Strategies:
        """Every homogeneous strategy of the scenario within its limits on node sets.

        Args:
            request: The scenario. Its running instances count where they are homogeneous strategies themselves; others
                are not kept.
            kind: ``"configuration"``: all nodes of a replica have one configuration, as in the paper; ``"node"``: a
                replica is one node; ``"gpu"``: one GPU type, in nodes of several sizes.
            known: Libraries made before, by digest; this one is looked up there and added. Demand, supply and prices do
                not decide a library, so a planner that is asked again and again keeps one.

        Raises:
            OptionError: No such kind.
            ScenarioError: An SLO no node can meet, or rules on placements that a plan has no words for.
        """
        if kind not in KINDS:
            raise OptionError(f"homogeneous is {kind!r}; choose one of: {', '.join(KINDS)}")
        scenario = request.scenario
        refuse_cells(scenario)
        tables = request.warm.tables_of(scenario)
        key = f"{kind};{library_digest(scenario, tables)}"
        if key not in known:
            families = _families(scenario, kind)
            # One thread: these families are small, and handing work to threads would take longer than the work.
            known[key] = build_library(scenario, tables, node_sets=families, workers=1)
        return cls(scenario, tables, known[key])

    def phase_rows(self, phase: int) -> Ints:
        """Templates of one model phase, rows of the problem."""
        return np.flatnonzero(self.problem.phase == phase)

    def plan(
        self, planner: Planner, request: PlanRequest, allocation: Allocation, solver: str | Backend | None
    ) -> Plan:
        """The plan that an allocation of these strategies is.

        Args:
            planner: Who made it.
            request: What was asked for.
            allocation: Rows and regions of ``problem``.
            solver: The MILP back end that found it, or ``None`` where no solver was used.

        Raises:
            WrongAnswerError: The allocation breaks a capacity or misses a demand.
        """
        check = check_allocation(self.problem, allocation)
        if not check.feasible and check_allocation(replace(self.problem, routes=()), allocation).feasible:
            raise InfeasibleError(
                f"planner {planner.name!r} does not know where KV caches may go: {'; '.join(check.sentences)}"
            )
        if not check.feasible:
            raise WrongAnswerError(f"planner {planner.name!r} made a wrong plan: {'; '.join(check.sentences)}")
        result = AllocationResult(
            allocation=allocation,
            cost_usd_h=check.objective,
            bound_usd_h=0.0,
            gap=relative_gap(check.objective, 0.0),
            formulation=planner.name,
            solver=get_backend(solver).name if solver else planner.name,
            reductions=(),
            seconds={},
            columns=0,
            survivors=0,
            relaxation_usd_h=0.0,
            lagrangian_usd_h=0.0,
            solutions=(),
            state=None,
        )
        served, gap = Served(result, self.problem), request.solve_options.rel_gap
        plan = make_plan(self.scenario, self.library, self.tables, served, self.scenario.solver, gap)
        return plan.model_copy(
            update={
                "planner": planner.name,
                "solver": get_backend(solver).name if solver else "none",
                "solver_version": backend_version(solver) if solver else __version__,
                "library_digest": library_digest(self.scenario, self.tables),
            }
        )


@dataclass(frozen=True)
class StrategyChoice:
    """What a planner of homogeneous strategies decides.

    Attributes:
        allocation: Rows and regions of the strategies' problem.
        solver: The MILP back end that found it, or ``None`` where no solver was used.
        own_gap: Relative gap of the planner's own programme, ``None`` without one.
        notes: Sentences that a reader of the plan should know.
    """

    allocation: Allocation
    solver: str | Backend | None = None
    own_gap: float | None = None
    notes: tuple[str, ...] = ()


class HomogeneousPlanner(ABC):
    """A planner that chooses among homogeneous strategies; its libraries are kept from one request to the next."""

    name: str
    summary: str
    source: str
    settings: Mapping[str, object] = {"homogeneous": "configuration"}

    def __init__(self) -> None:
        self._libraries: dict[str, TemplateLibrary] = {}

    @abstractmethod
    def choose(self, strategies: Strategies, request: PlanRequest) -> StrategyChoice:
        """How many of each strategy to rent where."""

    def plan(self, request: PlanRequest) -> PlanOutcome:
        """The plan that :meth:`choose` makes; see :class:`~coralopt.planning.request.Planner`."""
        steps = StepClock()
        strategies = Strategies.homogeneous(request, setting(self, request, "homogeneous"), self._libraries)
        steps.end("library")
        choice = self.choose(strategies, request)
        steps.end("allocation")
        plan = strategies.plan(self, request, choice.allocation, choice.solver)
        steps.end("plan")
        return PlanOutcome(plan, steps.seconds, own_gap=choice.own_gap, notes=choice.notes)


def _families(scenario: ResolvedScenario, kind: str) -> list[npt.NDArray[np.int8]]:
    """int8 (M, C) of each model phase: node sets that are homogeneous in this sense, by number of nodes.

    Raises:
        LibraryError: There are too many.
    """
    hosts, most = scenario.configurations, 1 if kind == "node" else scenario.max_nodes
    groups: dict[str, list[int]] = {}
    for c, (host, gpu) in enumerate(zip(hosts, scenario.gpu_types, strict=True)):
        groups.setdefault(gpu if kind == "gpu" else host.name, []).append(c)
    models = {phase.model.name: phase.model for phase in scenario.model_phases}
    caps = [scenario.memory_ratio * model.weight_bytes / GIB for model in models.values()]
    together = (tuple(hosts[c].memory_gib for c in group) for group in groups.values())
    total = sum(counts[-1] for memory in together for counts in count_node_sets(memory, most, caps))
    too_many = LibraryError(
        f"{total:,.0f} homogeneous strategies of up to {most} nodes are too many: lower pruning.max_nodes, or set "
        "homogeneous to 'configuration'"
    )
    if total > MOST_STRATEGIES:
        raise too_many
    families = {}
    for name, model in models.items():
        parts = []
        for group in groups.values():
            own = node_sets_for(model, [hosts[c] for c in group], most, scenario.memory_ratio)
            sets = np.zeros((len(own), len(hosts)), dtype=np.int8)
            sets[:, group] = own
            parts.append(sets)
        several = np.concatenate(parts)
        families[name] = several[np.lexsort((*several.T[::-1], several.sum(axis=1)))]
    if sum(parts_of(sets) for sets in families.values()) > MOST_PARTS:
        raise too_many
    return [families[phase.model.name] for phase in scenario.model_phases]


def _with_known_running(scenario: ResolvedScenario, library: TemplateLibrary) -> ResolvedScenario:
    """The scenario with those running instances whose template the library holds; the others are not kept."""
    known = []
    for entry in scenario.running:
        usage = [int(entry.nodes.get(name, 0)) for name in library.configurations]
        if sum(usage) == sum(entry.nodes.values()) and library.by_key[entry.key].find(usage) is not None:
            known.append(entry)
    return replace(scenario, running=tuple(known))


def refuse_cells(scenario: ResolvedScenario) -> None:
    """Refuse what only coral has an answer to: a rival that leaves it out in silence would be compared unfairly.

    Raises:
        ScenarioError: The scenario asks for free latency budgets, network-aware stages, operators' limits, shared nodes, or
            models in mode auto, with variants or with classes of requests.
    """
    if varied := scenario.models_with_variants:
        raise ScenarioError(
            scenario.name,
            [
                Mistake(
                    f"models.{scenario.model_keys[varied[0]]}.variants",
                    "only planner coral chooses between variants of a model",
                    "serve one of them as the model itself to compare planners",
                )
            ],
        )
    if free := scenario.models_in_auto:
        raise ScenarioError(
            scenario.name,
            [
                Mistake(
                    f"models.{scenario.model_keys[free[0]]}.mode",
                    "only planner coral chooses between disaggregated and mixed instances",
                    "choose one of both to compare planners",
                )
            ],
        )
    if divided := scenario.models_in_classes:
        problem = "only planner coral lets instances share their time among classes of requests"
        place = f"models.{scenario.model_keys[divided[0]]}.demand.classes"
        raise ScenarioError(scenario.name, [Mistake(place, problem, "give one rate and lengths to compare planners")])
    if scenario.sharing != Sharing():
        problem = "only planner coral lets models share nodes"
        raise ScenarioError(scenario.name, [Mistake("sharing", problem, "leave it out to compare planners")])
    rules = scenario.placement
    if rules.budget_units is not None or rules.link_network:
        name = "latency_budgets: free" if rules.budget_units is not None else "network: link"
        raise ScenarioError(
            scenario.name,
            [Mistake("placement", f"only planner coral plans with {name}", "leave it out to compare planners")],
        )
    if scenario.operations != Operations():
        raise ScenarioError(
            scenario.name,
            [
                Mistake(
                    "operations",
                    "budgets, limits, least replicas, loss of a region or an instance, forbidden nodes, reserved, spot and "
                    "committed nodes, start costs, starting before stopping, demand cases, unmet demand are known to coral "
                    "only",
                    "leave them out to compare planners",
                )
            ],
        )


def short_of(problem: AllocationProblem, served: Floats, planner: str, why: str) -> InfeasibleError:
    """The error of a planner that cannot meet every demand: names each model phase and what it got."""
    missing = [
        f"{name} gets {got:,.1f} of {want:,.1f} tokens/s ({got / want:.0%})"
        for name, got, want in zip(problem.phase_names, served.tolist(), problem.demand.tolist(), strict=True)
        if got < want
    ]
    return InfeasibleError(f"planner {planner!r} meets not every demand: {'; '.join(missing)}; {why}")
