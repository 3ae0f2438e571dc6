"""The placement ILP by configuration instead of by node, with a tighter linearisation.

For a fixed number of stages S, layers L and N_c nodes of configuration c::

    max  U t
    s.t. sum_j x[s,j] = 1                          for every stage s
         sum_s n[s,c] = N_c                        for every configuration c
         sum_s sum_j j x[s,j] = L
         sum_j w[s,j,c] = n[s,c]                   for every s, c
         w[s,j,c] <= N_c x[s,j]                    for every s, j, c
         sum_c n[s,c] >= 1                         for every stage s
         t <= sum_j sum_c min(T_j(c; s) / U, 1) w[s,j,c]             for every stage s
         L t <= sum_s sum_j sum_c j T_j(c; s) / U w[s,j,c]
         sum_j j x[s,j] >= sum_j j x[s+1,j]        for neighbouring middle stages s, s+1
         x binary, n integer, 0 <= w, 0 <= t <= 1

``x[s,j]``: stage s holds j layers; ``n[s,c]``: nodes of configuration c in stage s; ``w[s,j,c]`` = n[s,c] x[s,j];
``U t`` is the throughput in tokens/s. A token must pass every layer, and a node with j layers gives j T_j layer-
tokens a second, so no placement exceeds U = sum_c N_c max_{s,j} j T_j(c; s) / L tokens/s. That keeps the numbers near
1, which solvers with tolerances need; clips T_j (few layers give a huge one) to U; and gives the row with L t, the
sum of the stage rows each times the layers of its stage. Exactly one x[s,j] of a stage is 1, so w[s,.,c] is zero but
for that j, where it equals n[s,c]: w needs no integrality, and one equation replaces two of the paper's three
families. Nodes of one configuration are interchangeable, and so are middle stages, which have one role: counting the
former and ordering the latter by layers loses no placement but its copies. ``w`` exists only where T_j(c; s) > 0 and
j <= L - S + 1 (every other stage needs a layer), so that nobody sits where he cannot hold the layers. A problem
without a placement is an infeasible model.

Limits of the engine: one node a stage is sum_c n[s,c] = 1; equal replicas are sum_c n[s,c] = d with an integer d and
n[s,c] <= N_c b[s,c], sum_c b[s,c] = 1, b binary: as many nodes of one configuration in every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coralopt.placement.formulations.stages import fixed_stages, role_table
from coralopt.placement.problem import Placement, PlacementProblem, Stage


def engine_rows(model: Any, problem: PlacementProblem, S: range, C: list[int]) -> None:
    """Limits of the engine: one node a stage, or as many nodes of one configuration in each."""
    import pyomo.environ as pyo

    n, limits = model.n, problem.limits
    if limits.one_node_stages:
        model.one_node = pyo.Constraint(S, rule=lambda _, s: sum(n[s, c] for c in C) == 1)
    if limits.equal_replicas:
        model.replicas = pyo.Var(domain=pyo.NonNegativeIntegers, bounds=(1, problem.nodes))
        model.kind = pyo.Var(S, C, domain=pyo.Binary)
        model.one_kind = pyo.Constraint(S, rule=lambda _, s: sum(model.kind[s, c] for c in C) == 1)
        model.of_that_kind = pyo.Constraint(
            S, C, rule=lambda _, s, c: n[s, c] <= problem.node_set[c] * model.kind[s, c]
        )
        model.equal = pyo.Constraint(S, rule=lambda _, s: sum(n[s, c] for c in C) == model.replicas)


class TightFormulation:
    """Grouped by configuration, for a fixed stage count; the module docstring has its mathematics."""

    name: str = "tight"

    def build(self, problem: PlacementProblem) -> Any:
        """Pyomo model with ``x``, ``n``, ``w`` and ``throughput``, in units of U.

        Raises:
            SolverError: ``problem.stages`` is ``None`` or leaves a stage without a node or a layer.
        """
        import pyomo.environ as pyo

        stages = fixed_stages(problem)
        tables = [role_table(problem, s, stages) for s in range(stages)]
        model = pyo.ConcreteModel(name="placement_tight")
        S, J = range(stages), range(1, problem.layers - stages + 2)
        C = [c for c, count in enumerate(problem.node_set) if count > 0]
        held = [(s, j, c) for s in S for j in J for c in C if tables[s][c, j] > 0]
        peak = sum(
            problem.node_set[c] * max((j * float(tables[s][c, j]) for s in S for j in J), default=0.0) for c in C
        )
        most = peak / problem.layers or 1.0
        inside: dict[tuple[int, int], list[int]] = {(s, c): [] for s in S for c in C}
        for s, j, c in held:
            inside[s, c].append(j)
        model.x = pyo.Var(S, J, domain=pyo.Binary)
        model.n = pyo.Var(S, C, domain=pyo.NonNegativeIntegers, bounds=lambda _, s, c: (0, problem.node_set[c]))
        model.w = pyo.Var(held, domain=pyo.NonNegativeReals)
        model.throughput = pyo.Var(domain=pyo.NonNegativeReals, bounds=(0, 1))
        x, n, w = model.x, model.n, model.w

        model.one_layer_count = pyo.Constraint(S, rule=lambda _, s: sum(x[s, j] for j in J) == 1)
        model.all_nodes = pyo.Constraint(C, rule=lambda _, c: sum(n[s, c] for s in S) == problem.node_set[c])
        model.all_layers = pyo.Constraint(expr=sum(j * x[s, j] for s in S for j in J) == problem.layers)
        model.nodes_by_layers = pyo.Constraint(
            S, C, rule=lambda _, s, c: sum(w[s, j, c] for j in inside[s, c]) == n[s, c]
        )
        model.w_needs_x = pyo.Constraint(held, rule=lambda _, s, j, c: w[s, j, c] <= problem.node_set[c] * x[s, j])
        model.some_node = pyo.Constraint(S, rule=lambda _, s: sum(n[s, c] for c in C) >= 1)
        model.slowest_stage = pyo.Constraint(
            S,
            rule=lambda _, s: (
                model.throughput
                <= sum(min(float(tables[s][c, j]) / most, 1.0) * w[s, j, c] for c in C for j in inside[s, c])
            ),
        )
        model.layer_tokens = pyo.Constraint(
            expr=problem.layers * model.throughput
            <= sum(j * float(tables[s][c, j]) / most * w[s, j, c] for s, j, c in held)
        )
        model.middle_order = pyo.Constraint(
            range(1, stages - 2), rule=lambda _, s: sum(j * x[s, j] for j in J) >= sum(j * x[s + 1, j] for j in J)
        )
        engine_rows(model, problem, S, C)
        model.objective = pyo.Objective(expr=most * model.throughput, sense=pyo.maximize)
        return model

    def read(self, problem: PlacementProblem, value: Callable[[str, Any], float]) -> Placement:
        """The placement that ``x`` and ``n`` say; ``value(name, index)`` gives a variable's value."""
        stages = fixed_stages(problem)
        J = range(1, problem.layers - stages + 2)
        return Placement(
            tuple(
                Stage(
                    layers=sum(j * round(value("x", (s, j))) for j in J),
                    nodes=tuple(
                        round(value("n", (s, c))) if count > 0 else 0 for c, count in enumerate(problem.node_set)
                    ),
                )
                for s in range(stages)
            )
        )
