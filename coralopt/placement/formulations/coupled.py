"""The placement ILP with cells: free latency budgets or network-aware stages.

For a fixed number of stages S, layers L, N_c nodes of configuration c and cells k::

    max  U t
    s.t. sum_{j,k} x[s,j,k] = 1                         for every stage s
         sum_s n[s,c] = N_c                             for every configuration c
         sum_s sum_{j,k} j x[s,j,k] = L
         sum_{j,k} w[s,j,k,c] = n[s,c]                  for every s, c
         w[s,j,k,c] <= N_c x[s,j,k]                     for every s, j, k, c
         sum_c n[s,c] >= 1                              for every stage s
         t <= sum_{j,k,c} min(T_jk(c; s) / U, 1) w[s,j,k,c]      for every stage s
         x binary, n integer, 0 <= w, 0 <= t <= 1

    budgets:  sum_s sum_{j,k} k x[s,j,k] <= S u
    links:    n[s+1,c] <= N_c sum_{k <= class of c} sum_j x[s,j,k]      for every s < S and c

``x[s,j,k]``: stage s holds j layers in cell k; ``w`` = n x; U and the rest as in formulation ``tight``. Links: the cell
of a stage may not be above the class of any node of the next one; throughput rises in k, so the optimum takes the
slowest receiver's. The last stage sends nothing and takes the top cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from coralopt.placement.coupled import Budgets, CoupledPlacementProblem, Links
from coralopt.placement.formulations.stages import fixed_stages
from coralopt.placement.problem_parts import Placement, Stage
from coralopt.solving.problem import Formulation
from coralopt.throughput.tables import stage_role


class CoupledFormulation:
    """By configuration and cell, for a fixed stage count; the module docstring has its mathematics."""

    name: str = "tight"

    def build(self, problem: CoupledPlacementProblem) -> Any:
        """Pyomo model with ``x``, ``n``, ``w`` and ``throughput`` in units of U.

        Raises:
            SolverError: ``problem.stages`` is ``None`` or leaves a stage without a node or a layer.
        """
        import pyomo.environ as pyo

        from coralopt.placement.formulations.tight import engine_rows

        stages = fixed_stages(problem.plain)
        cells = problem.values.shape[3]
        tables = [problem.values[stages - 1, stage_role(s, stages)] for s in range(stages)]
        S, J = range(stages), range(1, problem.layers - stages + 2)
        C = [c for c, count in enumerate(problem.node_set) if count > 0]
        if isinstance(problem.coupling, Budgets):
            # The other stages take a unit at least.
            K = range(1, min(cells - 1, problem.coupling.total(stages) - stages + 1) + 1)
            inside = {s: list(K) for s in S}
        else:
            inside = {s: list(range(cells)) if s < stages - 1 else [cells - 1] for s in S}
        chosen = [(s, j, k) for s in S for j in J for k in inside[s]]
        held = [(s, j, k, c) for s, j, k in chosen for c in C if tables[s][c, k, j] > 0]
        peak = sum(
            problem.node_set[c] * max((j * float(tables[s][c, k, j]) for s, j, k in chosen), default=0.0) for c in C
        )
        most = peak / problem.layers or 1.0
        model = pyo.ConcreteModel(name="placement_coupled")
        model.x = pyo.Var(chosen, domain=pyo.Binary)
        model.n = pyo.Var(S, C, domain=pyo.NonNegativeIntegers, bounds=lambda _, s, c: (0, problem.node_set[c]))
        model.w = pyo.Var(held, domain=pyo.NonNegativeReals)
        model.throughput = pyo.Var(domain=pyo.NonNegativeReals, bounds=(0, 1))
        x, n, w = model.x, model.n, model.w
        model.one_cell = pyo.Constraint(S, rule=lambda _, s: sum(x[s, j, k] for j in J for k in inside[s]) == 1)
        model.all_nodes = pyo.Constraint(C, rule=lambda _, c: sum(n[s, c] for s in S) == problem.node_set[c])
        model.all_layers = pyo.Constraint(expr=sum(j * x[s, j, k] for s, j, k in chosen) == problem.layers)
        model.nodes_by_cell = pyo.ConstraintList()
        for s in S:
            for c in C:
                parts = [w[s, j, k, c] for j in J for k in inside[s] if tables[s][c, k, j] > 0]
                model.nodes_by_cell.add(sum(parts) - n[s, c] == 0)
        model.w_needs_x = pyo.Constraint(
            held, rule=lambda _, s, j, k, c: w[s, j, k, c] <= problem.node_set[c] * x[s, j, k]
        )
        model.some_node = pyo.Constraint(S, rule=lambda _, s: sum(n[s, c] for c in C) >= 1)
        model.slowest_stage = pyo.ConstraintList()
        for s in S:
            gives = [min(float(tables[s][c, k, j]) / most, 1.0) * w[q, j, k, c] for q, j, k, c in held if q == s]
            model.slowest_stage.add(model.throughput - sum(gives) <= 0)
        if isinstance(problem.coupling, Budgets):
            model.latency = pyo.Constraint(
                expr=sum(k * x[s, j, k] for s, j, k in chosen) <= problem.coupling.total(stages)
            )
        else:
            self._receivers(model, problem, problem.coupling, stages, J, C)
        engine_rows(model, problem.plain, S, C)
        model.objective = pyo.Objective(expr=most * model.throughput, sense=pyo.maximize)
        return model

    def _receivers(
        self, model: Any, problem: CoupledPlacementProblem, links: Links, stages: int, J: range, C: list[int]
    ) -> None:
        import pyomo.environ as pyo

        model.receivers = pyo.Constraint(
            range(stages - 1),
            C,
            rule=lambda _, s, c: (
                model.n[s + 1, c]
                <= problem.node_set[c] * sum(model.x[s, j, k] for j in J for k in range(links.classes[c] + 1))
            ),
        )

    def read(self, problem: CoupledPlacementProblem, value: Callable[[str, Any], float]) -> Placement:
        """The placement that ``x`` and ``n`` say."""
        stages = fixed_stages(problem.plain)
        cells, last = problem.values.shape[3], problem.layers - stages + 1
        found = []
        for s in range(stages):
            if isinstance(problem.coupling, Budgets):
                inside = range(1, min(cells - 1, problem.coupling.total(stages) - stages + 1) + 1)
            else:
                inside = range(cells) if s < stages - 1 else range(cells - 1, cells)
            layers = sum(j * round(value("x", (s, j, k))) for j in range(1, last + 1) for k in inside)
            nodes = tuple(round(value("n", (s, c))) if count > 0 else 0 for c, count in enumerate(problem.node_set))
            found.append(Stage(layers, nodes))
        return Placement(tuple(found))


#: Formulations of the coupled problem by name.
COUPLED_FORMULATIONS: Mapping[str, Formulation[CoupledPlacementProblem, Placement]] = MappingProxyType(
    {"tight": CoupledFormulation()}
)
