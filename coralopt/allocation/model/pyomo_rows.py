r"""Rows that both Pyomo formulations share: capacity, demand, side constraints; columns of supply classes and unmet demand.

::

    sum U_c nu - sum_k extra[r,c,k] <= A_r,1(c)             every region r, configuration c
    sum T nu + T_m s[g(m)] >= T_m                            every model phase m without routes
    (sum T nu - T_m sum_k f[k]) / T_m >= 0                   every pool of a model phase m with routes
    sum_k f[k] + s[g] >= 1                                   routes k of every model that has them
    sum a nu (+ a_k extra[r,c,k]) (+ b s[g])  <= or >= b     every side constraint
    sum_k (v_k - V) f[k] >= 0                                every mean over the requests of a model
    0 <= extra[r,c,k] <= A_r,k(c),  0 <= s[g] <= 1,  0 <= f[k] <= 1

``extra``: nodes of the dearer supply classes (:mod:`coralopt.allocation.supply`), in rent limits at their surcharge.
``shortfall``, s: unmet share of the phases of a group, only where it has a price; in rows of tokens/s with their bound.
Where prices of a group have tiers there are several, each up to its share.
``flow``, f: share of a model's requests on a route (:mod:`coralopt.allocation.routes`).
``level``, v: of a side constraint that holds with any one instance lost, the throughput of the largest instance::

    sum T nu - sum_i l_i v[i] >= x T_m,   sum_i v[i] <= 1,   nu <= U sum_{i: l_i >= T} v[i],   v binary

``time``: instances' worth of time of a column, by its number, that goes to a further model phase p instead of its own one m
(:mod:`coralopt.allocation.joint`)::

    sum_p time[k,p] <= nu_k,   T_m (nu_k - sum_p time[k,p]) in the row of m,   T_p time[k,p] in that of p

Side constraints: :mod:`coralopt.allocation.side_constraints`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coralopt.allocation.problem import AllocationProblem
from coralopt.allocation.side_constraints import open_constraints

#: One column as formulations see it: template, region, Pyomo variable.
Column = tuple[int, int, Any]


def add_rows(
    model: Any, problem: AllocationProblem, columns: list[Column], fresh: Mapping[tuple[int, int], Any]
) -> tuple[list[float], list[Any]]:
    """Add ``model.capacity[r, c]``, ``.demand[p]``, ``.pool[p, r]``, ``.routes[g]``, ``.mean[g, i]``, ``.side[i]``.

    A row that no column can reach is left out when it holds anyway, and kept as an impossible one when it does not.
    ``fresh`` has the variable that counts new instances of every pair.

    Returns:
        Coefficients and variables that belong in the objective: surcharges, unmet demand and routes.
    """
    import pyomo.environ as pyo
    from pyomo.core.expr.numeric_expr import LinearExpression

    _, regions, configurations, phases = problem.shape
    usage: dict[tuple[int, int], tuple[list[float], list[Any]]] = {}
    serve: dict[tuple[int, int], tuple[list[float], list[Any]]] = {}
    regional = {p for way in problem.routes for route in way.routes for p, at in route.pools if at is not None}
    further: dict[int, list[tuple[int, float]]] = {}
    joint = problem.joint
    for t, p, tokens_s in zip(joint.template.tolist(), joint.phase.tolist(), joint.throughput.tolist(), strict=True):
        further.setdefault(t, []).append((p, tokens_s))
    divided = {k: further[t] for k, (t, _, _) in enumerate(columns) if t in further and joint.divided}
    if divided:
        model.time = pyo.Var([(k, p) for k, some in divided.items() for p, _ in some], domain=pyo.NonNegativeReals)
        model.shared = pyo.Constraint(list(divided))
    for k, (t, r, variable) in enumerate(columns):
        for c in np.flatnonzero(problem.usage[t]).tolist():
            coefficients, variables = usage.setdefault((r, c), ([], []))
            coefficients.append(float(problem.usage[t, c]))
            variables.append(variable)
        own = int(problem.phase[t]), float(problem.throughput[t])
        parts = [(*own, variable), *((p, tokens_s, variable) for p, tokens_s in further.get(t, ()))]
        if k in divided:
            elsewhere = [model.time[k, p] for p, _ in divided[k]]
            parts = [(*own, variable), *((own[0], -own[1], part) for part in elsewhere)]
            parts += [(p, tokens_s, model.time[k, p]) for p, tokens_s in divided[k]]
            each = [1.0] * len(elsewhere)
            total = LinearExpression(constant=0, linear_coefs=[*each, -1.0], linear_vars=[*elsewhere, variable])
            model.shared[k] = total <= 0
        for p, tokens_s, part in parts:
            coefficients, variables = serve.setdefault((p, r if p in regional else -1), ([], []))
            coefficients.append(tokens_s)
            variables.append(part)
    pieces = problem.segments
    cells = [divmod(cell, configurations) for cell in pieces.cell.tolist()]
    costs: list[float] = pieces.surcharge.tolist()
    paid: list[Any] = []
    if cells:
        model.extra = pyo.Var([(r, c, k) for k, (r, c) in enumerate(cells)], domain=pyo.NonNegativeReals)
    for k, (r, c) in enumerate(cells):
        model.extra[r, c, k].setub(int(pieces.nodes[k]))
        paid.append(model.extra[r, c, k])
        coefficients, variables = usage.setdefault((r, c), ([], []))
        coefficients.append(-1.0)
        variables.append(paid[k])
    unmet: dict[int, list[Any]] = {}
    groups = problem.unmet_groups()
    if groups:
        model.shortfall = pyo.Var(range(len(groups)), domain=pyo.NonNegativeReals)
    for g, (together, price, most) in enumerate(groups):
        model.shortfall[g].setub(most)
        costs.append(price)
        paid.append(model.shortfall[g])
        for p in together:
            unmet.setdefault(p, []).append(model.shortfall[g])
    model.capacity = pyo.Constraint(range(regions), range(configurations))
    for (r, c), (coefficients, variables) in sorted(usage.items()):
        body = LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
        model.capacity[r, c] = body <= int(pieces.first[r, c])
    routed = _add_routes(model, problem, serve, unmet, (costs, paid))
    model.demand = pyo.Constraint(range(phases))
    for p in range(phases):
        if p in routed:
            continue
        coefficients, variables = serve.get((p, -1), ([], []))
        for share in unmet.get(p, ()):
            coefficients.append(float(problem.demand[p]))
            variables.append(share)
        if variables:
            body = LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
            model.demand[p] = body >= float(problem.demand[p])
        elif problem.demand[p] > 0:
            model.nothing_serves = pyo.Var(bounds=(0, 0))
            model.demand[p] = float(problem.demand[p]) * model.nothing_serves >= float(problem.demand[p])
            break
    constraints = open_constraints(problem)
    model.side = pyo.Constraint(range(len(constraints)))
    template = np.array([t for t, _, _ in columns], dtype=np.int64)
    region = np.array([r for _, r, _ in columns], dtype=np.int64)
    for i, item in enumerate(constraints):
        if item.measure == "new_nodes":
            pairs = np.array(list(fresh), dtype=np.int64).reshape(-1, 2)
            values = item.coefficients(problem, pairs[:, 0], pairs[:, 1])
            coefficients = values[values > 0].tolist()
            variables = [fresh[t, r] for t, r in pairs[values > 0].tolist()]
        else:
            values = item.coefficients(problem, template, region)
            used = np.flatnonzero(values)
            coefficients = values[used].tolist()
            variables = [columns[k][2] for k in used.tolist()]
        if item.one_lost and variables:
            for level, variable in _add_levels(model, problem, i, [columns[k] for k in used.tolist()]):
                coefficients.append(-level)
                variables.append(variable)
        if item.is_rent:
            for k, (r, _) in enumerate(cells):
                if item.regions is None or r in item.regions:
                    coefficients.append(float(pieces.surcharge[k]))
                    variables.append(paid[k])
        if item.measure == "tokens_s" and item.phases is not None and item.bound > 0:
            for share in unmet.get(item.phases[0], ()):
                coefficients.append(item.limit(problem))
                variables.append(share)
        limit = item.limit(problem)
        if variables:
            body = LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
            model.side[i] = body <= limit if item.sense == "most" else body >= limit
        elif item.sense == "least" and limit > 0:
            model.nothing_counts = pyo.Var(bounds=(0, 0))
            model.side[i] = limit * model.nothing_counts >= limit
            break
    return costs, paid


def _add_levels(model: Any, problem: AllocationProblem, side: int, columns: list[Column]) -> list[tuple[float, Any]]:
    """Throughputs of some columns, and whether each is that of the largest instance."""
    import pyomo.environ as pyo

    levels = sorted({float(problem.throughput[t]) for t, _, _ in columns})
    most = problem.most_instances()
    block = pyo.Block()
    model.add_component(f"one_lost_{side}", block)
    block.level = pyo.Var(range(len(levels)), domain=pyo.Binary)
    block.one = pyo.Constraint(expr=sum(block.level.values()) <= 1)
    block.within = pyo.Constraint(range(len(columns)))
    for k, (t, r, variable) in enumerate(columns):
        above = [block.level[i] for i, level in enumerate(levels) if level >= problem.throughput[t]]
        block.within[k] = variable <= int(most[t, r]) * sum(above)
    return [(level, block.level[i]) for i, level in enumerate(levels)]


def _add_routes(
    model: Any,
    problem: AllocationProblem,
    serve: dict[tuple[int, int], tuple[list[float], list[Any]]],
    unmet: dict[int, list[Any]],
    objective: tuple[list[float], list[Any]],
) -> set[int]:
    """Add ``model.flow[g, k]``, ``.pool[p, r]``, ``.routes[g]`` and ``.mean[g, i]``; the phases that they speak of."""
    import pyomo.environ as pyo
    from pyomo.core.expr.numeric_expr import LinearExpression

    if not problem.routes:
        return set()
    ways = [(g, k) for g, way in enumerate(problem.routes) for k in range(len(way.routes))]
    model.flow = pyo.Var(ways, bounds=(0, 1))
    routed = {p for way in problem.routes for p in way.phases}
    pools = {pool: parts for pool, parts in serve.items() if pool[0] in routed}
    for g, way in enumerate(problem.routes):
        for k, route in enumerate(way.routes):
            objective[0].append(route.usd_h)
            objective[1].append(model.flow[g, k])
            for p, region in route.pools:
                coefficients, variables = pools.setdefault((p, -1 if region is None else region), ([], []))
                coefficients.append(-float(problem.demand[p]))
                variables.append(model.flow[g, k])
    model.pool = pyo.Constraint(sorted(pools))
    for pool, (coefficients, variables) in pools.items():
        shares = [value / float(problem.demand[pool[0]]) for value in coefficients]
        model.pool[pool] = LinearExpression(constant=0, linear_coefs=shares, linear_vars=variables) >= 0
    means = {(g, i): mean for g, way in enumerate(problem.routes) for i, mean in enumerate(way.means)}
    model.mean = pyo.Constraint(sorted(means))
    for (g, i), mean in means.items():
        terms = {k: float(term) for k, term in enumerate(mean.terms()) if term}
        flows = [model.flow[g, k] for k in terms]
        model.mean[g, i] = LinearExpression(constant=0, linear_coefs=[*terms.values()], linear_vars=flows) >= 0
    model.routes = pyo.Constraint(range(len(problem.routes)))
    for g, way in enumerate(problem.routes):
        shares = [model.flow[g, k] for k in range(len(way.routes))]
        shares += unmet.get(way.phases[0], [])
        model.routes[g] = LinearExpression(constant=0, linear_coefs=[1.0] * len(shares), linear_vars=shares) >= 1.0
    return routed
