"""The placement ILP as the paper prints it (section 4.2), node by node.

For a fixed number of stages S, layers L and nodes k = 1..K (each configuration repeated by its count)::

    max  T
    s.t. sum_j x[s,j] = 1                          for every stage s
         sum_s y[s,k] = 1                          for every node k
         sum_s sum_j j x[s,j] = L
         z[s,j,k] <= x[s,j]                        for every s, j, k
         z[s,j,k] <= y[s,k]                        for every s, j, k
         z[s,j,k] >= x[s,j] + y[s,k] - 1           for every s, j, k
         T <= sum_j sum_k T_j(g_k; s) z[s,j,k]     for every stage s
         x, y, z binary, T >= 0

``x[s,j]``: stage s holds j layers; ``y[s,k]``: node k is in stage s; ``z[s,j,k]``: both; ``T`` in tokens/s.

Two things are said more precisely than in print. ``T_j(g_k; s)`` depends on the role of stage s (first, middle, last:
embedding and output head); with equal roles it is the paper's. And a node that cannot hold j layers (T_j = 0) cannot
be in a stage of j layers: ``z[s,j,k] = 0``. In print it could sit there and add nothing, with more weights than its
memory takes. So that an empty stage does not stand for "no placement", every stage has a node: ``sum_k y[s,k] >= 1``;
this follows from T > 0. Limits of the
engine, where asked for, are rows on y alone. A problem without a placement is then an infeasible model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coralopt.placement.formulations.stages import fixed_stages, nodes_in_order
from coralopt.placement.problem import PlacementProblem
from coralopt.placement.problem_parts import Placement, Stage
from coralopt.solving.problem import VariableIndex
from coralopt.throughput.tables import stage_role

if TYPE_CHECKING:
    from pyomo.environ import ConcreteModel


class PaperPlacement:
    """The paper's ILP for a fixed stage count, letter for letter; the module docstring has its mathematics."""

    name: str = "paper"

    def build(self, problem: PlacementProblem) -> ConcreteModel:
        """Pyomo model with ``x``, ``y``, ``z`` and ``throughput``.

        Raises:
            SolverError: ``problem.stages`` is ``None`` or leaves a stage without a node or a layer.
        """
        import pyomo.environ as pyo

        stages, nodes = fixed_stages(problem), nodes_in_order(problem)
        tables = [problem.values[stages - 1, stage_role(s, stages)] for s in range(stages)]
        model = pyo.ConcreteModel(name="placement_paper")
        S, J, K = range(stages), range(1, problem.layers + 1), range(len(nodes))
        model.x = pyo.Var(S, J, domain=pyo.Binary)
        model.y = pyo.Var(S, K, domain=pyo.Binary)
        model.z = pyo.Var(S, J, K, domain=pyo.Binary)
        model.throughput = pyo.Var(domain=pyo.NonNegativeReals)
        x, y, z = model.x, model.y, model.z

        model.one_layer_count = pyo.Constraint(S, rule=lambda _, s: sum(x[s, j] for j in J) == 1)
        model.one_stage = pyo.Constraint(K, rule=lambda _, k: sum(y[s, k] for s in S) == 1)
        model.all_layers = pyo.Constraint(expr=sum(j * x[s, j] for s in S for j in J) == problem.layers)
        model.z_needs_x = pyo.Constraint(S, J, K, rule=lambda _, s, j, k: z[s, j, k] <= x[s, j])
        model.z_needs_y = pyo.Constraint(S, J, K, rule=lambda _, s, j, k: z[s, j, k] <= y[s, k])
        model.x_and_y_give_z = pyo.Constraint(S, J, K, rule=lambda _, s, j, k: z[s, j, k] >= x[s, j] + y[s, k] - 1)
        model.slowest_stage = pyo.Constraint(
            S,
            rule=lambda _, s: model.throughput <= sum(float(tables[s][nodes[k], j]) * z[s, j, k] for j in J for k in K),
        )
        model.cannot_hold = pyo.ConstraintList()
        for s in S:
            for j in J:
                for k in K:
                    if tables[s][nodes[k], j] <= 0:
                        model.cannot_hold.add(z[s, j, k] == 0)
        model.some_node = pyo.Constraint(S, rule=lambda _, s: sum(y[s, k] for k in K) >= 1)
        if problem.limits.one_node_stages:
            model.one_node = pyo.Constraint(S, rule=lambda _, s: sum(y[s, k] for k in K) == 1)
        if problem.limits.equal_replicas:
            model.replicas = pyo.Var(domain=pyo.NonNegativeIntegers, bounds=(1, len(nodes)))
            model.equal = pyo.Constraint(S, rule=lambda _, s: sum(y[s, k] for k in K) == model.replicas)
            model.one_kind = pyo.ConstraintList()
            for s in S:
                for k in K:
                    for other in range(k):
                        if nodes[other] != nodes[k]:
                            model.one_kind.add(y[s, k] + y[s, other] <= 1)
        model.objective = pyo.Objective(expr=model.throughput, sense=pyo.maximize)
        return model

    def read(self, problem: PlacementProblem, value: Callable[[str, VariableIndex], float]) -> Placement:
        """The placement that ``x`` and ``y`` say; ``value(name, index)`` gives a variable's value."""
        stages, nodes = fixed_stages(problem), nodes_in_order(problem)
        pipeline = []
        for s in range(stages):
            counts = [0] * len(problem.configurations)
            for k, configuration in enumerate(nodes):
                counts[configuration] += round(value("y", (s, k)))
            layers = sum(j * round(value("x", (s, j))) for j in range(1, problem.layers + 1))
            pipeline.append(Stage(layers=layers, nodes=tuple(counts)))
        return Placement(tuple(pipeline))
