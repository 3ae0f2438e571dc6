"""The placement ILP by configuration instead of by node, with a tighter linearisation, for stages with cells.

For a fixed number of stages S, layers L, N_c nodes of configuration c and cells k (a plain table is one cell)::

    max  U t
    s.t. sum_{j,k} x[s,j,k] = 1                         for every stage s
         sum_s n[s,c] = N_c                             for every configuration c
         sum_s sum_{j,k} j x[s,j,k] = L
         sum_{j,k} w[s,j,k,c] = n[s,c]                  for every s, c
         w[s,j,k,c] <= N_c x[s,j,k]                     for every s, j, k, c
         sum_c n[s,c] >= 1                              for every stage s
         t <= sum_{j,k,c} min(T_jk(c; s) / U, 1) w[s,j,k,c]                   for every stage s
         L t <= sum_{s,j,k,c} j T_jk(c; s) / U w[s,j,k,c]
         x binary, n integer, 0 <= w, 0 <= t <= 1

    one cell: sum_j j x[s,j] >= sum_j j x[s+1,j]        for neighbouring middle stages s, s+1
    budgets:  sum_s sum_{j,k} k x[s,j,k] <= S u
    links:    n[s+1,c] <= N_c sum_{k <= class of c} sum_j x[s,j,k]            for every s < S and c

``x[s,j,k]``: stage s holds j layers in cell k; ``n[s,c]``: nodes of configuration c in stage s; ``w`` = n x;
``U t`` is the throughput in tokens/s. A token must pass every layer, and a node with j layers gives j T_jk layer-
tokens a second, so no placement exceeds U = sum_c N_c max_{s,j,k} j T_jk(c; s) / L tokens/s. That keeps the numbers
near 1, which solvers with tolerances need; clips T_jk (few layers give a huge one) to U; and gives the row with L t,
the sum of the stage rows each times the layers of its stage. Exactly one x of a stage is 1, so w[s,.,.,c] is zero but
there, where it equals n[s,c]: w needs no integrality, and one equation replaces two of the paper's three families.
Nodes of one configuration are interchangeable, and with one cell so are middle stages, which have one role: counting
the former and ordering the latter by layers loses no placement but its copies. ``w`` exists only where T_jk(c; s) > 0
and j <= L - S + 1 (every other stage needs a layer), so that nobody sits where he cannot hold the layers. A problem
without a placement is an infeasible model.

Budgets: the other stages take a unit at least. Links: the cell of a stage may not be above the class of any node of
the next one; throughput rises in k, so the optimum takes the slowest receiver's. The last stage sends nothing and takes
the top cell.

Limits of the engine: one node a stage is sum_c n[s,c] = 1; equal replicas are sum_c n[s,c] = d with an integer d and
n[s,c] <= N_c b[s,c], sum_c b[s,c] = 1, b binary: as many nodes of one configuration in every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coralopt.placement.cells import Budgets
from coralopt.placement.formulations.stages import fixed_stages
from coralopt.placement.problem import PlacementProblem
from coralopt.placement.problem_parts import Placement, Stage
from coralopt.solving.problem import VariableIndex, VariableValues
from coralopt.throughput.tables import stage_role

if TYPE_CHECKING:
    from pyomo.environ import ConcreteModel


def _cells_of_stages(problem: PlacementProblem, stages: int) -> list[range]:
    """Cells that each stage may be in."""
    values, coupling = problem.cells
    top = values.shape[3] - 1
    if isinstance(coupling, Budgets):
        return [range(1, min(top, coupling.total(stages) - stages + 1) + 1)] * stages
    return [range(top + 1)] * (stages - 1) + [range(top, top + 1)]


class TightFormulation:
    """Grouped by configuration, for a fixed stage count; the module docstring has its mathematics."""

    name: str = "tight"

    def build(self, problem: PlacementProblem) -> ConcreteModel:
        """Pyomo model with ``x``, ``n``, ``w`` and ``throughput``, in units of U.

        Raises:
            SolverError: ``problem.stages`` is ``None`` or leaves a stage without a node or a layer.
        """
        import pyomo.environ as pyo

        stages, (values, coupling), nodes = fixed_stages(problem), problem.cells, problem.node_set
        tables = [values[stages - 1, stage_role(s, stages)] for s in range(stages)]
        model = pyo.ConcreteModel(name="placement_tight")
        S, J, K = range(stages), range(1, problem.layers - stages + 2), _cells_of_stages(problem, stages)
        C = [c for c, count in enumerate(nodes) if count > 0]
        chosen = [(s, j, k) for s in S for j in J for k in K[s]]
        held = [(s, j, k, c) for s, j, k in chosen for c in C if tables[s][c, k, j] > 0]
        peak = sum(nodes[c] * max((j * float(tables[s][c, k, j]) for s, j, k in chosen), default=0.0) for c in C)
        most = peak / problem.layers or 1.0
        inside: dict[tuple[int, int], list[tuple[int, int]]] = {(s, c): [] for s in S for c in C}
        for s, j, k, c in held:
            inside[s, c].append((j, k))
        model.x = pyo.Var(chosen, domain=pyo.Binary)
        model.n = pyo.Var(S, C, domain=pyo.NonNegativeIntegers, bounds=lambda _, s, c: (0, nodes[c]))
        model.w = pyo.Var(held, domain=pyo.NonNegativeReals)
        model.throughput = pyo.Var(domain=pyo.NonNegativeReals, bounds=(0, 1))
        x, n, w = model.x, model.n, model.w
        layers_of = [sum(j * x[s, j, k] for j in J for k in K[s]) for s in S]

        model.one_cell = pyo.Constraint(S, rule=lambda _, s: sum(x[s, j, k] for j in J for k in K[s]) == 1)
        model.all_nodes = pyo.Constraint(C, rule=lambda _, c: sum(n[s, c] for s in S) == nodes[c])
        model.all_layers = pyo.Constraint(expr=sum(layers_of) == problem.layers)
        model.nodes_by_cell = pyo.Constraint(
            S, C, rule=lambda _, s, c: sum(w[s, j, k, c] for j, k in inside[s, c]) == n[s, c]
        )
        model.w_needs_x = pyo.Constraint(held, rule=lambda _, s, j, k, c: w[s, j, k, c] <= nodes[c] * x[s, j, k])
        model.some_node = pyo.Constraint(S, rule=lambda _, s: sum(n[s, c] for c in C) >= 1)
        model.slowest_stage = pyo.Constraint(
            S,
            rule=lambda _, s: (
                model.throughput
                <= sum(min(float(tables[s][c, k, j]) / most, 1.0) * w[s, j, k, c] for c in C for j, k in inside[s, c])
            ),
        )
        model.layer_tokens = pyo.Constraint(
            expr=problem.layers * model.throughput
            <= sum(j * float(tables[s][c, k, j]) / most * w[s, j, k, c] for s, j, k, c in held)
        )
        if isinstance(coupling, Budgets):
            model.latency = pyo.Constraint(expr=sum(k * x[s, j, k] for s, j, k in chosen) <= coupling.total(stages))
        elif values.shape[3] == 1:
            model.middle_order = pyo.Constraint(
                range(1, stages - 2), rule=lambda _, s: layers_of[s] >= layers_of[s + 1]
            )
        else:
            classes = coupling.classes
            model.receivers = pyo.Constraint(
                range(stages - 1),
                C,
                rule=lambda _, s, c: (
                    n[s + 1, c] <= nodes[c] * sum(x[s, j, k] for j in J for k in range(classes[c] + 1))
                ),
            )
        if problem.limits.one_node_stages:
            model.one_node = pyo.Constraint(S, rule=lambda _, s: sum(n[s, c] for c in C) == 1)
        if problem.limits.equal_replicas:
            model.replicas = pyo.Var(domain=pyo.NonNegativeIntegers, bounds=(1, problem.nodes))
            model.kind = pyo.Var(S, C, domain=pyo.Binary)
            model.one_kind = pyo.Constraint(S, rule=lambda _, s: sum(model.kind[s, c] for c in C) == 1)
            model.of_that_kind = pyo.Constraint(S, C, rule=lambda _, s, c: n[s, c] <= nodes[c] * model.kind[s, c])
            model.equal = pyo.Constraint(S, rule=lambda _, s: sum(n[s, c] for c in C) == model.replicas)
        model.objective = pyo.Objective(expr=most * model.throughput, sense=pyo.maximize)
        return model

    def read(self, problem: PlacementProblem, value: Callable[[str, VariableIndex], float]) -> Placement:
        """The placement that ``x`` and ``n`` say; ``value(name, index)`` gives a variable's value."""
        stages = fixed_stages(problem)
        J, K = range(1, problem.layers - stages + 2), _cells_of_stages(problem, stages)
        return Placement(
            tuple(
                Stage(
                    layers=sum(j * round(value("x", (s, j, k))) for j in J for k in K[s]),
                    nodes=tuple(
                        round(value("n", (s, c))) if count > 0 else 0 for c, count in enumerate(problem.node_set)
                    ),
                )
                for s in range(stages)
            )
        )

    def start(self, problem: PlacementProblem, answer: Placement) -> VariableValues:
        """A placement in ``n``, and with one cell in ``x``: middle stages, which are alike there, by falling layers."""
        stages, plain = list(answer.stages), problem.cells[0].shape[3] == 1
        if plain:
            stages[1:-1] = sorted(stages[1:-1], key=lambda stage: -stage.layers)
        values: dict[tuple[str, VariableIndex], float] = {
            ("n", (s, c)): float(stage.nodes[c])
            for s, stage in enumerate(stages)
            for c, count in enumerate(problem.node_set)
            if count > 0
        }
        if plain:
            layers = range(1, problem.layers - len(stages) + 2)
            values |= {("x", (s, j, 0)): float(j == stage.layers) for s, stage in enumerate(stages) for j in layers}
        return values
